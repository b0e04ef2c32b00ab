-- requires: amounts, size, update
-- Computes the amounts that are compared with minimums: the amounts of a job on the fewest nodes that it allows.
local policy, lib = ...
local amounts = lib.amounts
local least = {}

-- Whether a rule has a minimum, or applies only to jobs up to a size.
least.matters = false
for _, rule in ipairs(policy.rules) do
  least.matters = least.matters or (rule.jobs ~= nil and next(rule.jobs.at_most) ~= nil)
  for key in pairs(rule.limits) do
    least.matters = least.matters or key:find("^at_least:") ~= nil
  end
end

-- Returns a request or record with the fewest nodes that it allows.
local function on_fewest(request)
  return setmetatable({ most_nodes = 1, max_nodes = 1 }, { __index = request })
end

-- Returns the size of a job record on the fewest nodes that it allows.
function least.of_record(record, has_started, has_whole_nodes)
  return lib.size.of_record(on_fewest(record), has_started, has_whole_nodes)
end

-- Returns the minimum number of tasks on each node; --ntasks-per-node is the maximum.
local function tasks_on_each(request, nodes)
  local most = request.tasks_per_node or 0
  if most == 0 or nodes == nil then
    return 1
  end
  local tasks = request.tasks or nodes * most
  return math.max(math.min(tasks - (nodes - 1) * most, most), 1)
end

-- Returns the minimum GPUs on each node, in thousandths. A job with GPUs gets at least one on each node.
local function on_each_node(request, partitions)
  local nodes = (request.most_nodes or 0) > 0 and amounts.counted_nodes(request) or nil
  local all = amounts.counted_mgpu(request)
  local found = nodes == 1 and all or math.min(all, 1000)
  local times = {
    per_node = 1,
    per_task = tasks_on_each(request, nodes),
    per_socket = math.max(request.sockets or 1, 1),
  }
  for form, count in pairs(times) do
    found = math.max(found, amounts.requested_mgpu(request[form] or "", count))
  end
  return request.whole_nodes and math.max(found, (lib.size.of_whole_node(partitions))) or found
end

-- Adds to a job: least (a size) and on_each_node; for an update, also was_least and past.on_each_node. `memory` is the
-- memory request of an update; `had_whole` means that the job was exclusive before the update.
function least.measure(job, parts, memory, had_whole)
  local request, record = job.request, job.record
  job.on_each_node = on_each_node(request, job.partition)
  if record == nil then
    job.least = lib.size.of_request(on_fewest(request), job.partition, parts)
    return
  end
  job.past.on_each_node = on_each_node({
    per_job = record.tres_per_job,
    per_node = record.tres_per_node,
    per_socket = record.tres_per_socket,
    per_task = record.tres_per_task,
    nodes = amounts.u32(record.min_nodes),
    most_nodes = amounts.u32(record.max_nodes),
    whole_nodes = had_whole,
  }, job.past.partition)
  job.was_least = least.of_record(record, record.job_state % 256 ~= 0, had_whole)
  local fewest = setmetatable({ request = on_fewest(request), was = job.was_least }, { __index = job })
  job.least = lib.update.size(fewest, parts, memory)
end

return least
