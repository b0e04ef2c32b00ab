-- A smaller request in the form in which the job asked: options for as much of it as fits. Pure functions.
local policy, lib = ...
local amounts = lib.amounts
local shapes = {}

local function unit_mgpu(name)
  if name == "shard" then
    return policy.shards_per_gpu and 1000 / policy.shards_per_gpu or 0
  end
  return name == "mps" and 10 or 1000
end

local function typed(item, count)
  return (item.type and item.type .. ":" or "") .. string.format("%.0f", count)
end

-- Options for so many nodes, and for the tasks that still fit on them.
function shapes.fewer_nodes(request, wanted)
  local options = { string.format("--nodes=%.0f", wanted) }
  local tasks, per_node = request.tasks, request.tasks_per_node
  if tasks and per_node and per_node > 0 and tasks > wanted * per_node then
    options[2] = string.format("--ntasks=%.0f", wanted * per_node)
  end
  return options
end

-- Options for at most `cap` thousandths of a GPU asked for per job, on no more nodes than there are GPUs; nil
-- where not even one fits.
function shapes.per_job(request, cap)
  local items = amounts.parse_tres(request.per_job or "")
  local count = math.floor(cap / 1000)
  if count < 1 then
    return nil
  end
  local options = amounts.least_nodes(request) > count and shapes.fewer_nodes(request, count) or {}
  options[#options + 1] = "--gpus=" .. typed(#items == 1 and items[1] or {}, count)
  return options
end

-- … per node: fewer nodes first, then fewer on one node.
local function per_node(request, cap, room)
  local items = amounts.parse_tres(request.per_node)
  local item = items[1]
  local unit = unit_mgpu(item.name)
  local count = item.name == "shard" and room.shards and math.min(item.count, room.shards) or item.count
  if #items > 1 or unit == 0 then
    return nil
  end
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
  local options = wanted < nodes and shapes.fewer_nodes(request, wanted) or {}
  if count < item.count then
    options[#options + 1] = "--gres=" .. item.name .. ":" .. typed(item, count)
  end
  return options
end

-- … per task: fewer tasks first, then fewer GPUs in one task.
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
    options[1] = "--gpus-per-task=" .. typed(item, count)
  end
  table.insert(options, 1, string.format("--ntasks=%.0f", tasks))
  if request.nodes and request.nodes > tasks then
    table.insert(options, 1, string.format("--nodes=%.0f", tasks))
  end
  return options
end

-- … per socket: fewer nodes first, then fewer GPUs on each socket, then fewer sockets.
local function per_socket(request, cap)
  local items = amounts.parse_tres(request.per_socket)
  if #items > 1 or items[1].name ~= "gpu" then
    return nil
  end
  local item, room = items[1], math.floor(cap / 1000)
  local nodes, sockets = amounts.counted_nodes(request), math.max(request.sockets or 1, 1)
  local wanted = math.min(nodes, math.max(math.floor(room / (sockets * item.count)), 1))
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
    options[#options + 1] = "--gpus-per-socket=" .. typed(item, count)
  end
  return options
end

local SHAPES = { per_job = shapes.per_job, per_node = per_node, per_task = per_task, per_socket = per_socket }

-- Options for as much of a request of this form as fits `cap`, thousandths of a GPU; nil where nothing does.
-- Only a request in a single form can be advised on: a second form would go on standing beside it.
function shapes.fit(request, form, cap, room)
  local forms = 0
  for name in pairs(SHAPES) do
    local text = request[name]
    if text and #amounts.parse_tres(text) > 0 then
      forms = forms + 1
    end
  end
  local build = SHAPES[form]
  if forms ~= 1 or build == nil then
    return nil
  end
  return build(request, cap, room)
end

return shapes
