-- requires: fit, size
-- Slurm's billing units of a job: the sum of its resources, weighted by the TRESBillingWeights of its partition, or the
-- number of its CPUs in a partition without weights. Licences and burst buffers of a request do not count.
local policy, lib = ...
local billing = {}

-- Suffixes of the weight of memory, in MiB; Slurm reads K like M (measured on 22.05).
local MIB = { k = 1, m = 1, g = 1024, t = 1024 ^ 2, p = 1024 ^ 3 }

-- Maps the text of a partition's TRESBillingWeights to the weights by name in lower case, such as gres/gpu:a100.
local known = {}

local function weights_of(text)
  local weights = known[text]
  if weights == nil then
    weights = {}
    for name, number, suffix in string.lower(text):gmatch("([^,=%s]+)=([%d.e+-]+)(%a?)") do
      weights[name] = (tonumber(number) or 0) / (name == "mem" and MIB[suffix] or 1)
    end
    known[text] = weights
  end
  return weights
end

-- Returns an amount times its weight; 0 without a weight, even for an endless amount, which times 0 is no number.
local function weighed(amount, weight)
  return (weight or 0) == 0 and 0 or amount * weight
end

-- Parts per GPU. For a request that names only parts of GPUs (shards or MPS), Slurm bills the number of parts.
local PARTS = { shard = policy.shards_per_gpu or 1, mps = policy.mps_per_gpu or 100 }

-- Returns the GPUs of a job times the weight of gres/gpu, and times the largest weight of the types that they may have.
-- For a request that names only parts of GPUs, returns the number of parts times their weight.
local function weigh_gpus(weights, size, request, partition)
  local gpus, names, items = size.mgpu / 1000, lib.fit.named_types(request)
  if size.form ~= "whole_nodes" and lib.size.only_parts(request) then
    local name = items[1].name
    return weighed(gpus * (PARTS[name] or 1), weights["gres/" .. name])
  end
  local of_type = 0
  for _, kind in ipairs(names) do
    of_type = math.max(of_type, weights["gres/gpu:" .. kind] or 0)
  end
  for kind in pairs(#names == 0 and (policy.partition_gpu_types or {})[partition] or {}) do
    of_type = math.max(of_type, weights["gres/gpu:" .. kind] or 0)
  end
  return weighed(gpus, weights["gres/gpu"]), weighed(gpus, of_type)
end

-- Slurm adds all amounts. With PriorityFlags=MAX_TRES it takes the largest one, and with MAX_TRES_GRES it adds the GPUs
-- to the largest of the others. It stores a whole number.
local function in_partition(text, size, request, partition)
  if type(text) ~= "string" or text == "" then
    return size.cpus
  end
  local weights = weights_of(text)
  local gpus, typed = weigh_gpus(weights, size, request, partition)
  typed = typed or 0
  local cpus, mib = weighed(size.cpus, weights.cpu), weighed(size.mib, weights.mem)
  local nodes = weighed(size.nodes, weights.node)
  local sum = cpus + mib + nodes + gpus + typed
  if policy.billing == "MAX_TRES" then
    sum = math.max(cpus, mib, nodes, gpus, typed)
  elseif policy.billing == "MAX_TRES_GRES" then
    sum = math.max(cpus, mib, nodes) + gpus + typed
  end
  return math.floor(sum + 1e-6)
end

-- Returns the billing units of a job of this size: the most in any of the partitions in which it may start. `job` is
-- {partition, parts, request}, or the job before an update, with `gpus` instead of `request`.
function billing.of(size, job)
  local most = 0
  for name in string.gmatch(job.partition, "[^,]+") do
    local part = job.parts and job.parts[name]
    most = math.max(most, in_partition(part and part.billing_weights_str, size, job.request or job.gpus, name))
  end
  return most
end

return billing
