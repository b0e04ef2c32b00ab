-- requires: amounts
-- Computes how many nodes Slurm needs for a job that does not limit their number. The number depends on the CPUs of the
-- request. sbatch derives them from the tasks; with --overcommit, there are fewer CPUs. All functions are pure.
local policy, lib = ...
local amounts = lib.amounts
local nodes = {}

-- Returns the number of CPU groups in a request; all CPUs of a group must be on one node.
local function groups_of(request)
  local each = amounts.cpus_of_task(request)
  return request.cpus and math.ceil(request.cpus / each) or request.tasks or 1
end

-- Returns the maximum number of nodes that Slurm may use for a request; each node gets a task or a CPU group.
function nodes.most(request)
  return math.max(groups_of(request), request.tasks or 1, 1)
end

-- Returns the minimum number of GPUs on each node of a job.
local function least_gpus(request)
  local least = request.tasks_per_gpu and 1 or 0
  for _, form in ipairs({ "per_job", "per_node", "per_task", "per_socket" }) do
    for _, item in ipairs(amounts.parse_tres(request[form] or "")) do
      if item.count > 0 then
        least = math.max(least, item.name == "gpu" and form ~= "per_job" and item.count or 1)
      end
    end
  end
  return least
end

-- Returns the memory per CPU of a request; nil if its memory does not depend on CPUs.
local function mib_per_cpu(request, part, gpus)
  local defaults = policy.default_mib or {}
  if request.mib_per_cpu then
    return request.mib_per_cpu
  elseif request.mib_per_node or request.mib_per_gpu or request.mib_in_all or request.mib_of_fewest or (defaults.per_gpu and gpus > 0) then
    return nil
  end
  local own = amounts.mib(part.def_mem_per_cpu)
  return own and own > 0 and own or defaults.per_cpu
end

-- Returns the limit for `n` parts of a node if each part allows `each`: infinite if `each` is unset (nil or 0), 0 if
-- `n` is unknown.
local function in_all(n, each)
  return (each or 0) > 0 and (n or 0) * each or math.huge
end

-- Returns the number of CPU groups that fit on a node.
local function capacity(node, request, most_cpus, per_cpu)
  local cpus = math.min(node.cpus, most_cpus, in_all(node.cores, request.threads_per_core))
  if per_cpu and node.mib then
    cpus = math.min(cpus, node.mib / per_cpu)
  end
  return math.min(
    math.floor(cpus / amounts.cpus_of_task(request)),
    in_all(node.cores, request.tasks_per_core or policy.tasks_per_core),
    in_all(node.sockets, request.tasks_per_socket),
    in_all(1, request.tasks_per_board) -- nodes usually have one board
  )
end

-- Returns the number of nodes that a request needs in one partition if the largest nodes there are free. The second
-- result is the number of kinds of nodes that the request may use there; 0 if these nodes do not suffice.
local function needed_in(name, request, part)
  local gpus, kinds = least_gpus(request), {}
  local most_cpus, per_cpu = amounts.u32(part.max_cpus_per_node) or math.huge, mib_per_cpu(request, part, gpus)
  for _, node in ipairs(policy.partition_nodes and policy.partition_nodes[name] or {}) do
    local fits = capacity(node, request, most_cpus, per_cpu)
    if fits > 0 and node.gpus >= gpus and (node.mib or math.huge) >= (request.mib_per_node or 0) then
      kinds[#kinds + 1] = { n = node.n or math.huge, fits = fits }
    end
  end
  table.sort(kinds, function(one, other)
    return one.fits > other.fits
  end)
  local left, needed = groups_of(request), 0
  for _, kind in ipairs(kinds) do
    local n = math.min(kind.n, math.ceil(left / kind.fits))
    needed, left = needed + n, left - n * kind.fits
    if left <= 0 then
      return needed, #kinds
    end
  end
  return math.max(needed, 1), 0
end

-- Returns the number of nodes that a request needs in the partition where it needs the most; 1 if the request limits
-- the number of nodes. The second result is the largest number of kinds of nodes that the request may use in a
-- partition; 0 if the nodes of any partition are unknown or too few.
function nodes.needed(request, partitions, parts)
  if groups_of(request) <= 1 or amounts.most_nodes(request) then
    return 1, 1
  end
  local most, least_kinds, kinds = 1, math.huge, 0
  for name in string.gmatch(partitions, "[^,]+") do
    local needed, n = needed_in(name, request, parts and parts[name] or {})
    most, kinds, least_kinds = math.max(most, needed), math.max(kinds, n), math.min(least_kinds, n)
  end
  return most, least_kinds > 0 and kinds or 0
end

return nodes
