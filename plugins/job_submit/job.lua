-- requires: amounts, conditions, fit, hosts, least, nodes, noted, reading, size, update
-- Reads the request from job_desc, the partitions and, for an update, the job's record. Adds to job: uid user account
-- qos partition kind tasks array is_array unreadable request size mgpu form writes bundle walltime_s walltime_from
-- command asked_whole_nodes notes_whole_nodes. An update also gets `was` (the earlier size) and `past`. If a rule has
-- `at: run`, begin_s (the earliest start) and moves_begin are added. If a rule has conditions on names, `name` is added.
-- If a rule has a minimum, least.lua adds more.
local policy, lib = ...
local amounts = lib.amounts
local job_module = {}

local function text(value)
  return type(value) == "string" and value ~= "" and value or nil
end

-- Returns the time limit, in seconds, of a job without --time, and the partition that sets it. The longest default
-- counts, since the job may start in any of its partitions.
function job_module.default_walltime(parts, names)
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

-- Returns whether the job is exclusive: Slurm gives an exclusive job all GPUs and CPUs of its nodes, requested or not.
-- The second result is whether only the job's own request makes it exclusive.
local function whole_nodes(shared, parts, names)
  local every, any = names ~= "", false
  for name in string.gmatch(names, "[^,]+") do
    local exclusive = parts[name] ~= nil and parts[name].max_share == 0
    every, any = every and exclusive, any or exclusive
  end
  return names ~= "" and (shared == 0 or every), shared == 0 and not any
end

-- Whether a rule distinguishes jobs with and without a script. If not, the script is not read, because reading copies
-- it.
local kinds_matter = false
-- Whether a rule depends on when a job may run.
local runs_matter = false
for _, rule in ipairs(policy.rules) do
  kinds_matter = kinds_matter or rule.kind ~= nil
  runs_matter = runs_matter or (rule.when ~= nil and rule.when.run == true)
end

-- Returns "interactive" for a new job without a script if a rule distinguishes such jobs, otherwise "batch". Only the
-- first component of a het job has the script; Slurm submits the other components directly after it.
function job_module.kind_of(desc, state)
  if not kinds_matter then
    return "batch"
  end
  local uid = desc.user_id
  local offset = amounts.u32(desc.het_job_offset)
  if offset and offset > 0 and state.het_kind[uid] then
    return state.het_kind[uid]
  end
  local kind = text(desc.script) and "batch" or "interactive"
  state.het_kind[uid] = offset and kind or nil
  return kind
end

-- Returns the command that submitted a job without a script; nil if unclear. On Slurm 22.05, salloc sends no program.
-- On 24.11 it does, but names the job "interactive" by default; srun names the job after its program.
local function interactive_command(desc)
  local name = text(desc.name)
  if desc.argc == 0 or name == "interactive" then
    return "salloc"
  end
  local program = type(desc.argv) == "table" and text(desc.argv[0])
  if name == nil or not program or name == program:match("[^/]*$") then
    return "srun"
  end
  return nil
end

-- Returns the user's QOS if there is only one; else nil. Slurm assigns this QOS to a job without a QOS if the user has
-- no default QOS. From 24.11 on, job_desc contains this QOS.
local function only_qos(desc)
  local names = text(desc.assoc_qos)
  return names and not names:find(",", 1, true) and names or nil
end

local function lists(names, name)
  return ("," .. names .. ","):find("," .. name .. ",", 1, true) ~= nil
end

-- Whether a partition that allows and denies these names is open to a name; true if the name is unknown.
local function is_open(allowed, denied, name)
  allowed, denied = text(allowed), text(denied)
  if name == "" or name:find(",", 1, true) then
    return true
  end
  return not (allowed and allowed ~= "ALL" and not lists(allowed:lower(), name))
    and not (denied and lists(denied:lower(), name))
end

-- Whether a partition exists, accepts jobs, and is open to the job's user, account and QOS. Slurm passes the script
-- only partitions whose AllowGroups and RootOnly admit the user.
function job_module.may_use_partition(job, name)
  local part = job.parts and job.parts[name]
  if part == nil or type(part.state_up) == "number" and part.state_up % 2 == 0 then
    return false
  end
  return is_open(part.allow_accounts, part.deny_accounts, job.account)
    and is_open(part.allow_qos, part.deny_qos, job.qos)
end

-- Whether the user may use a QOS; true if Slurm does not show the user's QOS, as before 24.11.
function job_module.may_use_qos(job, name)
  local names = text(job.desc.assoc_qos)
  return names == nil or ("," .. names .. ","):find("," .. name .. ",", 1, true) ~= nil
end

-- Returns the number of nodes that a node list and the counts in a constraint such as [a*1&b*2] require; 0 for none.
-- sbatch also writes this number to min_nodes; other clients do not. The second result is a node list that cannot be
-- parsed.
local function named_nodes(desc)
  local list, counts = text(desc.req_nodes), text(desc.features)
  local listed, sum = lib.hosts.set(list or ""), 0
  for count in string.gmatch(counts or "", "%*(%d+)") do
    sum = sum + tonumber(count)
  end
  local names = 0
  for _ in pairs(listed or {}) do
    names = names + 1
  end
  return math.max(names, sum), not listed and list or nil
end

-- Runs the stage: adds the fields that are listed above.
function job_module.run(job, state)
  local desc, record, parts = job.desc, job.record or {}, job.parts or {}
  -- The job_desc of an update has only the fields that change; the other fields come from the record.
  local function merged(name)
    return text(desc[name]) or text(record[name])
  end
  local function number(name)
    return amounts.u32(desc[name]) or amounts.u32(record[name])
  end
  -- For each field that is read, Slurm searches a hundred names. A field that matters only if another field is set is
  -- therefore read only in that case.
  local per_socket, tasks = merged("tres_per_socket"), amounts.u32(desc.num_tasks)
  tasks = tasks ~= 0 and tasks or nil

  job.uid = job.record and record.user_id or desc.user_id
  job.user = text(desc.user_name)
  -- Returns the command that the user typed; nil if unclear. Called only for messages, because reading the script
  -- copies it.
  job.command = function()
    if text(desc.script) then
      return "sbatch"
    end
    return interactive_command(desc)
  end
  job.account = string.lower(merged("account") or text(desc.default_account) or "")
  local qos = text(desc.qos) or (job.record and text(lib.noted.qos_of(record, record.job_state % 256)))
  job.qos = string.lower(qos or text(desc.default_qos) or only_qos(desc) or "normal")
  job.name = lib.conditions.read_names and (merged("name") or "") or nil
  job.partition = merged("partition") or lib.reading.default_partition(parts) or ""
  job.array = text(desc.array_inx)
  job.is_array = job.array ~= nil
  job.tasks = 1
  if job.record then
    local count = amounts.u32(record.array_task_cnt)
    job.tasks = count ~= nil and count > 0 and count or 1
    job.is_array = job.tasks == count or (amounts.u32(record.array_job_id) or 0) > 0
  elseif job.array then
    job.tasks = amounts.array_tasks(job.array)
    if job.tasks == nil then
      job.tasks, job.unreadable = 1, job.array
    end
  end

  if job.record then
    job.kind = kinds_matter and lib.noted.kind_of(job.record) or "batch"
  else
    job.kind = job.kind or job_module.kind_of(desc, state)
  end

  local least_nodes, unreadable_list = named_nodes(desc)
  job.unreadable = job.unreadable or unreadable_list
  job.request = {
    per_job = merged("tres_per_job"),
    per_node = merged("tres_per_node"),
    per_socket = per_socket,
    per_task = merged("tres_per_task"),
    nodes = least_nodes > 0 and math.max(number("min_nodes") or 1, least_nodes) or number("min_nodes"),
    named_nodes = least_nodes,
    most_nodes = number("max_nodes"),
    tasks = tasks,
    tasks_per_node = amounts.u16(desc.ntasks_per_node),
    sockets = per_socket and amounts.u16(desc.sockets_per_node),
    cpus = number("min_cpus"),
    cpus_per_task = amounts.u16(desc.cpus_per_task) or amounts.u16(record.pn_min_cpus),
    node_cpus = amounts.u16(desc.pn_min_cpus) or amounts.u16(record.pn_min_cpus),
    cpus_per_tres = merged("cpus_per_tres"),
    mem_per_tres = text(desc.mem_per_tres),
    whole_nodes = false,
  }
  local request = job.request
  request.cpus_per_gpu = amounts.per_gpu(request.cpus_per_tres)
  if tasks or not (request.per_job or request.per_node or per_socket or request.per_task) then
    request.tasks_per_gpu = amounts.u16(desc.ntasks_per_tres)
  end
  if job.record and tasks then
    request.cpus = math.max(request.cpus or 0, tasks * amounts.cpus_of_task(request)) -- Slurm raises the CPUs
  end
  if lib.nodes.most(request) > 1 then
    request.tasks_per_core = amounts.u16(desc.ntasks_per_core)
    request.threads_per_core = amounts.u16(desc.threads_per_core)
    request.tasks_per_socket = amounts.u16(desc.ntasks_per_socket)
    request.tasks_per_board = amounts.u16(desc.ntasks_per_board)
  end
  local asked_whole
  if job.record then
    asked_whole = lib.noted.has_whole_nodes(record)
    job.request.whole_nodes = whole_nodes(asked_whole and 0, parts, job.partition)
  else
    local shared = desc.shared
    job.request.whole_nodes, job.asked_whole_nodes = whole_nodes(shared, parts, job.partition)
    job.notes_whole_nodes = shared == 0 and job.request.whole_nodes
  end
  local memory = {
    mib_per_node = amounts.mib(desc.min_mem_per_node),
    mib_per_cpu = amounts.mib(desc.min_mem_per_cpu),
    mib_per_gpu = amounts.per_gpu(job.request.mem_per_tres),
  }
  local had_whole
  if job.record then
    had_whole = whole_nodes(asked_whole and 0, parts, record.partition or "")
    job.was = lib.size.of_record(record, record.job_state % 256 ~= 0, had_whole)
    job.past = lib.update.past(job)
    job.size = lib.update.size(job, parts, memory)
  else
    for key, value in pairs(memory) do
      job.request[key] = value
    end
    job.size = lib.size.of_request(job.request, job.partition, parts)
  end
  job.mgpu, job.form = job.size.mgpu, job.size.form
  job.writes = {}
  job.bundle = lib.fit.bundle_of(job)
  if job.bundle and job.record == nil then
    job.writes = lib.fit.fill(job, job.bundle)
    if next(job.writes) then
      job.size = lib.size.of_request(job.request, job.partition, parts)
    end
  end
  if lib.least.matters then
    lib.least.measure(job, parts, memory, had_whole)
  end

  if runs_matter then
    local begin_s = amounts.u32(desc.begin_time) or 0
    job.begin_s, job.moves_begin = math.max(job.now, begin_s), job.record ~= nil and begin_s > 0
  end
  local minutes = number("time_limit")
  if minutes == 0 then
    minutes = math.huge -- sbatch --time=0 requests no limit
  end
  if minutes then
    job.walltime_s, job.walltime_from = minutes * 60, nil
  else
    job.walltime_s, job.walltime_from = job_module.default_walltime(parts, job.partition)
  end
  if job.past and job.past.walltime_s == nil then
    job.past.walltime_s = job_module.default_walltime(parts, job.past.partition) -- the default differs between partitions
  end
end

return job_module
