-- requires: amounts, billing, size
-- Defines the limits that a rule can set, and how each measures a job or a sum over jobs.
local policy, lib = ...
local amounts = lib.amounts
local measures = {}

-- Returns a function for `of` that returns one number of a size ({mgpu, cpus …}, see size.lua).
local function number(name)
  return function(size)
    return size[name]
  end
end

-- Returns the GPUs for a limit on running jobs; nil for parts of GPUs, which Slurm does not count towards such limits.
local function gpus_running(size, job)
  return not (job.request and lib.size.only_parts(job.request)) and size.mgpu or nil
end

-- Returns the GPUs of one type for a limit on running jobs. Slurm counts only GPUs whose type the job names.
local function gpus_running_of_type(size, kind, job)
  return job.request and amounts.counted_mgpu(job.request, { type = kind }) or size.types[kind]
end

-- Like `number`, but the function returns a number only for jobs with GPUs.
local function number_with_gpus(name)
  return function(size)
    return size.mgpu > 0 and size[name] or nil
  end
end

-- The limits on hours. `unit` is the name of their sums in the snapshot. `hourly` returns the hours that a job uses per
-- hour, given its size, the job (or job.past for the size before an update) and the GPU type (nil: all types).
measures.hours = {
  {
    key = "gpu_hours",
    unit = "gpu_h",
    name = "GPU-hours",
    hourly = function(size, _, gpu_type)
      return (gpu_type and size.types[gpu_type] or gpu_type == nil and size.mgpu or 0) / 1000
    end,
  },
  { key = "cpu_hours", unit = "cpu_h", name = "CPU-hours", hourly = number("cpus") },
  { key = "billing_hours", unit = "billing_h", name = "billing-hours", hourly = lib.billing.of },
}

-- Returns the hours that a job, or each array task of it, may use. A job without GPUs uses no GPU-hours, whatever its
-- time limit.
local function hours_of(kind, gpu_type, size, job, walltime_s, tasks)
  local hourly = kind.hourly(size, job, gpu_type)
  return hourly > 0 and hourly * (tasks or 1) * (walltime_s or 0) / 3600 or 0
end

-- Returns the value of a limit for a job of this size: a single number, or the limit of the last step {mgpu, limit}
-- that the job's GPUs reach; nil if they reach no step.
function measures.reached(value, size)
  if type(value) ~= "table" then
    return value
  end
  local reached
  for _, step in ipairs(value) do
    if size.mgpu >= step.mgpu then
      reached = step.limit
    end
  end
  return reached
end

-- One entry per limit, in the order in which messages list them. `of` measures a size, given its job (or job.past for
-- the size before an update), and returns nil if the limit does not apply to the job. `sum` names the measure of a
-- limit on the sum over the rule's jobs. Limits on running jobs are compared with the job alone: a job that exceeds one
-- by itself would never start, while other jobs only make it wait. `bound` converts the rule's number into the limit of
-- one job. The limit of one GPU type (gpus:a100) or period (gpu_hours:week, gpu_hours:week:a100) is derived from the
-- entry for all of them.
-- That of a period has `hours` (the unit), and the names of its sums in the snapshot: `used`, `committed`, and `before`
-- if the unused part of the preceding period is added.
-- `minimum` has the fields that differ for a minimum (at_least:gpus), which is measured on job.least.
local LIMITS = {
  {
    key = "gpus",
    label = "GPUs in one job",
    text = amounts.format_mgpu,
    of = number("mgpu"),
    of_type = function(size, kind)
      return size.types[kind]
    end,
  },
  {
    key = "gpus_per_node",
    label = "GPUs on one node",
    text = amounts.format_number,
    of = lib.size.gpus_per_node,
    minimum = {
      label = "GPUs on each node",
      of = function(_, job)
        return job.on_each_node / 1000
      end,
      remark = "Without --gpus-per-node, Slurm may place a single GPU on a node.",
    },
  },
  { key = "gpus_total", label = "GPUs running + pending", text = amounts.format_mgpu, sum = "mgpu" },
  { key = "gpus_pending", label = "GPUs pending", text = amounts.format_mgpu, sum = "pend_mgpu" },
  { key = "jobs_pending", label = "jobs pending", text = amounts.format_number, sum = "pend_jobs" },
  { key = "jobs_total", label = "jobs running + pending", text = amounts.format_number, sum = "jobs" },
  { key = "cpus_total", label = "CPUs running + pending", text = amounts.format_number, sum = "cpus" },
  { key = "memory_total", label = "memory running + pending", text = amounts.format_mib, sum = "mib" },
  {
    key = "gpus_running",
    label = "GPUs of running jobs",
    text = amounts.format_mgpu,
    of = gpus_running,
    of_type = gpus_running_of_type,
  },
  {
    key = "jobs_running",
    label = "running jobs",
    text = amounts.format_number,
    of = function()
      return 1
    end,
  },
  { key = "cpus_running", label = "CPUs of running jobs", text = amounts.format_number, of = number("cpus") },
  { key = "memory_running", label = "memory of running jobs", text = amounts.format_mib, of = number("mib") },
  { key = "nodes_running", label = "nodes of running jobs", text = amounts.format_number, of = number("nodes") },
  { key = "nodes", label = "nodes in one job", text = amounts.format_number, of = number("nodes") },
  { key = "cpus", label = "CPUs in one job", text = amounts.format_number, of = number("cpus") },
  { key = "memory", label = "memory of one job", text = amounts.format_mib, of = number("mib") },
  {
    key = "cpus_per_gpu",
    label = "CPUs per GPU",
    text = amounts.format_number,
    of = number_with_gpus("cpus"),
    bound = function(value, size)
      return math.ceil(value * size.mgpu / 1000 - 1e-9) -- a part of a GPU may have a whole CPU
    end,
    shown = function(value, size)
      return amounts.format_number(value * 1000 / size.mgpu)
    end,
  },
  {
    key = "memory_per_gpu",
    label = "memory per GPU",
    text = amounts.format_mib,
    of = number_with_gpus("mib"),
    bound = function(value, size)
      return value * size.mgpu / 1000
    end,
    shown = function(value, size)
      return amounts.format_mib(math.ceil(value * 1000 / size.mgpu))
    end,
  },
  {
    key = "array_tasks",
    label = "tasks of one array",
    text = amounts.format_number,
    of = function(_, job)
      return job.is_array and job.tasks or nil
    end,
  },
  { key = "tasks", label = "tasks of one job (--ntasks)", text = amounts.format_number, of = number("tasks") },
  {
    key = "walltime",
    label = "time limit",
    text = amounts.format_time,
    of = function(_, job)
      return job.walltime_s
    end,
    grows = function(job)
      local before = job.past.walltime_s
      return job.walltime_s and (before == nil or job.walltime_s > before) or job.mgpu > job.was.mgpu
    end,
  },
}
for _, kind in ipairs(measures.hours) do
  LIMITS[#LIMITS + 1] = {
    key = kind.key,
    label = kind.name .. " of one job",
    text = amounts.format_number,
    kind = kind,
    of = function(size, job)
      return hours_of(kind, nil, size, job, job.walltime_s)
    end,
  }
end

-- Keys of the limits for which the components of a het job count together.
local ADDED = {
  gpus = true,
  nodes = true,
  cpus = true,
  memory = true,
  tasks = true,
  gpu_hours = true,
  cpu_hours = true,
  billing_hours = true,
  gpus_running = true,
  jobs_running = true,
  cpus_running = true,
  memory_running = true,
  nodes_running = true,
}
for _, limit in ipairs(LIMITS) do
  limit.adds = ADDED[limit.key]
end

-- Whether a rule adds the unused part of the preceding period to this period. A rolling window has no preceding period.
local function carries_over(rule, period)
  return rule.carry_over and not period:find("^%d")
end

-- The current period of a limit on hours, in words.
local function period_text(period)
  local days = period:match("^(%d+)d$")
  return days and "in " .. days .. " days" or period == "day" and "today" or "this " .. period
end

-- The longest time limit that hard limits count, in seconds; jobs without a time limit count with this value.
local MOST_S = 365 * 86400

-- Returns the limit, the period and the GPU type in the key of a limit on hours, such as gpu_hours:week or
-- gpu_hours:week:a100; nil for no period or no type. In the key of another limit, the second part is the GPU type.
function measures.parts_of(key)
  local limit, period, gpu_type = key:match("^([^:]+):?([^:]*):?(.*)$")
  return limit, period ~= "" and period or nil, gpu_type ~= "" and gpu_type or nil
end

-- Returns the name of a sum of hours, with the GPU type if one is given.
local function of_gpu_type(name, gpu_type)
  return gpu_type and name .. ":" .. gpu_type or name
end

-- Returns the units in which hard rules also count what jobs may still use: {unit, kind, gpu_type}, sorted by unit.
local function find_committed()
  local found, known = {}, {}
  for _, kind in ipairs(measures.hours) do
    for _, rule in ipairs(policy.rules) do
      for key in pairs(rule.hard and rule.limits or {}) do
        local limit, period, gpu_type = measures.parts_of(key)
        local unit = of_gpu_type(kind.unit, gpu_type)
        if limit == kind.key and period and not known[unit] then
          known[unit] = true
          found[#found + 1] = { unit = unit, kind = kind, gpu_type = gpu_type }
        end
      end
    end
  end
  table.sort(found, function(one, other)
    return one.unit < other.unit
  end)
  return found
end
measures.committed = find_committed()

-- Returns the amounts that a job of this size adds to sums, by measure. `gpu_h`, `gpu_h:a100` and so on are the hours
-- that it may use, which hard limits count until it ends.
function measures.vector(size, job, tasks, is_pending)
  local vector = lib.size.vector(size, tasks, is_pending)
  for _, hours in ipairs(measures.committed) do
    local walltime_s = math.min(job.walltime_s or 0, MOST_S)
    vector[hours.unit] = hours_of(hours.kind, hours.gpu_type, size, job, walltime_s, tasks)
  end
  return vector
end

local function copy(limit, found)
  for name, value in pairs(limit) do
    found[name] = value
  end
  return found
end

-- Returns the limit on one GPU type, or the limit on hours in one period, which counts all tasks of an array.
local function of_part(limit, part, rule)
  local found = copy(limit, {})
  found.key = limit.key .. ":" .. part
  local kind = limit.kind
  if kind then
    local _, period, gpu_type = measures.parts_of(found.key)
    local on_type = gpu_type and " on " .. gpu_type .. " GPUs" or ""
    found.label = kind.name .. on_type .. (rule.hard and " used or committed " or " ") .. period_text(period)
    local function sum_of(name)
      return of_gpu_type(kind.unit .. "_" .. name, gpu_type)
    end
    found.hours = of_gpu_type(kind.unit, gpu_type)
    found.used, found.committed = sum_of(period), sum_of("committed")
    found.before = carries_over(rule, period) and sum_of(period .. "_before") or nil
    found.of = function(size, job)
      return hours_of(kind, gpu_type, size, job, job.walltime_s, job.tasks)
    end
    return found
  end
  found.label = limit.label:gsub("^GPUs", part .. " GPUs")
  found.sum = limit.sum and limit.sum .. ":" .. part
  found.of = limit.of_type and function(size, job)
    return limit.of_type(size, part, job)
  end
  return found
end

local function minimum_of(limit)
  local found = copy(limit.minimum or {}, copy(limit, {}))
  found.key, found.is_minimum = "at_least:" .. limit.key, true
  return found
end

-- Returns the limits and minimums of a rule and of its exceptions, in the order of LIMITS; {} if the rule changes jobs.
function measures.of_rule(rule)
  if rule.changes then
    return {}
  end
  local sets, found = { rule.limits }, {}
  for _, exception in pairs(rule.exceptions or {}) do
    sets[#sets + 1] = exception.limits
  end
  local keys = {}
  for _, limits in ipairs(sets) do
    for key in pairs(limits) do
      keys[key] = true
    end
  end
  for _, limit in ipairs(LIMITS) do
    if keys[limit.key] then
      found[#found + 1] = limit
    end
    if keys["at_least:" .. limit.key] then
      found[#found + 1] = minimum_of(limit)
    end
    local parts = {}
    for key in pairs(keys) do
      parts[#parts + 1] = key:match("^" .. limit.key .. ":(.+)$")
    end
    table.sort(parts)
    for _, part in ipairs(parts) do
      found[#found + 1] = of_part(limit, part, rule)
    end
  end
  return found
end

-- Returns whether every limit that applies to this job is reported. Only `slurm-gpu explain` sets slurm_gpu_considered.
-- Jobs that are judged only to find a command to suggest are not reported.
function measures.are_reported(job)
  return slurm_gpu_considered ~= nil and not job.quiet
end

-- Reports a checked limit with the values of its finding.
function measures.report(finding, fits)
  local used = finding.used or ""
  slurm_gpu_considered(
    finding.rule.id,
    finding.mode,
    finding.label,
    used,
    finding.limit or finding.least or finding.allowed,
    finding.requested,
    fits
  )
end

return measures
