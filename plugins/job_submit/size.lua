-- requires: amounts, nodes
-- Computes the size of a job (of one task of an array) from a request or a record of slurm.jobs. A size is {mgpu, form,
-- node_mgpu = the most GPUs that the request allows on one node, nil without a limit, types = {a100 = mgpu}, cpus, mib,
-- nodes, tasks}. All functions are pure.
local policy, lib = ...
local amounts = lib.amounts
local size = {}

-- GPU types with a limit of their own; only GPUs of these types are counted separately.
size.watched = {}
-- Whether a rule limits only pending jobs.
size.counts_pending = false
for _, rule in ipairs(policy.rules) do
  local sets = { rule.limits }
  for _, exception in pairs(rule.exceptions or {}) do
    sets[#sets + 1] = exception.limits
  end
  for _, limits in ipairs(sets) do
    for key in pairs(limits) do
      local kind = key:match("^gpus[%l_]*:(.+)$") or key:match("^gpu_hours:[^:]+:(.+)$")
      if kind then
        size.watched[kind] = true
      end
      size.counts_pending = size.counts_pending or key:find("_pending", 1, true) ~= nil
    end
  end
end

-- Returns the smallest amount on any node of these partitions, from a table such as policy.partition_gpus; 0 if
-- unknown.
local function least_of(per_partition, partitions)
  local least
  for name in string.gmatch(partitions, "[^,]+") do
    least = math.min(least or math.huge, per_partition and per_partition[name] or 0)
  end
  return least or 0
end

-- Returns whether GPUs requested without a type may be of this type, in one of the partitions.
function size.may_be(kind, partitions)
  for name in string.gmatch(partitions, "[^,]+") do
    local types = policy.partition_gpu_types and policy.partition_gpu_types[name]
    if types == nil or types[kind] then
      return true
    end
  end
  return partitions == ""
end

local function types_of(partitions, count)
  local types = {}
  for kind in pairs(size.watched) do
    types[kind] = count({ type = kind, untyped = size.may_be(kind, partitions) })
  end
  return types
end

-- Returns the minimum numbers of GPUs, in thousandths, and CPUs that an exclusive job gets with each node; 0 if
-- unknown.
function size.of_whole_node(partitions)
  return 1000 * least_of(policy.partition_gpus, partitions), least_of(policy.partition_cpus, partitions)
end

local function cpus_of(request, found, partitions)
  local cpus = math.max(
    request.cpus or 0,
    found.tasks * amounts.cpus_of_task(request),
    found.nodes * math.max(request.node_cpus or 1, 1),
    math.ceil(found.mgpu / 1000 * (request.cpus_per_gpu or 0))
  )
  if request.whole_nodes then
    local _, each = size.of_whole_node(partitions)
    cpus = math.max(cpus, found.nodes * each)
  end
  return cpus
end

-- Returns whether a request asks only for parts of GPUs (shards, MPS). Slurm's defaults per GPU do not apply to such
-- requests.
function size.only_parts(request)
  local parts = false
  for _, form in ipairs({ "per_job", "per_node", "per_task", "per_socket" }) do
    for _, item in ipairs(amounts.parse_tres(request[form] or "")) do
      if item.name == "gpu" then
        return false
      end
      parts = true
    end
  end
  return parts
end

-- Returns the memory that Slurm gives a job that requests no memory: the default of the partition or, if the partition
-- has none, of slurm.conf.
local function default_mib(request, found, partitions, parts)
  local defaults = policy.default_mib or {}
  -- Slurm's default per GPU does not apply to GPUs that a job gets only with its exclusive nodes.
  local brought = found.form == "whole_nodes" and amounts.counted_mgpu(request) == 0
  if defaults.per_gpu and found.mgpu > 0 and not brought and not size.only_parts(request) then
    return found.mgpu / 1000 * defaults.per_gpu
  end
  local least
  for name in string.gmatch(partitions, "[^,]+") do
    local part = parts and parts[name] or {}
    local per_cpu, per_node = amounts.mib(part.def_mem_per_cpu), amounts.mib(part.def_mem_per_node)
    if not (per_cpu and per_cpu > 0) and not (per_node and per_node > 0) then
      per_cpu, per_node = defaults.per_cpu, defaults.per_node
    end
    local mib = 0
    if per_cpu and per_cpu > 0 then
      mib = per_cpu * found.cpus
    elseif per_node and per_node > 0 then
      mib = per_node * found.nodes
    elseif defaults.whole_node then
      mib = found.nodes * least_of(policy.partition_mib, name)
    end
    least = math.min(least or math.huge, mib)
  end
  return least or 0
end

-- Returns the memory of a request by its fields mib_per_node, mib_per_cpu, mib_per_gpu, mib_in_all and mib_of_fewest (of
-- all nodes if the job gets as few as it allows), in MiB or nil. If mib_per_node is 0, the job requests all memory of
-- each node.
local function mib_of(request, found, partitions, parts)
  local most
  local function at_least(mib)
    most = math.max(most or 0, mib)
  end
  if request.mib_per_node == 0 then
    at_least(found.nodes * least_of(policy.partition_mib, partitions))
  elseif request.mib_per_node then
    at_least(found.nodes * request.mib_per_node)
  elseif request.mib_per_cpu then
    at_least(found.cpus * request.mib_per_cpu)
  end
  if request.mib_per_gpu then
    at_least(found.mgpu / 1000 * request.mib_per_gpu)
  end
  if request.mib_in_all then
    at_least(request.mib_in_all)
  end
  if request.mib_of_fewest then
    at_least(request.mib_of_fewest * found.nodes / amounts.least_nodes(request))
  end
  return most or default_mib(request, found, partitions, parts)
end

-- Returns the size of a request in these partitions. `before` is the earlier size of a job whose update changes neither
-- its GPU request nor its nodes. Such a job keeps at least these GPUs, unless it got them with exclusive nodes, which
-- may differ in other partitions. Also sets needed_nodes of the request.
function size.of_request(request, partitions, parts, before)
  before = before and before.form ~= "whole_nodes" and before or nil
  request.needed_nodes = lib.nodes.needed(request, partitions, parts)
  local found = { nodes = amounts.counted_nodes(request) }
  found.tasks = amounts.counted_tasks(request) + 0.0
  local whole = request.whole_nodes and found.nodes * size.of_whole_node(partitions) or 0
  found.mgpu, found.form, found.node_mgpu = amounts.counted_mgpu(request)
  if before and before.mgpu >= found.mgpu then
    found.mgpu, found.form, found.node_mgpu = before.mgpu, before.form, before.node_mgpu
  end
  found.types = types_of(partitions, function(only)
    local asked = amounts.counted_mgpu(request, only)
    -- The GPUs of whole nodes that the job does not request may be of any type.
    local of_nodes = only.untyped and math.max(whole - (amounts.counted_mgpu(request) - asked), 0) or 0
    return math.max(asked, before and before.types[only.type] or 0, of_nodes)
  end)
  if whole > found.mgpu then
    found.mgpu, found.form, found.node_mgpu = whole, "whole_nodes", whole / found.nodes
  end
  found.cpus = cpus_of(request, found, partitions) + 0.0 -- from Lua 5.3 on integers wrap around
  found.mib = mib_of(request, found, partitions, parts)
  return found
end

-- Returns the maximum number of GPUs that a job may get on one node. Without a number per node, Slurm may place all
-- GPUs on one node.
function size.gpus_per_node(found)
  return math.min(found.mgpu, found.node_mgpu or math.huge) / 1000
end

-- Returns the size of a job in other partitions; the job must not name a GPU type.
function size.moved(found, partitions)
  local moved = {}
  for name, value in pairs(found) do
    moved[name] = value
  end
  moved.types = types_of(partitions, function(only)
    return only.untyped and found.mgpu or 0
  end)
  return moved
end

-- Returns the memory request in a pending job's record. Slurm writes its defaults into the same fields. If Slurm writes
-- its default per GPU, which has no "gres", it writes no other default. Slurm's default per CPU cannot be distinguished
-- from a request. --mem=0 appears only in the printed total.
function size.memory_of_record(record)
  local per_tres = type(record.mem_per_tres) == "string" and record.mem_per_tres or ""
  local per_gpu = amounts.per_gpu(per_tres)
  local per_node, per_cpu = amounts.mib(record.min_mem_per_node), amounts.mib(record.min_mem_per_cpu)
  if per_gpu and per_tres:find("^gres") then
    return { mib_per_gpu = per_gpu }
  elseif per_node and per_node > 0 then
    return { mib_per_node = per_node }
  elseif per_cpu and per_cpu ~= (policy.default_mib or {}).per_cpu then
    return { mib_per_cpu = per_cpu }
  end
  local _, in_all = amounts.total_host(record.tres_fmt_req_str or "")
  local defaults = policy.default_mib or {}
  if per_node == 0 and (in_all or 0) > 0 and (defaults.per_cpu or defaults.per_node) then
    return { mib_of_fewest = in_all } -- --mem=0: without a request, one of these defaults would be in the record
  end
  return { mib_per_cpu = not per_gpu and per_cpu or nil, mib_per_gpu = per_gpu, mib_in_all = in_all }
end

-- Returns the size of a job in slurm.jobs: its allocation if it is running, otherwise its request. Slurm does not
-- update the printed total of a pending job when the job is updated, so this total is used only for forms that require
-- the number of tasks or sockets. `whole_nodes` means that the job is exclusive; no field of its record shows this.
function size.of_record(record, running, whole_nodes)
  local partitions = record.partition or ""
  local request = {
    per_job = record.tres_per_job,
    per_node = record.tres_per_node,
    per_socket = record.tres_per_socket,
    per_task = record.tres_per_task,
    nodes = amounts.u32(record.min_nodes),
    most_nodes = amounts.u32(record.max_nodes),
    cpus = amounts.u32(record.min_cpus),
    node_cpus = amounts.u16(record.pn_min_cpus),
    cpus_per_task = amounts.u16(record.pn_min_cpus), -- a record has no other field for this
    cpus_per_gpu = amounts.per_gpu(record.cpus_per_tres),
    whole_nodes = whole_nodes,
  }
  local given = running and record.tres_fmt_alloc_str or ""
  local allocated = amounts.total_mgpu(given)
  local printed = allocated and given or record.tres_fmt_req_str or ""
  for key, value in pairs(size.memory_of_record(record)) do
    request[key] = value
  end
  local found = size.of_request(request, partitions)
  found.nodes = tonumber(given:match("node=(%d+)")) or found.nodes
  local form = found.form
  if allocated or form == nil or form == "per_task" or form == "per_socket" then
    local total = allocated or amounts.total_mgpu(printed)
    local times = 1
    if form == "per_socket" and not allocated then
      times = amounts.counted_nodes(request) / amounts.least_nodes(request) -- Slurm's total is for least_nodes
    end
    if total then
      found.mgpu = total * times
      found.types = types_of(partitions, function(only)
        return amounts.total_mgpu(printed, only) * times
      end)
    end
  end
  if record.tres_per_task and found.form ~= "per_task" then
    -- GPUs per task may differ in type from GPUs per node, and only Slurm can count them.
    found.mgpu = math.max(found.mgpu, amounts.total_mgpu(printed) or 0)
  end
  local cpus, mib = amounts.total_host(given)
  if cpus == nil and request.cpus == nil then
    cpus, mib = amounts.total_host(record.tres_fmt_req_str or "") -- `slurm-gpu explain` has no other field
  end
  if cpus then
    found.cpus, found.mib = cpus, mib or 0
  else
    found.cpus = cpus_of(request, found, partitions)
    found.mib = mib_of(request, found, partitions)
  end
  return found
end

-- Adds the amounts of pending jobs, which also count in sums over pending jobs only.
function size.add_pending(vector)
  if size.counts_pending then
    vector.pend_jobs, vector.pend_mgpu = vector.jobs, vector.mgpu
    for kind in pairs(size.watched) do
      vector["pend_mgpu:" .. kind] = vector["mgpu:" .. kind]
    end
  end
end

-- Returns the amounts of `tasks` jobs of a size, by measure.
function size.vector(found, tasks, is_pending)
  local vector = { jobs = tasks, mgpu = found.mgpu * tasks, cpus = found.cpus * tasks, mib = found.mib * tasks }
  for kind, mgpu in pairs(found.types) do
    vector["mgpu:" .. kind] = mgpu * tasks
  end
  if is_pending then
    size.add_pending(vector)
  end
  return vector
end

return size
