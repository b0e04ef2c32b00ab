-- requires: amounts, shapes, size
-- Lists steps, as smaller.lua does. Each step raises one amount of a job to the enforced minimum, which is in job.room
-- under the key of the limit.
local _, lib = ...
local amounts = lib.amounts

local function up(value)
  return math.ceil(value - 1e-9)
end

local function whole(value)
  return string.format("%.0f", up(value))
end

-- Returns the only GPU item of a request and its form; nil if the request has no item or several items.
local function single_item(request)
  local items, forms, single = lib.shapes.items(request)
  local form = next(items)
  if forms == 1 and single and items[form].name == "gpu" then
    return items[form], form
  end
  return nil
end

local function has_no_item(request)
  local _, forms = lib.shapes.items(request)
  return forms == 0
end

-- Returns options for another number of nodes, and for the tasks that additional nodes need.
local function on_nodes(request, nodes)
  if nodes < (request.nodes or 1) then
    return lib.shapes.fewer_nodes(request, nodes)
  end
  local options, on_each = { "--nodes=" .. whole(nodes) }, request.tasks_per_node or 1
  if request.tasks and (request.tasks_per_node or request.tasks < nodes) then
    options[2] = "--ntasks=" .. whole(math.max(request.tasks, nodes * on_each))
  end
  return options
end

local function more_gpus(job, wrong)
  if wrong["at_least:gpus"] == nil then
    return nil
  end
  local gpus, request, least = job.room["at_least:gpus"] / 1000, job.request, job.least
  if request.tasks_per_gpu and has_no_item(request) then
    return { "--ntasks=" .. whole(up(gpus) * request.tasks_per_gpu) }
  elseif has_no_item(request) then
    return { lib.shapes.option("per_job", {}, up(gpus)) }
  end
  local item, form = single_item(request)
  if item == nil then
    return false
  end
  local times = {
    per_job = 1,
    per_node = least.nodes,
    per_task = least.tasks,
    per_socket = least.nodes * math.max(request.sockets or 1, 1),
  }
  local count, of_node = up(gpus / times[form]), lib.size.of_whole_node(job.partition)
  if form == "per_node" and of_node > 0 and count * 1000 > of_node then
    return on_nodes(request, up(gpus / item.count))
  end
  return { lib.shapes.option(form, item, count) }
end

local function more_gpus_per_node(job, wrong)
  if wrong["at_least:gpus_per_node"] == nil then
    return nil
  end
  local count, request = up(job.room["at_least:gpus_per_node"]), job.request
  if has_no_item(request) and not request.tasks_per_gpu then
    return { lib.shapes.option("per_node", { name = "gpu" }, count) }
  end
  local item, form = single_item(request)
  if form == "per_node" then
    -- Use fewer nodes to keep the number of GPUs, unless that would also reduce the tasks.
    local now = request.nodes or 1
    local nodes = request.tasks_per_node and now or up(item.count * now / count)
    local options = nodes < now and on_nodes(request, nodes) or {}
    options[#options + 1] = lib.shapes.option(form, item, count)
    return options
  elseif form ~= "per_job" then
    return false
  end
  local nodes, most = up(item.count / count), request.most_nodes or 0
  local options = (nodes < (request.nodes or 1) or most > 0 and nodes > most) and on_nodes(request, nodes) or {}
  if nodes * count ~= item.count then
    options[#options + 1] = lib.shapes.option("per_job", item, nodes * count)
  end
  options[#options + 1] = lib.shapes.option("per_node", item, count, true)
  return options
end

local function more_nodes(job, wrong)
  if wrong["at_least:nodes"] == nil then
    return nil
  end
  local nodes = job.room["at_least:nodes"]
  local options = on_nodes(job.request, nodes)
  local item, form = single_item(job.request)
  if form == "per_job" and item.count < nodes then -- each node must have a GPU
    options[#options + 1] = lib.shapes.option(form, item, up(nodes))
  end
  return options
end

local function more_tasks(job, wrong)
  return wrong["at_least:tasks"] and { "--ntasks=" .. whole(job.room["at_least:tasks"]) } or nil
end

-- Returns whether the job requests whole GPUs, and can therefore request CPUs and memory per GPU.
local function requests_gpus(job)
  return job.mgpu > 0 and job.form ~= "whole_nodes" and not lib.size.only_parts(job.request)
end

-- Returns the larger of two minimums, on an amount and on this amount per GPU, and whether the job violates the minimum
-- per GPU; nil if it violates neither.
local function needed(job, wrong, key)
  local of_job, per_gpu = "at_least:" .. key, "at_least:" .. key .. "_per_gpu"
  if wrong[of_job] == nil and wrong[per_gpu] == nil then
    return nil
  end
  return math.max(job.room[of_job] or 0, job.room[per_gpu] or 0), wrong[per_gpu] ~= nil
end

local function more_cpus(job, wrong)
  local cpus, by_gpu = needed(job, wrong, "cpus")
  if cpus == nil then
    return nil
  end
  local request = job.request
  if (request.cpus_per_gpu or by_gpu) and not request.cpus_per_task and requests_gpus(job) then
    return { "--cpus-per-gpu=" .. whole(cpus * 1000 / job.least.mgpu) }
  end
  return not request.cpus_per_gpu and { "--cpus-per-task=" .. whole(cpus / job.least.tasks) }
end

local function more_memory(job, wrong)
  local mib, by_gpu = needed(job, wrong, "memory")
  if mib == nil then
    return nil
  end
  local request, option, each = job.request, "--mem=", mib / job.least.nodes
  if request.mib_per_cpu then
    option, each = "--mem-per-cpu=", mib / job.least.cpus
  elseif (request.mib_per_gpu or by_gpu) and not request.mib_per_node and requests_gpus(job) then
    option, each = "--mem-per-gpu=", mib * 1000 / job.least.mgpu
  end
  return { option .. amounts.format_mib(up(each)) }
end

local function more_time(job, wrong)
  local seconds = wrong["at_least:walltime"] and job.room["at_least:walltime"]
  return seconds and { "--time=" .. amounts.format_time(up(seconds / 60) * 60) } or nil
end

return {
  more_gpus,
  more_gpus_per_node,
  more_nodes,
  more_tasks,
  more_cpus,
  more_memory,
  more_time,
}
