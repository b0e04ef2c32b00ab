-- requires: amounts
-- Builds options for a smaller request, in the form that the job used. All functions are pure.
local policy, lib = ...
local amounts = lib.amounts
local shapes = {}

local function unit_mgpu(name)
  if name == "shard" then
    return policy.shards_per_gpu and 1000 / policy.shards_per_gpu or 0
  end
  return name == "mps" and 1000 / (policy.mps_per_gpu or 100) or 1000
end

local function typed(item, count)
  return (item.type and item.type .. ":" or "") .. string.format("%.0f", count)
end

local FORMS = { "per_job", "per_node", "per_task", "per_socket" }
local OPTIONS = {
  per_job = "--gpus=",
  per_node = "--gpus-per-node=",
  per_task = "--gpus-per-task=",
  per_socket = "--gpus-per-socket=",
}

-- Returns the option that requests `count` of an item; `several` means that the request also has another form.
function shapes.option(form, item, count, several)
  if form == "per_node" and not several then
    return "--gres=" .. item.name .. ":" .. typed(item, count)
  end
  return OPTIONS[form] .. typed(item, count)
end

-- Returns the first item of each form of a request, the number of forms, and whether every form has only one item.
function shapes.items(request)
  local items, forms, single = {}, 0, true
  for _, form in ipairs(FORMS) do
    local found = amounts.parse_tres(request[form] or "")
    if #found > 0 then
      items[form], forms, single = found[1], forms + 1, single and #found == 1
    end
  end
  return items, forms, single
end

-- Returns options for `wanted` nodes, and for the tasks that still fit on them.
function shapes.fewer_nodes(request, wanted)
  local options = { string.format("--nodes=%.0f", wanted) }
  local tasks, per_node, needed = request.tasks, request.tasks_per_node, request.needed_nodes or 1
  local fitting = tasks or 0
  if per_node and per_node > 0 then
    fitting = math.min(fitting, wanted * per_node)
  end
  if wanted < needed then
    fitting = math.min(fitting, math.floor((tasks or 0) * wanted / needed))
  end
  if tasks and tasks > fitting and fitting >= 1 then
    options[2] = string.format("--ntasks=%.0f", fitting)
  end
  return options
end

-- Returns options for at most `cap` thousandths of a GPU per job, on no more nodes than GPUs; nil if not even one GPU
-- fits.
function shapes.per_job(request, cap)
  local items = amounts.parse_tres(request.per_job or "")
  local count = math.floor(cap / 1000)
  if count < 1 then
    return nil
  end
  local options = amounts.counted_nodes(request) > count and shapes.fewer_nodes(request, count) or {}
  options[#options + 1] = shapes.option("per_job", #items == 1 and items[1] or {}, count)
  return options
end

-- Like `per_job`, for GPUs per node: first reduces the nodes to at least those that the job names, then the GPUs on
-- each node.
local function per_node(request, cap, room)
  local items = amounts.parse_tres(request.per_node)
  local item = items[1]
  local unit = unit_mgpu(item.name)
  local count = item.name == "shard" and room.shards and math.min(item.count, room.shards) or item.count
  if #items > 1 or unit == 0 then
    return nil
  end
  local nodes = amounts.counted_nodes(request)
  -- Each sum is rounded once, as in requested_mgpu; otherwise rounding could make the suggested request too large.
  local function sum(times)
    return math.floor(times * unit + 0.5)
  end
  local wanted, least = nodes, math.max(request.named_nodes, 1)
  while wanted > least and sum(count * wanted) > cap do
    wanted = math.max(math.min(wanted - 1, math.floor(cap / (count * unit))), least)
  end
  while count > 0 and sum(count * wanted) > cap do
    count = math.min(count - 1, math.floor(cap / (wanted * unit) + 0.5))
  end
  if count < 1 then
    return nil
  end
  local options = wanted < nodes and shapes.fewer_nodes(request, wanted) or {}
  if count < item.count then
    options[#options + 1] = shapes.option("per_node", item, count)
  end
  return options
end

-- Like `per_job`, for GPUs per task: first reduces the tasks, then the GPUs of a single task.
local function per_task(request, cap)
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
    options[1] = shapes.option("per_task", item, count)
  end
  table.insert(options, 1, string.format("--ntasks=%.0f", tasks))
  if request.nodes and request.nodes > tasks then
    table.insert(options, 1, string.format("--nodes=%.0f", tasks))
  end
  return options
end

-- Like `per_job`, for GPUs per socket: first reduces the nodes, then the GPUs on each socket, then the sockets.
local function per_socket(request, cap)
  local items = amounts.parse_tres(request.per_socket)
  if #items > 1 or items[1].name ~= "gpu" then
    return nil
  end
  local item, room = items[1], math.floor(cap / 1000)
  local nodes, sockets = amounts.counted_nodes(request), math.max(request.sockets or 1, 1)
  local wanted = math.min(nodes, math.max(math.floor(room / (sockets * item.count)), request.named_nodes, 1))
  local count = math.min(item.count, math.max(math.floor(room / (wanted * sockets)), 1))
  local used = math.min(sockets, math.floor(room / (wanted * count)))
  if used < 1 then
    return nil
  end
  local options = wanted < nodes and shapes.fewer_nodes(request, wanted) or {}
  if used < sockets then
    options[#options + 1] = string.format("--sockets-per-node=%.0f", used)
  end
  if count < item.count then
    options[#options + 1] = shapes.option("per_socket", item, count)
  end
  return options
end

local function tasks_per_node(request)
  local tasks = request.tasks_per_node
  return tasks and tasks > 0 and tasks or nil
end

-- Like `per_job`, for several forms at once. Slurm requires that the forms agree: the job's GPUs are the nodes times
-- the GPUs per node, and the tasks times the GPUs per task. First reduces the nodes or tasks, then the GPUs of a single
-- node or task.
local function in_step(request, cap, items)
  local job, node, task = items.per_job, items.per_node, items.per_task
  local room = math.floor(cap / 1000)
  for _, item in pairs(items) do
    if item.name ~= "gpu" or item.count < 1 then
      return nil
    end
  end
  if items.per_socket or room < 1 then
    return nil
  end
  local each = task and math.min(task.count, room) or 1
  local function even(gpus)
    return gpus - gpus % each
  end
  local options, total, on_node, nodes = {}, nil, nil, nil
  if node then
    on_node = even(math.min(node.count, room))
    if on_node < 1 then
      return nil
    end
    nodes = job and job.count / node.count or amounts.counted_nodes(request)
    if job == nil and task and request.tasks then
      nodes = math.max(nodes, request.tasks * task.count / node.count)
    end
    nodes = math.min(math.ceil(nodes), math.floor(room / on_node))
    total = nodes * on_node
  else
    total = even(math.min(job.count, room))
    nodes = task and total / each or total
  end
  if total < 1 then
    return nil
  end
  local named = job and amounts.least_nodes(request) or amounts.counted_nodes(request)
  if request.nodes and named > nodes then
    options[1] = string.format("--nodes=%.0f", nodes)
  end
  local node_tasks = tasks_per_node(request)
  if node_tasks and task and node then
    if node_tasks ~= on_node / each then
      options[#options + 1] = string.format("--ntasks-per-node=%.0f", on_node / each)
    end
    node_tasks = on_node / each
  end
  local tasks = task and total / each or node and node_tasks and nodes * node_tasks
  if request.tasks and tasks and request.tasks > tasks then
    options[#options + 1] = string.format("--ntasks=%.0f", tasks)
  end
  local counts = { per_job = total, per_node = on_node, per_task = each }
  for _, form in ipairs(FORMS) do
    if items[form] then
      options[#options + 1] = shapes.option(form, items[form], counts[form], true)
    end
  end
  return options
end

-- Returns whether the count of `part` divides the count of `whole`; true if either is missing.
local function divides(part, whole)
  return part == nil or whole == nil or (part.count > 0 and whole.count > 0 and whole.count % part.count == 0)
end

-- Returns whether the forms of a request agree; otherwise Slurm refuses the request.
function shapes.even(request)
  local items, _, single = shapes.items(request)
  if not single then
    return true
  end
  local job, node, task = items.per_job, items.per_node, items.per_task
  if not (divides(node, job) and divides(task, job) and divides(task, node)) then
    return false
  end
  local nodes = job and node and job.count / node.count
  if nodes and (nodes < (request.nodes or 1) or nodes > (request.most_nodes or math.huge)) then
    return false
  end
  if job and task and request.tasks and request.tasks ~= job.count / task.count then
    return false
  end
  local node_tasks = node and task and tasks_per_node(request)
  return not node_tasks or node_tasks == node.count / task.count
end

-- Like `per_job`, for a request with tasks per GPU: reduces the tasks, whose number determines the number of GPUs.
local function tasks_per_gpu(request, cap)
  local gpus = math.floor(cap / 1000)
  return gpus >= 1 and { string.format("--ntasks=%.0f", gpus * request.tasks_per_gpu) } or nil
end

local SHAPES = {
  per_job = shapes.per_job,
  per_node = per_node,
  per_task = per_task,
  per_socket = per_socket,
  tasks_per_gpu = tasks_per_gpu,
}

-- Returns options that reduce a request of this form to at most `cap` thousandths of a GPU; nil if nothing fits or if
-- the form cannot be reduced.
function shapes.fit(request, form, cap, room)
  local items, forms, single = shapes.items(request)
  if forms > 1 then
    return single and in_step(request, cap, items) or nil
  end
  local build = SHAPES[form]
  return build and build(request, cap, room) or nil
end

return shapes
