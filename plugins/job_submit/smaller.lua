-- requires: amounts, fit, job, measures, shapes, size
-- A list of steps, each of which reduces one aspect of a job, in the form that the job used. A step is a pure function
-- of the job and its findings by key; job.room has, by key of the limit, the amounts that enforced limits leave. A step
-- returns nil if its aspect violates no limit, false if no option helps, or a list of options. The second result, if
-- any, is an option that the command must not have.
local policy, lib = ...
local amounts = lib.amounts

local function whole(value)
  return string.format("%.0f", value)
end

-- Picks an allowed name, preferably one that the job named; nil if no allowed name is known to exist.
local function pick(allowed, named, exists)
  local names = {}
  for name in pairs(allowed) do
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(named) do
    if allowed[name] then
      return name
    end
  end
  for _, name in ipairs(names) do
    if exists(name) then
      return name
    end
  end
  return nil
end

-- Returns a step that names an allowed partition or QOS. `key` is the key of the limit, `field` the field of the job.
local function another(key, field, exists)
  return function(job, wrong)
    local finding = wrong[key]
    if finding == nil then
      return nil
    end
    local named = {}
    for name in string.gmatch(job[field], "[^,]+") do
      named[#named + 1] = name
    end
    local name = pick(finding.names, named, function(candidate)
      return exists(job, candidate)
    end)
    return name and { "--" .. field .. "=" .. name } or false
  end
end

-- The GPU types of partitions, as a set.
local function types_of(partitions)
  local types = {}
  for name in string.gmatch(partitions, "[^,]+") do
    for kind in pairs((policy.partition_gpu_types or {})[name] or {}) do
      types[kind] = true
    end
  end
  return types
end

-- Returns the smallest amount that these limits leave.
local function least(room, ...)
  local cap = math.huge
  for _, key in ipairs({ ... }) do
    cap = math.min(cap, room[key] or math.huge)
  end
  return cap
end

-- Returns the maximum number of GPUs for the job or for one array task of it, in thousandths.
local function gpu_cap(job)
  local room = job.room
  local cap = least(room, "gpus", "gpus_total", "gpus_running", "gpus_pending")
  for kind, mgpu in pairs(job.size.types) do
    if mgpu > 0 then
      cap = math.min(cap, least(room, "gpus:" .. kind, "gpus_total:" .. kind, "gpus_running:" .. kind))
      cap = math.min(cap, least(room, "gpus_pending:" .. kind))
    end
  end
  return cap
end

-- Returns the GPU-hours that the limits on this type leave for the job.
local function hours_left(job, kind)
  local least_hours = math.huge
  for key, left in pairs(job.room) do
    local limit, _, gpu_type = lib.measures.parts_of(key)
    if limit == "gpu_hours" and gpu_type == kind then
      least_hours = math.min(least_hours, left)
    end
  end
  return least_hours
end

-- Returns two numbers by which types are compared. The first is the number of GPUs of this type, in thousandths, that
-- the job could use for its whole time limit; 0 for less than one GPU. The second is the number of GPU-hours that the
-- job could use. Limits on running jobs count only GPUs whose type a job names.
local function rank_of(job, kind, is_named)
  local most = least(job.room, "gpus:" .. kind, "gpus_total:" .. kind, "gpus_pending:" .. kind)
  most = is_named and math.min(most, least(job.room, "gpus_running:" .. kind)) or most
  local hours, needed = hours_left(job, kind), job.tasks * (job.walltime_s or 0) / 3600
  local by_hours = hours < math.huge and needed > 0 and 1000 * hours / needed or math.huge
  local whole_time = math.min(most, by_hours, job.mgpu)
  return whole_time >= 1000 and whole_time or 0, most >= 1000 and hours or 0
end

-- Returns the types in this set that have the highest rank, and their rank.
local function best_of(job, kinds)
  local names, most, most_hours = {}, 0, 0
  for kind in pairs(kinds) do
    local mgpu, hours = rank_of(job, kind, true)
    if mgpu > most or (mgpu == most and hours > most_hours) then
      names, most, most_hours = {}, mgpu, hours
    end
    names[kind] = (mgpu > 0 or hours > 0) and mgpu == most and (mgpu > 0 or hours == most_hours) or nil
  end
  return names, most, most_hours
end

-- GPUs without a type count for each type that they may have. If the limit on one of these types is too low, returns
-- the set of types whose limits leave the most GPUs or, if none leaves a GPU for the whole time, the most hours. Returns
-- {} if a request without a type leaves as much.
local function types_with_room(job)
  for _, item in pairs(lib.shapes.items(job.request)) do
    if item.type then
      return {}
    end
  end
  local lacks, most, most_hours = false, gpu_cap(job), math.huge
  for kind, mgpu in pairs(job.size.types) do
    if mgpu > 0 then
      local whole_time, hours = rank_of(job, kind, false)
      lacks = lacks or whole_time < mgpu
      most, most_hours = math.min(most, whole_time), math.min(most_hours, hours)
    end
  end
  local names, mgpu, hours = best_of(job, types_of(job.partition))
  local better = mgpu > math.max(most, 999) or (mgpu == 0 and most < 1000 and hours > most_hours)
  return lacks and better and names or {}
end

-- Returns options that give all GPUs of the job this type; nil if there are no such options.
local function of_type(job, kind)
  local items, forms, single = lib.shapes.items(job.request)
  if forms == 0 or not single then
    return nil
  end
  local options = {}
  for form, item in pairs(items) do
    if item.name ~= "gpu" then
      return nil
    end
    options[#options + 1] = lib.shapes.option(form, { name = "gpu", type = kind }, item.count, forms > 1)
  end
  table.sort(options, function(one, other)
    if #one ~= #other then
      return #one < #other
    end
    return one < other
  end)
  return options
end

local function another_type(job, wrong)
  local function may_be(kind)
    return lib.size.may_be(kind, job.partition)
  end
  local option, with_room = wrong["option:gpu_type"], types_with_room(job)
  if wrong.gpu_types or option and option.limit == "required" then
    local allowed = wrong.gpu_types and wrong.gpu_types.names or next(with_room) and with_room or types_of(job.partition)
    local kind = pick(allowed, lib.fit.named_types(job.request), may_be)
    return kind and of_type(job, kind) or false
  end
  local kind = pick(with_room, {}, may_be)
  return kind and of_type(job, kind) or nil
end

-- Reduces the nodes of an exclusive job, or removes --exclusive if fewer nodes do not help.
local function fewer_whole_nodes(job, wrong)
  local request, size, cap = job.request, job.size, gpu_cap(job)
  local mgpu_each, cpus_each = lib.size.of_whole_node(job.partition)
  local cpu_cap, per_gpu = least(job.room, "cpus", "cpus_total", "cpus_running"), least(job.room, "cpus_per_gpu")
  local too_many_gpus = mgpu_each > 0 and size.mgpu > cap
  local too_many_each = wrong.gpus_per_node ~= nil and size.form == "whole_nodes"
  local cpus = size.nodes * cpus_each
  local too_many_cpus = cpus > math.min(cpu_cap, per_gpu)
  if not request.whole_nodes or not (too_many_gpus or too_many_cpus or too_many_each) then
    return nil
  end
  local among_others = setmetatable({ whole_nodes = false }, { __index = request })
  local shared = lib.size.of_request(among_others, job.partition, job.parts)
  if (shared.form == nil or shared.form == "per_node") and cpus <= per_gpu and not too_many_each then
    local nodes = size.nodes
    if too_many_gpus then
      nodes = math.min(nodes, math.floor(cap / math.ceil(size.mgpu / size.nodes)))
    end
    if too_many_cpus then
      nodes = math.min(nodes, math.floor(cpu_cap / cpus_each))
    end
    if nodes >= 1 then
      return lib.shapes.fewer_nodes(request, nodes)
    end
  end
  if job.fields and job.fields.shared then
    -- A rule made the job exclusive, so only a smaller request helps.
    return shared.form and lib.shapes.fit(request, shared.form, math.min(cap, shared.mgpu), job.room) or false
  elseif not job.asked_whole_nodes then
    return false
  end
  -- A job that got GPUs only because its nodes were exclusive must now request GPUs.
  local instead = shared.form == nil and lib.shapes.per_job(request, math.min(cap, size.mgpu))
  return instead or {}, "--exclusive"
end

local function fewer_gpus(job, wrong)
  local cap = gpu_cap(job)
  if job.mgpu > 0 and (job.mgpu > cap or wrong.shards) then
    return lib.shapes.fit(job.request, job.form, math.min(cap, job.mgpu), job.room) or false
  end
  return nil
end

-- Returns options for the GPUs of at most `most` nodes or tasks (`form`), if the job requests GPUs both per job and
-- in this form; otherwise nil.
local function gpus_of(job, form, most)
  local items = lib.shapes.items(job.request)
  if items.per_job == nil or items[form] == nil then
    return nil
  end
  return lib.shapes.fit(job.request, job.form, math.min(job.mgpu, most * items[form].count * 1000), job.room)
end

local function fewer_gpus_per_node(job)
  local most, request = job.room.gpus_per_node, job.request
  if most == nil or lib.size.gpus_per_node(job.size) <= most then
    return nil
  end
  local _, forms = lib.shapes.items(request)
  if job.form == "per_node" and forms == 1 then -- this keeps the number of nodes
    request = setmetatable({ nodes = 1, most_nodes = 1, tasks = 1, named_nodes = 1 }, { __index = request })
  end
  return lib.shapes.fit(request, job.form, most * 1000, job.room) or false
end

local function fewer_nodes(job)
  local most = least(job.room, "nodes", "nodes_running")
  if job.size.nodes <= most then
    return nil
  end
  return most >= 1 and (gpus_of(job, "per_node", most) or lib.shapes.fewer_nodes(job.request, most)) or false
end

local function fewer_tasks(job)
  local most = job.room.tasks
  if most == nil or job.size.tasks <= most then
    return nil
  end
  if most < job.size.nodes or most < 1 then
    return false
  end
  return gpus_of(job, "per_task", most) or { "--ntasks=" .. whole(most) }
end

local function fewer_cpus(job)
  local cap, request = least(job.room, "cpus", "cpus_per_gpu", "cpus_total", "cpus_running"), job.request
  if job.size.cpus <= cap then
    return nil
  end
  if request.cpus_per_gpu and job.mgpu > 0 and not job.writes.cpus_per_tres then
    local each = math.floor(cap * 1000 / job.mgpu)
    return each >= 1 and { "--cpus-per-gpu=" .. whole(each) } or false
  end
  local each = math.floor(cap / job.size.tasks)
  if each >= 1 then
    return { "--cpus-per-task=" .. whole(each) }
  end
  return cap >= job.size.nodes and cap >= 1 and { "--ntasks=" .. whole(cap) } or false
end

local function less_memory(job)
  local cap, request, size = least(job.room, "memory", "memory_per_gpu", "memory_total", "memory_running"), job.request, job.size
  if size.mib <= cap then
    return nil
  end
  local option, each = "--mem=", math.floor(cap / size.nodes)
  if request.mib_per_cpu then
    option, each = "--mem-per-cpu=", math.floor(cap / size.cpus)
  elseif request.mib_per_gpu and not job.writes.mem_per_tres then
    option, each = "--mem-per-gpu=", math.floor(cap * 1000 / job.mgpu)
  end
  return each >= 1 and { option .. amounts.format_mib(each) } or false
end

-- Reduces the tasks of an array, because each task adds to the sums of these limits.
local function fewer_array_tasks(job)
  local room = job.room
  local most = least(room, "array_tasks", "jobs_total", "jobs_pending")
  local each = { gpus_total = job.mgpu, gpus_pending = job.mgpu, cpus_total = job.size.cpus, memory_total = job.size.mib }
  for kind, mgpu in pairs(job.size.types) do
    each["gpus_total:" .. kind], each["gpus_pending:" .. kind] = mgpu, mgpu
  end
  for key, one in pairs(each) do
    if room[key] and one > 0 then
      most = math.min(most, room[key] / one)
    end
  end
  most = math.floor(most)
  if job.tasks <= most then
    return nil
  end
  return most >= 1 and job.array and { "--array=" .. (amounts.first_tasks(job.array, most) or "0") } or false
end

local function less_time(job)
  local most, time = job.room.walltime or math.huge, job.walltime_s or 0
  for _, kind in ipairs(lib.measures.hours) do
    for key, left in pairs(job.room) do
      local limit, period, gpu_type = lib.measures.parts_of(key)
      local hourly = limit == kind.key and kind.hourly(job.size, job, gpu_type) or 0
      if hourly > 0 then
        most = math.min(most, left / (period and job.tasks or 1) * 3600 / hourly)
      end
    end
  end
  if time <= most then
    return nil
  end
  local minutes = math.floor(most / 60)
  return minutes >= 1 and { "--time=" .. amounts.format_time(minutes * 60) } or false
end

return {
  another("partitions", "partition", lib.job.may_use_partition),
  another("qos", "qos", lib.job.may_use_qos),
  another_type,
  fewer_whole_nodes,
  fewer_gpus,
  fewer_gpus_per_node,
  fewer_nodes,
  fewer_tasks,
  fewer_cpus,
  less_memory,
  fewer_array_tasks,
  less_time,
}
