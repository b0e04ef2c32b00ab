-- How a job can be made smaller in one respect, in the form in which it asked: a list of steps, each a pure function
-- of the job (with job.room, the room that the enforced limits leave, by their keys) and of the findings against it by
-- key. A step returns nil where nothing is wrong in its respect, false where nothing can be advised, or options.
local policy, lib = ...
local amounts = lib.amounts

local function unit_mgpu(name)
  if name == "shard" then
    return policy.shards_per_gpu and 1000 / policy.shards_per_gpu or 0
  end
  return name == "mps" and 10 or 1000
end

local function typed(item, count)
  return (item.type and item.type .. ":" or "") .. string.format("%.0f", count)
end

-- Options for at most `cap` thousandths of a GPU asked for per job.
local function shape_per_job(request, cap)
  local items = amounts.parse_tres(request.per_job)
  local count = math.floor(cap / 1000)
  if count < 1 then
    return nil
  end
  local item = #items == 1 and items[1] or {}
  return { "--gpus=" .. typed(item, count) }
end

-- … per node: fewer nodes first, then fewer on one node.
local function shape_per_node(request, cap, room)
  local items = amounts.parse_tres(request.per_node)
  local item = items[1]
  local unit = unit_mgpu(item.name)
  local count = item.name == "shard" and room.shards and math.min(item.count, room.shards) or item.count
  if #items > 1 or unit == 0 then
    return nil
  end
  local options = {}
  local nodes = amounts.counted_nodes(request)
  -- Sums are rounded once, as requested_mgpu does it, so that the advice is never a rounding error too large.
  local function sum(times)
    return math.floor(times * unit + 0.5)
  end
  local wanted = nodes
  while wanted > 1 and sum(count * wanted) > cap do
    wanted = math.min(wanted - 1, math.max(math.floor(cap / (count * unit)), 1))
  end
  while count > 0 and sum(count * wanted) > cap do
    count = math.min(count - 1, math.floor(cap / unit + 0.5))
  end
  if count < 1 then
    return nil
  end
  if wanted < nodes then
    options[#options + 1] = string.format("--nodes=%.0f", wanted)
    if request.tasks and wanted < amounts.least_nodes(request) then
      local tasks = wanted * math.max(request.tasks_per_node or 1, 1)
      options[#options + 1] = string.format("--ntasks=%.0f", math.min(tasks, request.tasks))
    end
  end
  if count < item.count then
    options[#options + 1] = "--gres=" .. item.name .. ":" .. typed(item, count)
  end
  return options
end

-- … per task: fewer tasks first, then fewer GPUs in one task.
local function shape_per_task(request, cap)
  local items = amounts.parse_tres(request.per_task)
  if #items > 1 or items[1].name ~= "gpu" then
    return nil
  end
  local item = items[1]
  local tasks = math.floor(cap / (item.count * 1000))
  local options, count = {}, item.count
  if tasks < 1 then
    tasks, count = 1, math.floor(cap / 1000)
    if count < 1 then
      return nil
    end
    options[1] = "--gpus-per-task=" .. typed(item, count)
  end
  table.insert(options, 1, string.format("--ntasks=%.0f", tasks))
  if request.nodes and request.nodes > tasks then
    table.insert(options, 1, string.format("--nodes=%.0f", tasks))
  end
  return options
end

local SHAPES = { per_job = shape_per_job, per_node = shape_per_node, per_task = shape_per_task }

-- Options for as much of the request as fits `cap`; nil where nothing does.
-- Only a request in a single form can be advised on: a second form would go on standing beside it.
local function shape(job, cap)
  local forms = 0
  for _, form in ipairs({ "per_job", "per_node", "per_task", "per_socket" }) do
    local text = job.request[form]
    if text and #amounts.parse_tres(text) > 0 then
      forms = forms + 1
    end
  end
  local build = SHAPES[job.form]
  if forms ~= 1 or build == nil then
    return nil
  end
  return build(job.request, cap, job.room)
end

local function whole(value)
  return string.format("%.0f", value)
end

-- One of the allowed names, one that the job named itself if there is such; nil where none is known to exist.
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

local function another_partition(job, wrong)
  local finding = wrong.partitions
  if finding == nil then
    return nil
  end
  local named = {}
  for name in string.gmatch(job.partition, "[^,]+") do
    named[#named + 1] = name
  end
  local name = pick(finding.allowed, named, function(candidate)
    return job.parts and job.parts[candidate] ~= nil
  end)
  return name and { "--partition=" .. name } or false
end

local RETYPED = { per_job = "--gpus=", per_node = "--gres=gpu:", per_task = "--gpus-per-task=" }

local function another_type(job, wrong)
  if wrong.gpu_types == nil then
    return nil
  end
  local items = amounts.parse_tres(job.request[job.form] or "")
  local option = RETYPED[job.form]
  local kind = pick(wrong.gpu_types.allowed, {}, function(candidate)
    return lib.size.may_be(candidate, job.partition)
  end)
  if option == nil or kind == nil or #items ~= 1 or items[1].name ~= "gpu" then
    return false
  end
  return { option .. kind .. ":" .. whole(items[1].count) }
end

-- The GPUs that one task of the job may have.
local function gpu_cap(job)
  local room = job.room
  local cap = math.min(room.gpus or math.huge, room.gpus_total or math.huge)
  for kind, mgpu in pairs(job.size.types) do
    if mgpu > 0 then
      cap = math.min(cap, room["gpus:" .. kind] or math.huge, room["gpus_total:" .. kind] or math.huge)
    end
  end
  return cap
end

local function fewer_gpus(job, wrong)
  local cap = gpu_cap(job)
  if job.mgpu > 0 and (job.mgpu > cap or wrong.shards) then
    return shape(job, math.min(cap, job.mgpu)) or false
  end
  return nil
end

local function fewer_nodes(job)
  local most, request = job.room.nodes, job.request
  if most == nil or job.size.nodes <= most then
    return nil
  elseif most < 1 then
    return false
  end
  local options = { "--nodes=" .. whole(most) }
  if request.tasks and request.tasks_per_node and request.tasks > most * request.tasks_per_node then
    options[2] = "--ntasks=" .. whole(most * request.tasks_per_node)
  end
  return options
end

local function fewer_tasks(job)
  local most = job.room.tasks
  if most == nil or job.size.tasks <= most then
    return nil
  end
  return most >= job.size.nodes and most >= 1 and { "--ntasks=" .. whole(most) } or false
end

-- The least of these limits' room.
local function least(room, ...)
  local cap = math.huge
  for _, key in ipairs({ ... }) do
    cap = math.min(cap, room[key] or math.huge)
  end
  return cap
end

local function fewer_cpus(job)
  local cap, request = least(job.room, "cpus", "cpus_per_gpu", "cpus_total"), job.request
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
  local cap, request, size = least(job.room, "memory", "memory_per_gpu", "memory_total"), job.request, job.size
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

-- Sums that each task of an array adds to, and the keys of their limits.
local function fewer_array_tasks(job)
  local room = job.room
  local most = least(room, "array_tasks", "jobs_total")
  local each = { gpus_total = job.mgpu, cpus_total = job.size.cpus, memory_total = job.size.mib }
  for kind, mgpu in pairs(job.size.types) do
    each["gpus_total:" .. kind] = mgpu
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
  for _, period in ipairs({ "day", "week", "month" }) do
    local hours = job.room["gpu_hours:" .. period]
    if hours and job.mgpu > 0 then
      most = math.min(most, hours * 3600 * 1000 / (job.mgpu * job.tasks))
    end
  end
  if time <= most then
    return nil
  end
  local minutes = math.floor(most / 60)
  return minutes >= 1 and { "--time=" .. amounts.format_time(minutes * 60) } or false
end

return {
  another_partition,
  another_type,
  fewer_gpus,
  fewer_nodes,
  fewer_tasks,
  fewer_cpus,
  less_memory,
  fewer_array_tasks,
  less_time,
}
