-- requires: amounts, size
-- Finds the bundle that a job belongs to, and the CPUs and memory that `mode: fit` adds if a job does not request them.
local policy, lib = ...
local amounts = lib.amounts
local fit = {}

local FORMS = { "per_job", "per_node", "per_task", "per_socket" }

-- Returns the list of the GPU types that a request names, and the list of its TRES items.
function fit.named_types(request)
  local types, items = {}, {}
  for _, form in ipairs(FORMS) do
    for _, item in ipairs(amounts.parse_tres(request[form] or "")) do
      items[#items + 1] = item
      if item.type then
        types[#types + 1] = string.lower(item.type)
      end
    end
  end
  return types, items
end

local function partition_matches(bundle, partitions)
  if bundle.partitions == nil then
    return true
  end
  for name in string.gmatch(partitions, "[^,]+") do
    if bundle.partitions[name] then
      return true
    end
  end
  return false
end

local function type_matches(bundle, request, partitions)
  if bundle.gpu_types == nil then
    return true
  end
  local named = fit.named_types(request)
  for _, kind in ipairs(named) do
    if not bundle.gpu_types[kind] then
      return false
    end
  end
  if #named > 0 then
    return true
  end
  for kind in pairs(bundle.gpu_types) do
    if lib.size.may_be(kind, partitions) then
      return true
    end
  end
  return false
end

-- Returns the first bundle that the job belongs to; nil if it belongs to no bundle.
function fit.bundle_of(job)
  for _, bundle in ipairs(policy.bundles or {}) do
    if
      (bundle.mgpu > 0) == (job.mgpu > 0)
      and partition_matches(bundle, job.partition)
      and (job.mgpu == 0 or type_matches(bundle, job.request, job.partition))
    then
      return bundle
    end
  end
  return nil
end

-- Returns the CPUs, rounded up, and the MiB that a bundle allows a job; nil for an amount without a limit.
function fit.allowed(bundle, mgpu)
  local units = bundle.mgpu > 0 and mgpu / bundle.mgpu or 1
  return bundle.cpus and math.ceil(bundle.cpus * units - 1e-9), bundle.mib and bundle.mib * units
end

local function has_no_cpus(job)
  local request = job.request
  return not (request.cpus_per_task or request.cpus_per_gpu or request.node_cpus or request.whole_nodes)
    and (request.cpus or 0) <= math.max(job.size.tasks, job.size.nodes)
end

local function has_no_memory(request)
  return not (request.mib_per_node or request.mib_per_cpu or request.mib_per_gpu)
end

-- Returns the prefix of GRES in the job's own request: "gres:" up to Slurm 23.02, "gres/" from 23.11 on.
local function prefix(request)
  for _, form in ipairs(FORMS) do
    local mark = (request[form] or ""):match("gres[:/]")
    if mark then
      return mark
    end
  end
  return "gres:"
end

-- Returns the values to write to job_desc ({} for no changes), and changes job.request accordingly.
function fit.fill(job, bundle)
  local writes, request = {}, job.request
  if bundle.mode ~= "fit" or job.mgpu == 0 then
    return writes
  end
  local cpus, mib = fit.allowed(bundle, job.mgpu)
  local whole = job.form ~= "whole_nodes"
  local _, items = fit.named_types(request)
  for _, item in ipairs(items) do
    whole = whole and item.name == "gpu"
  end
  local gpus = job.mgpu / 1000
  if cpus and cpus > math.max(job.size.tasks, job.size.nodes) and has_no_cpus(job) then
    if whole and math.floor(cpus / gpus) >= 1 then
      request.cpus_per_gpu = math.floor(cpus / gpus)
      writes.cpus_per_tres = string.format("%sgpu:%.0f", prefix(request), request.cpus_per_gpu)
    elseif job.size.tasks == 1 and job.size.nodes == 1 then -- with two nodes, each node would get this number
      request.cpus_per_task, request.cpus = cpus, cpus
      writes.cpus_per_task, writes.min_cpus = cpus, cpus
    end
  end
  if mib and has_no_memory(request) then
    if whole and math.floor(mib / gpus) >= 1 then
      request.mib_per_gpu = math.floor(mib / gpus)
      writes.mem_per_tres = string.format("%sgpu:%.0f", prefix(request), request.mib_per_gpu)
    elseif not whole and math.floor(mib / job.size.nodes) >= 1 then
      request.mib_per_node = math.floor(mib / job.size.nodes)
      writes.min_mem_per_node = request.mib_per_node
    end
  end
  return writes
end

return fit
