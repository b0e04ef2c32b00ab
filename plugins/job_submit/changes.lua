-- requires: amounts, job, lending, limits, measures, scopes, shapes, state, zones
--
-- The first stage if a rule changes jobs (`set:`, `defaults:`, `over_limit:`, or a time limit in `mode: fit`): reads a
-- new job, and applies these rules in order. Each rule and all later stages see the job as changed by earlier rules.
-- In modes other than `fit`, a change is listed but not made.
--
-- Adds to job: changes = a list of {rule, key, option, was, finding}, nil if there are none; and fields = the fields to
-- write to job_desc. In `changes`, `was` is the value that the job named, and `finding` the limit that the job exceeds.
-- Also adds is_over_limit = whether the job exceeds a limit of a rule with `over_limit:`. The table over_limit maps such
-- a rule to true if its changes were only listed, to false if they were made, or to the reason why they were not made.
local policy, lib = ...
local amounts = lib.amounts
local changes = {}

-- The rules that change jobs.
local rules = {}
for _, rule in ipairs(policy.rules) do
  if rule.changes or rule.over_limit then
    rules[#rules + 1] = rule
  end
end
changes.present = #rules > 0

local function text(value)
  return type(value) == "string" and value ~= "" and value or nil
end

local function same(_, job, key, value)
  return job[key] == value
end

local function set_of(names)
  local found = {}
  for _, name in ipairs(names) do
    found[name] = true
  end
  return found
end

-- Returns a constraint that satisfies both, `own` if it already does so, and nil if Slurm might reject or misread it:
-- Slurm does not document the precedence of & and |.
local function joined(own, value)
  local first, second = lib.zones.read_own(own), lib.zones.read_own(value)
  if #second.names == 0 or first == nil then
    return nil
  end
  local known, missing = set_of(first.names), {}
  for _, name in ipairs(second.names) do
    if not known[name] then
      missing[#missing + 1] = name
    end
  end
  local alternatives = (first.sign == "|" and 1 or 0) + (second.sign == "|" and 1 or 0)
  if #first.names == 0 then
    return value
  elseif first.sign == second.sign and #missing == 0 and (first.sign ~= "|" or #first.names == #second.names) then
    return own
  elseif alternatives == 2 then
    return nil
  elseif first.sign == "|" then
    return "(" .. own .. ")&" .. value
  elseif second.sign == "|" then
    return #missing < #second.names and own or "(" .. value .. ")&" .. own
  end
  return #missing > 0 and own .. "&" .. table.concat(missing, "&") or own
end

-- Returns the fields for N nodes, with the CPUs and tasks that sbatch derives; nil if other options do not allow it.
local function nodes_of(count, job)
  local request, desc = job.request, job.desc
  if request.named_nodes > count then
    return nil
  end
  local tasks = request.tasks and math.max(request.tasks, count)
  -- Read the CPUs per task from job_desc: a bundle may have added CPUs to the request, and will add them again.
  local each = amounts.cpus_of_task({ cpus_per_task = amounts.u16(desc.cpus_per_task) })
  local cpus = math.max(amounts.u32(desc.min_cpus) or 0, (tasks or count * (request.tasks_per_node or 1)) * each)
  local changed = setmetatable({ nodes = count, most_nodes = count, tasks = tasks }, { __index = request })
  if lib.shapes.even(request) and not lib.shapes.even(changed) or amounts.least_nodes(changed) > count then
    return nil
  end
  for name in job.partition:gmatch("[^,]+") do
    local part = job.parts and job.parts[name]
    if part and count > (amounts.u32(part.max_nodes) or math.huge) then
      return nil
    end
  end
  return { min_nodes = count, max_nodes = count, num_tasks = tasks, min_cpus = cpus }
end

-- The longest time limit of any of these partitions, in seconds; infinite without a partition.
local function longest_s(job, partitions)
  local longest
  for name in partitions:gmatch("[^,]+") do
    local part = job.parts and job.parts[name]
    longest = math.max(longest or 0, 60 * (part and amounts.u32(part.max_time) or math.huge))
  end
  return longest or math.huge
end

-- By option, in the order of changes: `option`, its name; `named`, the value that a job_desc names, or nil; `has`,
-- whether the job already has a value; `fields`, the fields of job_desc with the value, or nil if the job cannot have
-- it; `why_not`, the reason in that case; and `shown`, the value in messages.
local OPTIONS = {
  -- The QOS comes first, because a partition may be open only to jobs in this QOS.
  {
    key = "qos",
    option = "--qos",
    named = function(desc)
      return text(desc.qos)
    end,
    has = same,
    fields = function(value, job)
      return lib.job.may_use_qos(job, value) and { qos = value } or nil
    end,
    why_not = "the user may not use it",
  },
  {
    key = "partition",
    option = "--partition",
    named = function(desc)
      return text(desc.partition)
    end,
    has = same,
    fields = function(value, job)
      for name in value:gmatch("[^,]+") do
        if not lib.job.may_use_partition(job, name) then
          return nil
        end
      end
      local minutes = amounts.u32(job.desc.time_limit) -- the default of the new partition applies without --time
      if minutes and 60 * (minutes == 0 and math.huge or minutes) > longest_s(job, value) then
        return nil
      end
      return { partition = value }
    end,
    why_not = "it does not exist, is closed to the job, or its MaxTime is less than the job's time limit",
  },
  {
    key = "constraint",
    option = "--constraint",
    named = function(desc)
      return text(desc.features)
    end,
    has = function(desc, _, _, value)
      local own, prefer = text(desc.features), text(desc.prefer)
      return own ~= nil and joined(own, value) == own and (prefer == nil or joined(prefer, value) == prefer)
    end,
    fields = function(value, job)
      local own, prefer = joined(text(job.desc.features), value), text(job.desc.prefer)
      local both = prefer and joined(prefer, value) -- Slurm uses --prefer instead of --constraint
      return own and (both or not prefer) and { features = own, prefer = both } or nil
    end,
    why_not = "it cannot be joined with the job's own constraint",
    shown = function(_, fields)
      return fields.features:find("[&|]") and "'" .. fields.features .. "'" or fields.features
    end,
  },
  {
    key = "exclusive",
    option = "--exclusive",
    has = function(_, job)
      return job.request.whole_nodes
    end,
    fields = function()
      return { shared = 0 }
    end,
  },
  {
    key = "nodes",
    option = "--nodes",
    named = function(desc, job)
      local least, most = amounts.u32(desc.min_nodes) or 1, amounts.u32(desc.max_nodes) or 0
      if least <= 1 and most == 0 and job.request.named_nodes == 0 then
        return nil -- srun always sets min_nodes
      end
      least = math.max(least, job.request.named_nodes)
      return string.format(most > least and "%.0f-%.0f" or "%.0f", least, most)
    end,
    has = function(desc, _, _, value)
      return amounts.u32(desc.min_nodes) == value and amounts.u32(desc.max_nodes) == value
    end,
    fields = nodes_of,
    why_not = "other options of the job, or the partition, require other nodes",
    shown = function(value)
      return string.format("%.0f", value)
    end,
  },
  {
    key = "walltime",
    option = "--time",
    named = function(desc)
      local minutes = amounts.u32(desc.time_limit)
      return minutes and amounts.format_time(minutes == 0 and math.huge or minutes * 60)
    end,
    has = function(_, job, _, value)
      return job.walltime_s == value
    end,
    fields = function(value, job)
      local minutes = value / 60
      local least = amounts.u32(job.desc.time_min)
      return { time_limit = minutes, time_min = least and least > minutes and minutes or nil }
    end,
    shown = amounts.format_time,
  },
}

-- Returns the job_desc of a job with changed fields.
local function changed_desc(desc, fields)
  return setmetatable({}, {
    __index = function(_, name)
      local value = fields[name]
      if value == nil then
        value = desc[name]
      end
      return value
    end,
  })
end

-- Makes one change, and reads the job again. If the changed job cannot be read, undoes the change and raises the error.
local function make(job, state, fields)
  local desc = job.desc
  job.desc = changed_desc(desc, fields)
  local fine, reason = pcall(lib.job.run, job, state)
  if not fine then
    job.desc = desc
    lib.job.run(job, state)
    error(reason, 0)
  end
  job.fields = job.fields or {}
  for name, value in pairs(fields) do
    job.fields[name] = value
  end
end

-- Lists a change, and makes it in mode `fit`. Returns whether the job can have the option.
local function change(rule, job, state, option, value, finding)
  local was = option.named and option.named(job.desc, job)
  local fields = option.fields(value, job)
  if fields == nil then
    job.left_out = true -- logged for every job, so such jobs are not cached
    if rule.mode == "fit" and not job.quiet then
      local text_of = "slurm-gpu: rule %s does not set %s for uid %.0f: %s"
      slurm.log_info("%s", string.format(text_of, rule.id, option.option, job.uid, option.why_not))
    end
    return false
  end
  local shown = option.shown and option.shown(value, fields) or value
  local made = {
    rule = rule,
    key = option.key,
    option = option.option .. (value == true and "" or "=" .. shown),
    was = option.key ~= "constraint" and was or nil,
    finding = finding,
  }
  if rule.mode == "fit" then
    make(job, state, fields)
  end
  job.changes = job.changes or {}
  job.changes[#job.changes + 1] = made
  return true
end

local function apply(rule, job, state)
  for _, option in ipairs(OPTIONS) do
    local value = rule.changes.set[option.key]
    if value ~= nil and not option.has(job.desc, job, option.key, value) then
      change(rule, job, state, option, value)
    end
    value = rule.changes.defaults[option.key]
    if option.key == "walltime" and value ~= nil then
      value = math.min(value, longest_s(job, job.partition))
    end
    if value ~= nil and option.named(job.desc, job) == nil and not option.has(job.desc, job, option.key, value) then
      change(rule, job, state, option, value)
    end
    if option.key == "walltime" then
      local exception = lib.scopes.exception_for(rule, job)
      local most = exception and exception.limits.walltime or rule.limits.walltime
      most = most and lib.measures.reached(most, job.size)
      if most and job.walltime_s and job.walltime_s > most then
        change(rule, job, state, option, most)
      end
    end
  end
end

-- Makes or lists the changes of a rule with `over_limit`, all or none. If the job still exceeds a limit, limits.lua
-- refuses it.
local function apply_over_limit(rule, job, state)
  lib.state.run(job, state)
  local over = lib.limits.exceeded(rule, job, state)
  if over == nil then
    return
  end
  job.is_over_limit = job.is_over_limit or rule.mode == "fit"
  if job.within_limits and rule.mode == "fit" then
    return
  end
  local desc, n_changes, fields = job.desc, #(job.changes or {}), {}
  for name, value in pairs(job.fields or {}) do
    fields[name] = value
  end
  for _, option in ipairs(OPTIONS) do
    local value = rule.over_limit[option.key]
    if value ~= nil and not option.has(job.desc, job, option.key, value) then
      if not change(rule, job, state, option, value, over) then
        while job.changes and #job.changes > n_changes do
          table.remove(job.changes)
        end
        job.changes = n_changes > 0 and job.changes or nil
        job.fields, job.desc = next(fields) and fields or nil, desc
        lib.job.run(job, state)
        job.over_limit[rule] = "Jobs over the limit get " .. option.option .. "=" .. value .. ", but " .. option.why_not
        return
      end
    end
  end
  job.over_limit[rule] = rule.mode ~= "fit"
  if rule.mode == "fit" and lib.measures.are_reported(job) then
    over.mode = "fit"
    lib.measures.report(over, false)
  end
end

-- Calls `apply_over_limit` if the rule applies to the job in the QOS that lending.lua will assign.
local function apply_if_over_limit(rule, job, state)
  local desc, qos = job.desc, job.qos
  lib.lending(job)
  if lib.scopes.applies(rule, job) and lib.scopes.in_force(rule, job) then
    apply_over_limit(rule, job, state)
  end
  if job.desc == desc then
    job.qos, job.writes.qos = qos, nil
  end
  job.loan = nil
end

-- The stage. A rule that fails leaves the job as it is.
function changes.run(job, state)
  job.changes, job.fields, job.left_out = nil, nil, nil
  job.is_over_limit, job.over_limit = false, {}
  local findings = lib.job.run(job, state) or {}
  if job.record then
    return findings -- updates are not changed
  end
  for _, rule in ipairs(rules) do
    local fine, reason = pcall(function()
      if rule.over_limit then
        apply_if_over_limit(rule, job, state)
      elseif lib.scopes.applies(rule, job) and lib.scopes.in_force(rule, job) then
        apply(rule, job, state)
      end
    end)
    if not fine then
      findings[#findings + 1] = { rule = rule, key = "set", error = tostring(reason) }
    end
  end
  for _, made in ipairs(slurm_gpu_changed and not job.quiet and job.changes or {}) do -- set outside slurmctld only
    slurm_gpu_changed(made.rule.id, made.rule.mode, made.option, made.was or "")
  end
  return findings
end

return changes
