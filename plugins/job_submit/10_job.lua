-- What is asked for: the only module that reads job_desc, the partitions and, for an update, the job's record.
-- Adds to job: uid account qos partition tasks array mgpu form request walltime_s walltime_from resized
-- command whole_nodes.
local policy, lib = ...
local amounts = lib.amounts

local function text(value)
  return type(value) == "string" and value ~= "" and value or nil
end

-- The partition that a job without one gets; nil where there is none.
local function default_partition(parts)
  for name, part in pairs(parts) do
    local flag = part.flag_default
    if flag == 1 or flag == true then
      return name
    end
  end
  return nil
end

-- Seconds that a job without --time gets: the longest among its partitions, since it may start in any.
local function default_walltime(parts, names)
  local longest, from
  for name in string.gmatch(names, "[^,]+") do
    local part = parts[name]
    if part then
      local minutes = amounts.u32(part.default_time) or amounts.u32(part.max_time) or math.huge
      if longest == nil or minutes > longest then
        longest, from = minutes, name
      end
    end
  end
  return longest and longest * 60, from
end

-- GPUs that each node brings along at least if the job has its nodes to itself; 0 if it has not. Slurm gives
-- an exclusive job every GPU of its nodes, asked for or not.
local function gpus_of_whole_node(shared, parts, names)
  local least
  for name in string.gmatch(names, "[^,]+") do
    local gpus = policy.partition_gpus and policy.partition_gpus[name] or 0
    if gpus > 0 and shared ~= 0 and not (parts[name] and parts[name].max_share == 0) then
      gpus = 0
    end
    least = math.min(least or gpus, gpus)
  end
  return least or 0
end

-- Whether the job asked for whole nodes itself, and would not have them without.
local function asked_for_whole_nodes(shared, parts, names)
  local asked = shared == 0
  for name in string.gmatch(names, "[^,]+") do
    asked = asked and not (parts[name] and parts[name].max_share == 0)
  end
  return asked
end

-- By the number of arguments that a job without a script comes with: srun names its program, salloc none.
local COMMANDS = { [0] = "salloc", [1] = "srun" }

return function(job)
  local desc, record, parts = job.desc, job.record or {}, job.parts or {}
  -- An update names only what changes; the rest is as the job was.
  local function merged(name)
    return text(desc[name]) or text(record[name])
  end
  local function number(name)
    return amounts.u32(desc[name]) or amounts.u32(record[name])
  end

  job.uid = job.record and record.user_id or desc.user_id
  -- What the user typed, nil where it cannot be told. Asked only for the wording of a refusal: reading the
  -- script copies the whole of it.
  job.command = function()
    if text(desc.script) then
      return "sbatch"
    end
    return COMMANDS[desc.argc]
  end
  job.account = string.lower(merged("account") or text(desc.default_account) or "")
  job.qos = string.lower(merged("qos") or text(desc.default_qos) or "normal")
  job.partition = merged("partition") or default_partition(parts) or ""
  job.array = text(desc.array_inx)
  job.tasks = 1
  if job.record then
    local count = amounts.u32(record.array_task_cnt)
    job.tasks = count and count > 0 and count or 1
  elseif job.array then
    job.tasks = amounts.array_tasks(job.array)
  end

  job.request = {
    per_job = merged("tres_per_job"),
    per_node = merged("tres_per_node"),
    per_socket = merged("tres_per_socket"),
    per_task = merged("tres_per_task"),
    nodes = number("min_nodes"),
    most_nodes = number("max_nodes"),
    tasks = amounts.u32(desc.num_tasks),
    tasks_per_node = amounts.u16(desc.ntasks_per_node),
    tasks_per_gpu = amounts.u16(desc.ntasks_per_tres),
    sockets = amounts.u16(desc.sockets_per_node),
  }
  -- Whether an update touches the size at all.
  job.resized = job.record == nil
    or text(desc.tres_per_job)
    or text(desc.tres_per_node)
    or text(desc.tres_per_socket)
    or text(desc.tres_per_task)
    or amounts.u32(desc.min_nodes)
    or amounts.u32(desc.max_nodes)
    or amounts.u32(desc.num_tasks)
  if job.request.tasks == 0 then
    job.request.tasks = nil
  end
  job.mgpu, job.form = amounts.counted_mgpu(job.request)
  if job.record == nil then
    local gpus = gpus_of_whole_node(desc.shared, parts, job.partition)
    if gpus > 0 then
      job.whole_nodes = {
        mgpu_each = gpus * 1000,
        asked = asked_for_whole_nodes(desc.shared, parts, job.partition),
        mgpu_without = job.mgpu,
        form_without = job.form,
      }
    end
    local whole = gpus * amounts.counted_nodes(job.request) * 1000
    if whole > job.mgpu then
      job.mgpu, job.form = whole, "whole_nodes"
    end
  end

  local minutes = number("time_limit")
  if minutes == 0 then
    minutes = math.huge -- sbatch --time=0 asks for no limit
  end
  if minutes then
    job.walltime_s = minutes * 60
  else
    job.walltime_s, job.walltime_from = default_walltime(parts, job.partition)
  end
end
