-- One command that would be accepted, in the form in which the job asked: pure functions of the job and
-- of job.room, the room that the enforced rules leave: {gpus, gpus_total (mgpu), jobs_total, walltime (s), shards}.
local policy, lib = ...
local amounts = lib.amounts

local OPTION = { gpu = "gpu", shard = "shard", mps = "mps" }

local function unit_mgpu(name)
  if name == "shard" then
    return policy.shards_per_gpu and 1000 / policy.shards_per_gpu or 0
  end
  return name == "mps" and 10 or 1000
end

local function typed(item, count)
  return (item.type and item.type .. ":" or "") .. string.format("%.0f", count)
end

-- Options for fewer nodes than the request counts for, and for the tasks that still fit on them.
local function fewer_nodes(options, request, wanted)
  options[#options + 1] = string.format("--nodes=%.0f", wanted)
  if request.tasks and wanted < amounts.least_nodes(request) then
    local tasks = wanted * math.max(request.tasks_per_node or 1, 1)
    options[#options + 1] = string.format("--ntasks=%.0f", math.min(tasks, request.tasks))
  end
end

-- Options for at most `cap` thousandths of a GPU asked for per job, on no more nodes than there are GPUs.
local function shape_per_job(request, cap)
  local items = amounts.parse_tres(request.per_job or "")
  local count = math.floor(cap / 1000)
  if count < 1 then
    return nil
  end
  local options = {}
  if amounts.least_nodes(request) > count then
    fewer_nodes(options, request, count)
  end
  options[#options + 1] = "--gpus=" .. typed(#items == 1 and items[1] or {}, count)
  return options, count * 1000
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
    fewer_nodes(options, request, wanted)
  end
  if count < item.count then
    options[#options + 1] = "--gres=" .. OPTION[item.name] .. ":" .. typed(item, count)
  end
  return options, sum(count * wanted)
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
  return options, tasks * count * 1000
end

-- … per socket: fewer nodes first, then fewer GPUs on each socket, then fewer sockets.
local function shape_per_socket(request, cap)
  local items = amounts.parse_tres(request.per_socket)
  if #items > 1 or items[1].name ~= "gpu" then
    return nil
  end
  local item, room = items[1], math.floor(cap / 1000)
  local nodes, sockets = amounts.counted_nodes(request), math.max(request.sockets or 1, 1)
  local count, options = item.count, {}
  local wanted = math.min(nodes, math.max(math.floor(room / (sockets * count)), 1))
  count = math.min(count, math.max(math.floor(room / (wanted * sockets)), 1))
  local used = math.min(sockets, math.floor(room / (wanted * count)))
  if used < 1 then
    return nil
  end
  if wanted < nodes then
    fewer_nodes(options, request, wanted)
  end
  if used < sockets then
    options[#options + 1] = string.format("--sockets-per-node=%.0f", used)
  end
  if count < item.count then
    options[#options + 1] = "--gpus-per-socket=" .. typed(item, count)
  end
  return options, wanted * used * count * 1000
end

local SHAPES = {
  per_job = shape_per_job,
  per_node = shape_per_node,
  per_task = shape_per_task,
  per_socket = shape_per_socket,
}

-- Options for as much of the request as fits `cap`, and what they come to; nil where nothing does.
-- Only a request in a single form can be advised on: a second form would go on standing beside it.
local function shape(job, form, cap, room)
  local forms = 0
  for _, form in ipairs({ "per_job", "per_node", "per_task", "per_socket" }) do
    local text = job.request[form]
    if text and #amounts.parse_tres(text) > 0 then
      forms = forms + 1
    end
  end
  local build = SHAPES[form]
  if forms ~= 1 or build == nil then
    return nil
  end
  return build(job.request, cap, room)
end

-- For a job that has its nodes to itself: fewer nodes, or, where that does not help, not --exclusive, which the
-- third result names.
local function shape_whole_nodes(job, cap, room)
  local whole, request = job.whole_nodes, job.request
  local counted = amounts.counted_nodes(request)
  if whole.form_without == nil or whole.form_without == "per_node" then
    local each = math.max(whole.mgpu_each, math.ceil(whole.mgpu_without / counted))
    local nodes = math.min(math.floor(cap / each), counted)
    if nodes >= 1 then
      local options = {}
      fewer_nodes(options, request, nodes)
      return options, nodes * each
    end
  end
  if not whole.asked then
    return nil
  elseif whole.mgpu_without > cap then
    local options, size = shape(job, whole.form_without, cap, room)
    return options, size, "--exclusive"
  elseif whole.form_without == nil and cap >= 1000 then
    local options, size = shape_per_job(request, cap)
    return options, size, "--exclusive"
  end
  return {}, whole.mgpu_without, "--exclusive"
end

-- The command, or nil where no smaller job of the same kind would be accepted now; and an option that it must not
-- have.
return function(job)
  local room = job.room
  local options, without = {}, nil
  local tasks = math.min(job.tasks, math.floor(room.jobs_total or math.huge))
  if tasks < 1 then
    return nil
  end
  if job.mgpu > 0 then
    local total = room.gpus_total or math.huge
    local size = job.mgpu
    local cap = math.min(room.gpus or math.huge, total)
    local too_many_shards = false
    for _, finding in ipairs(job.findings) do
      too_many_shards = too_many_shards or finding.key == "shards"
    end
    if size > cap or too_many_shards then
      local chosen
      if job.whole_nodes then
        if too_many_shards then
          return nil
        end
        chosen, size, without = shape_whole_nodes(job, math.min(cap, size), room)
      else
        chosen, size = shape(job, job.form, math.min(cap, size), room)
      end
      if chosen == nil then
        return nil
      end
      options = chosen
    end
    if size * tasks > total then
      tasks = math.floor(total / size)
    end
  end
  if tasks < 1 then
    return nil
  end
  if tasks < job.tasks then
    options[#options + 1] = "--array=" .. (amounts.first_tasks(job.array, tasks) or "0")
  end
  if room.walltime and (job.walltime_s or 0) > room.walltime then
    options[#options + 1] = "--time=" .. amounts.format_time(math.max(math.floor(room.walltime / 60), 1) * 60)
  end
  if #options == 0 and without == nil then
    return nil
  end
  options[#options + 1] = "..."
  local command = job.command()
  return (command and command .. " " or "") .. table.concat(options, " "), without
end
