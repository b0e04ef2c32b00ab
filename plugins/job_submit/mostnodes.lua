-- requires: amounts, measures, nodes, size
-- Sets the maximum number of nodes of a job that sets no maximum itself. Otherwise, Slurm could exceed an enforced
-- limit by using more nodes than were counted.
local _, lib = ...
local amounts = lib.amounts
local mostnodes = {}

local SPREAD_JOB = 256 -- in bitflags

-- Limits that a job could exceed by using more nodes. Slurm itself enforces limits on running jobs.
local KEYS =
  { nodes = true, gpus = true, gpus_total = true, gpus_pending = true, gpu_hours = true, billing_hours = true }

-- Returns whether the key of a limit is in KEYS and its rule refuses or changes jobs over it.
function mostnodes.is_bound(rule, limit)
  return (rule.mode == "enforce" or rule.mode == "fit") and KEYS[limit.key:match("^[^:]+")] or false
end

-- Returns two numbers: the most nodes that Slurm may use for the tasks of a job, and for its tasks and GPUs. Returns
-- nil if the second number does not exceed the counted nodes, if the job sets its own maximum, or if the job already
-- runs.
function mostnodes.possible(job)
  if amounts.most_nodes(job.request) or (job.record and job.record.job_state % 256 ~= 0) then
    return nil
  end
  local flags = job.desc.bitflags
  local spreads = type(flags) == "number" and flags % (2 * SPREAD_JOB) >= SPREAD_JOB
  local possible = spreads and math.huge or lib.nodes.most(job.request)
  local all = job.request.per_job and math.max(possible, job.mgpu / 1000) or possible
  if all <= job.size.nodes then
    return nil
  end
  return possible, all
end

local function set(value)
  return type(value) == "string" and value ~= ""
end

-- Returns whether the job may need more nodes than were counted.
local function is_uncertain(job)
  local desc, _, kinds = job.desc, lib.nodes.needed(job.request, job.partition, job.parts)
  if kinds <= 1 then
    return kinds == 0
  end
  for _, form in ipairs({ "per_job", "per_node", "per_task", "per_socket" }) do
    for _, item in ipairs(amounts.parse_tres(job.request[form] or "")) do
      if item.type then
        return true
      end
    end
  end
  return set(desc.features) or set(desc.req_nodes) or set(desc.exc_nodes) or set(desc.reservation)
end

-- Returns the largest number of nodes on which a job gets only the GPUs that were counted.
local function most_counted(job)
  local request = job.request
  if request.per_node or request.per_socket or request.per_task or request.whole_nodes then
    return job.size.nodes
  end
  local least = math.huge
  for _, item in ipairs(amounts.parse_tres(request.per_job or "")) do
    least = math.min(least, item.count)
  end
  return least < math.huge and math.max(least, job.size.nodes) or job.size.nodes
end

-- Writes max_nodes if necessary. `bounds` is {limit, value, limit, value …}, the limits of rules that apply to the job;
-- `possible` and `all` are the results of mostnodes.possible.
function mostnodes.write(job, bounds, possible, all)
  local size = job.size
  local function with(nodes)
    local wide = setmetatable({ most_nodes = nodes }, { __index = job.request })
    return lib.size.of_request(wide, job.partition, job.parts)
  end
  local most, wide = math.huge, possible > size.nodes and with(possible)
  for index = 1, #bounds, 2 do
    local limit, value = bounds[index], bounds[index + 1]
    local base, part, gpu_type = lib.measures.parts_of(limit.key)
    local kind = not limit.hours and part or gpu_type
    if base == "nodes" then
      most = math.min(most, math.max(value, size.nodes))
    elseif wide then
      local function gpus_of(counted)
        return kind and counted.types[kind] or counted.mgpu
      end
      if gpus_of(wide) > (base == "gpus" and value or gpus_of(size)) and not is_uncertain(job) then
        most = math.min(most, most_counted(job))
      end
    end
  end
  if most < all then
    job.writes.max_nodes = most
    job.sum = most > size.nodes and lib.measures.vector(with(most), job, job.tasks, true) or job.sum
  end
end

return mostnodes
