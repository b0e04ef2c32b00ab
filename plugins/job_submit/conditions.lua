-- requires: fit, size, wildcards
-- Evaluates the conditions of a rule on single jobs (`jobs:`). A rule applies to each job that may meet all its
-- conditions.
local policy, lib = ...
-- read_names: whether a rule has a condition on the names of jobs.
local conditions = { read_names = false }

local NONE = {}

for _, rule in ipairs(policy.rules) do
  if rule.jobs and rule.jobs.names then
    lib.wildcards.prepare(rule.jobs.names)
    conditions.read_names = true
  end
end

-- Returns whether a job may have GPUs of one of these types.
local function may_have(types, request, partition)
  local named, items = lib.fit.named_types(request)
  for _, kind in ipairs(named) do
    if types[kind] then
      return true
    end
  end
  local untyped = #items == 0
  for _, item in ipairs(items) do
    untyped = untyped or item.type == nil
  end
  for kind in pairs(untyped and types or NONE) do
    if lib.size.may_be(kind, partition) then
      return true
    end
  end
  return false
end

-- Returns whether the amounts of a size that have a limit all pass the comparison; unknown amounts pass.
local function compare(limits, size, walltime_s, fits)
  local amounts = { mgpu = size.mgpu, nodes = size.nodes, walltime_s = walltime_s }
  for key, limit in pairs(limits) do
    if amounts[key] and not fits(amounts[key], limit) then
      return false
    end
  end
  return true
end

local function reaches(amount, limit)
  return amount >= limit
end

local function stays_within(amount, limit)
  return amount <= limit
end

local function hold(jobs, most, least, job, gpus, at_any_size)
  if jobs.array ~= nil and jobs.array ~= job.is_array then
    return false
  elseif jobs.names and not lib.wildcards.match(jobs.names, job.name:sub(1, lib.wildcards.LONGEST)) then
    return false
  elseif jobs.gpu_types and not (most.mgpu > 0 and may_have(jobs.gpu_types, gpus, job.partition)) then
    return false
  end
  return compare(at_any_size and NONE or jobs.at_least, most, job.walltime_s, reaches)
    and compare(jobs.at_most, least, job.walltime_s, stays_within)
end

-- Returns whether a job may meet the conditions; if `at_any_size` is true, minimums are ignored.
function conditions.hold(jobs, job, at_any_size)
  return hold(jobs, job.size, job.least or job.size, job, job.request, at_any_size)
end

-- Adds the limits under which a job remains too small for the conditions, for mostnodes.lua.
function conditions.bound(jobs, job, bounds)
  for key, name in pairs({ nodes = "nodes", mgpu = "gpus" }) do
    local minimum = jobs.at_least[key]
    if minimum and job.size[key] < minimum then
      bounds[#bounds + 1] = { key = name }
      bounds[#bounds + 1] = minimum - 1
    end
  end
end

-- Returns whether an updated job may have met the conditions before.
function conditions.held(jobs, job)
  return hold(jobs, job.was, job.was_least or job.was, job.past, job.past.gpus)
end

return conditions
