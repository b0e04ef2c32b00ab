-- requires: amounts, fit, nodes, noted, size
-- Computes a job after an update. The job_desc of an update has only the fields that change. All functions are pure.
local _, lib = ...
local amounts = lib.amounts
local update = {}

local function text(value)
  return type(value) == "string" and value ~= ""
end

-- Returns whether an update may change the job's GPUs, and whether it may change the job's size at all.
local function touched(desc, memory)
  local regrouped = text(desc.tres_per_job)
    or text(desc.tres_per_node)
    or text(desc.tres_per_socket)
    or text(desc.tres_per_task)
    or amounts.u32(desc.min_nodes)
    or amounts.u32(desc.max_nodes)
    or amounts.u32(desc.num_tasks)
    or text(desc.req_nodes)
    or text(desc.features)
  local resized = regrouped
    or next(memory)
    or amounts.u32(desc.min_cpus)
    or amounts.u16(desc.pn_min_cpus)
    or amounts.u16(desc.cpus_per_task)
    or amounts.u16(desc.ntasks_per_node)
    or text(desc.cpus_per_tres)
  return regrouped, resized
end

-- Returns the memory request of a job whose update does not change the memory.
local function memory_of(record, was)
  local memory = lib.size.memory_of_record(record)
  local by_gpu = (memory.mib_per_gpu or 0) * was.mgpu / 1000
  if amounts.mib(record.min_mem_per_node) == 0 and (memory.mib_of_fewest or memory.mib_in_all or 0) > by_gpu then
    return { mib_per_node = 0 } -- all memory of its nodes, even after the update
  end
  memory.mib_in_all, memory.mib_of_fewest = nil, nil -- this total is from before the update
  return memory
end

local function types_of(request)
  return table.concat(lib.fit.named_types(request), ",")
end

-- The job's values before the update, except for its size: {tasks, is_array, walltime_s, account, partition, parts,
-- qos, gpus (as requested), types, name}.
function update.past(job)
  local record = job.record
  local minutes = amounts.u32(record.time_limit)
  local gpus = {
    per_job = record.tres_per_job,
    per_node = record.tres_per_node,
    per_socket = record.tres_per_socket,
    per_task = record.tres_per_task,
  }
  return {
    tasks = job.tasks,
    is_array = job.is_array,
    walltime_s = minutes and minutes * 60,
    account = string.lower(record.account or ""),
    partition = record.partition or "",
    parts = job.parts,
    qos = lib.noted.qos_of(record, record.job_state % 256),
    gpus = gpus,
    types = types_of(gpus),
    name = record.name or "",
  }
end

-- Returns the size of the job after the update; `memory` is the memory request of the update. Also completes
-- job.request.
function update.size(job, parts, memory)
  local was, moves = job.was, job.partition ~= job.past.partition
  local regrouped, resized = touched(job.desc, memory)
  for key, value in pairs(next(memory) and memory or memory_of(job.record, was)) do
    job.request[key] = value
  end
  local found = was
  local request = job.request
  local by_nodes = request.whole_nodes or request.mib_per_node == 0 or lib.nodes.most(request) > 1
  if resized or moves and by_nodes then
    found = lib.size.of_request(job.request, job.partition, parts, not regrouped and was or nil)
  end
  if moves and types_of(job.request) == "" then
    found = lib.size.moved(found, job.partition)
  end
  return found
end

return update
