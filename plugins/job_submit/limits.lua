-- requires: amounts, conditions, fit, het, ledger, measures, mostnodes, options, scopes, state, wording
-- Finds the limits that a job would exceed, and the minimums that it does not reach. A finding is {rule, key, sum (the
-- measure), label, used, recent, limit or least or allowed, requested, mode}, with amounts as text. It is {rule, key,
-- error} if a rule could not be evaluated. `allowed` lists the set `names`; `hours` is the name of a unit (CPU-hours).
-- `used` is nil if the job exceeds the whole limit by itself while the used part of the limit is unknown.
-- `recent` is the part of `used` that was just submitted. If the job would fit without this part, `retry_s` is the
-- number of seconds after which the part stops counting if Slurm refused those jobs.
-- Also sets job.room: the amounts that would be accepted and the minimums, by the key of the limit. If job.checks is a
-- list, each limit that applies to the job is appended to it: {rule, sum (the measure) or hours (the limit), bound,
-- requested}. May write max_nodes.
--
-- A rule with `over_limit` in mode `fit` refuses updates over a limit, and jobs that changes.lua could not change.
local policy, lib = ...
local amounts = lib.amounts
local limits = {}

local limits_by_rule = {}
-- The limits, by rule, that a job could exceed by using more nodes; and whether any rule has such a limit.
local bound_by_rule, any_bound = {}, false
for _, rule in ipairs(policy.rules) do
  limits_by_rule[rule], bound_by_rule[rule] = lib.measures.of_rule(rule), {}
  for _, limit in ipairs(limits_by_rule[rule]) do
    bound_by_rule[rule][limit] = lib.mostnodes.is_bound(rule, limit) or nil
    any_bound = any_bound or bound_by_rule[rule][limit] ~= nil
  end
  any_bound = any_bound or (rule.jobs ~= nil and (rule.mode == "enforce" or rule.mode == "fit"))
end

local function lower(room, name, value)
  if room[name] == nil or value < room[name] then
    room[name] = value
  end
end

-- Returns whether an update neither raises the job's amount nor lowers its limit, which may depend on the job's GPUs.
-- For example, a job over a limit that an admin lowered may still be renamed.
local function untouched(limit, steps, value, job)
  if value < (lib.measures.reached(steps, job.was) or math.huge) then
    return false
  end
  if limit.grows then
    return not limit.grows(job)
  end
  local now, before = limit.of(job.size, job), limit.of(job.was, job.past)
  if limit.bound and now and before then
    now, before = now / job.mgpu, before / math.max(job.was.mgpu, 1)
  end
  return now == nil or (before ~= nil and now <= before)
end

-- The text of a limit, with the amount that is carried over from the previous period.
local function limit_text(limit, value, bound, carried, unknown)
  if carried > 0 and unknown then
    return limit.text(value) .. " (up to " .. limit.text(carried) .. " more may be carried over)"
  elseif carried > 0 then
    return limit.text(bound) .. " (" .. limit.text(carried) .. " carried over)"
  end
  return limit.text(limit.shown and value or bound)
end

local function check(rule, limit, steps, job, state, room)
  local value = lib.measures.reached(steps, job.size)
  if value == nil then
    return nil -- with so few GPUs, the job has no limit
  end
  local was_bound = job.record and lib.scopes.was_bound(rule, job)
  local requested, bound, used, carried, unknown = nil, value, 0, 0, nil
  local is_known = true -- whether `used` is known
  if limit.sum then
    requested = job.sum[limit.sum] or 0
    local before = lib.scopes.counted(rule, job) and job.counted.sum[limit.sum] or 0
    if was_bound and requested <= before then
      return nil -- an update that does not increase the request
    end
    used = math.max(lib.state.used(state, rule, limit.sum, job) - before, 0)
  else
    requested = limit.of(job.size, job)
    bound = requested and limit.bound and limit.bound(value, job.size) or value
    if requested == nil then
      return nil
    end
    if was_bound and untouched(limit, steps, value, job) then
      return nil
    end
    if limit.hours and requested > 0 then
      used, carried, unknown = lib.state.hours(state, rule, limit, value, job)
      is_known, used = used ~= nil, used or 0
      if rule.hard and lib.scopes.counted(rule, job) then
        used = math.max(used - (job.counted.sum[limit.hours] or 0), 0)
      end
    end
  end
  if job.alone and limit.sum then
    used = 0
  end
  local earlier = 0
  if job.het and limit.adds and not (limit.hours and rule.hard) then
    earlier = lib.het.count(job, rule, limit, requested)
    used = used + earlier
  end
  if job.checks then
    job.checks[#job.checks + 1] =
      { rule = rule, sum = limit.sum, hours = limit.hours and limit, bound = bound, requested = requested }
  end
  bound = bound + carried
  local left = bound - used
  if rule.mode == "enforce" or rule.mode == "fit" then
    lower(room, limit.key, left)
  end
  local fits = requested == 0 or requested <= left
  if unknown and fits then
    error(unknown, 0)
  end
  local reports = lib.measures.are_reported(job)
  if fits and not reports then
    return nil, bound > 0 and left / bound or 0
  end
  local finding = {
    rule = rule,
    key = limit.key,
    sum = limit.sum,
    hours = limit.hours and limit.kind.name,
    label = limit.label,
    used = (limit.sum or limit.hours) and is_known and limit.text(used) or nil,
    limit = limit_text(limit, value, bound, carried, unknown),
    requested = limit.shown and limit.shown(requested, job.size) or limit.text(requested),
    mode = rule.mode == "fit" and "enforce" or rule.mode,
    remark = earlier > 0 and "Earlier components of this het job count too: " .. limit.text(earlier) .. "." or nil,
  }
  if reports then
    lib.measures.report(finding, fits)
  end
  if fits then
    return nil, bound > 0 and left / bound or 0
  end
  if limit.sum then
    local just, left_s = lib.ledger.just_submitted(state, rule, job)
    local part = math.min(just[limit.sum] or 0, used)
    if part > 0 then
      finding.recent = limit.text(part)
      finding.retry_s = used - part < bound and left_s or nil
    end
  end
  return finding
end

-- Returns whether an update lowers the job's amount or raises its minimum, which may depend on the job's GPUs.
local function lowered(limit, steps, value, job, requested)
  local before = limit.of(job.was_least, job.past)
  if before == nil or value > (lib.measures.reached(steps, job.was) or -math.huge) then
    return true
  elseif limit.bound then
    return requested / job.least.mgpu < before / math.max(job.was_least.mgpu, 1)
  end
  return requested < before
end

local function check_minimum(rule, limit, steps, job, _, room)
  local value = lib.measures.reached(steps, job.size)
  local requested = value and limit.of(job.least, job)
  if requested == nil then
    return nil
  elseif job.record and lib.scopes.was_bound(rule, job) and not lowered(limit, steps, value, job, requested) then
    return nil
  end
  local bound = limit.bound and limit.bound(value, job.least) or value
  if rule.mode == "enforce" then
    room[limit.key] = math.max(room[limit.key] or 0, bound)
  end
  local fits, reports = requested >= bound, lib.measures.are_reported(job)
  if fits and not reports then
    return nil
  end
  local finding = {
    rule = rule,
    key = limit.key,
    label = limit.label,
    least = "at least " .. limit.text(limit.shown and value or bound),
    requested = limit.shown and limit.shown(requested, job.least) or limit.text(requested),
    mode = rule.mode,
    remark = job.request.per_node == nil and requested == 1 and limit.remark or nil,
  }
  if reports then
    lib.measures.report(finding, fits)
  end
  return not fits and finding or nil
end

local LABELS = { partitions = "partition", gpu_types = "GPU type", qos = "QOS" }

-- Checks whether a rule allows the partitions, GPU types or QOS of a job.
local function check_names(rule, key, names, job)
  local wrong
  local field = key == "qos" and "qos" or "partition"
  local stays = job.record and lib.scopes.was_bound(rule, job) and job[field] == job.past[field]
  if key ~= "gpu_types" then
    if stays then
      return nil
    end
    for name in string.gmatch(job[field], "[^,]+") do
      wrong = wrong or (not names[name] and name) -- the job may start in any of them
    end
  elseif job.mgpu > 0 then
    local named = lib.fit.named_types(job.request)
    if stays and job.mgpu <= job.was.mgpu and table.concat(named, ",") == job.past.types then
      return nil
    end
    for _, kind in ipairs(named) do
      wrong = wrong or (not names[kind] and kind)
    end
    for name in string.gmatch(#named == 0 and job.partition or "", "[^,]+") do
      for kind in pairs(policy.partition_gpu_types and policy.partition_gpu_types[name] or {}) do
        wrong = wrong or (not names[kind] and "any type in partition " .. name)
      end
    end
  end
  local finding = {
    rule = rule,
    key = key,
    label = LABELS[key],
    names = names,
    allowed = lib.wording.names(names),
    requested = wrong or (key ~= "gpu_types" and job[field] or "allowed ones"),
    mode = rule.mode,
  }
  if lib.measures.are_reported(job) then
    lib.measures.report(finding, not wrong)
  end
  return wrong and finding or nil
end

local NONE = {}
local TEXTS = { required = "This rule requires %s.", forbidden = "This rule forbids %s." }

-- Checks an option that a rule requires or forbids. An update has only the options that it changes or clears.
local function check_option(rule, option, need, job)
  local named = option.named(job.desc, need)
  if job.record and (named == nil or option.is_new_only) or named == nil and option.of_gpus then
    return nil
  end
  local fits = (named or false) == (need == "required")
  local finding = {
    rule = rule,
    key = "option:" .. option.key,
    label = "option " .. option.key,
    limit = need,
    requested = named and "set" or "not set",
    text = string.format(TEXTS[need], option[need] or "--" .. option.key),
    mode = rule.mode,
  }
  if lib.measures.are_reported(job) then
    lib.measures.report(finding, fits)
  end
  return not fits and finding or nil
end

-- All shards of a job on a node come from one GPU: a larger request would stay pending indefinitely.
local SHARDS = {
  id = "one-gpu",
  mode = "enforce",
  per = "job",
  why = "All shards of a job on a node come from one GPU, so a job cannot request more per node than one GPU has.",
}

local function check_shards(job, room)
  local per_gpu = policy.shards_per_gpu
  if per_gpu == nil or policy.shards_span_gpus or job.request.per_node == nil then
    return nil
  end
  room.shards = per_gpu
  for _, item in ipairs(amounts.parse_tres(job.request.per_node)) do
    if item.name == "shard" and item.count > per_gpu then
      return {
        rule = SHARDS,
        key = "shards",
        label = "shards per node",
        limit = amounts.format_number(per_gpu),
        requested = amounts.format_number(item.count),
        mode = "enforce",
      }
    end
  end
  return nil
end

-- A request that this script cannot parse cannot be compared with a limit. Slurm accepts more spellings.
local PLAIN = {
  id = "plain-numbers",
  mode = "enforce",
  per = "job",
  why = "Limits can be checked only if the request is written in plain numbers.",
}

local function check_readable(job)
  local text = job.unreadable or amounts.unreadable(job.request)
  if text == nil then
    return nil
  end
  return {
    rule = PLAIN,
    key = "spelling",
    label = "request",
    allowed = "plain numbers such as gpu:2 or --array=0-15%4",
    requested = #text <= 60 and text or text:sub(1, 57) .. "...",
    mode = "enforce",
  }
end

-- Returns a function that maps the key of a limit to its value: the rule's, or that of the user's exception.
local function values_of(rule, job)
  local exception = lib.scopes.exception_for(rule, job)
  return function(key)
    local own = exception and exception.limits[key]
    return own == nil and rule.limits[key] or own
  end
end

-- Evaluates one limit or option of a rule: appends the finding, or the error, and returns the part of the limit left.
local function evaluate(findings, rule, key, ...)
  local fine, finding, left = pcall(...)
  if not fine then
    finding = { rule = rule, key = key, error = tostring(finding) }
  end
  findings[#findings + 1] = finding or nil
  return fine and left or nil
end

-- Returns a limit of a rule that a new job exceeds, as a finding, without any side effect; nil if there is none.
function limits.exceeded(rule, job, state)
  local checks, het_sums, quiet = job.checks, job.het_sums, job.quiet
  job.checks, job.quiet = nil, true
  job.het_sums = job.het and setmetatable({}, { __index = het_sums or job.het.sums })
  local findings, value_of = {}, values_of(rule, job)
  for _, limit in ipairs(limits_by_rule[rule]) do
    local value = value_of(limit.key)
    if value then
      evaluate(findings, rule, limit.key, check, rule, limit, value, job, state, {})
    end
  end
  job.checks, job.het_sums, job.quiet = checks, het_sums, quiet
  for _, finding in ipairs(findings) do
    if not finding.error then
      return finding
    end
  end
  return nil
end

function limits.run(job, state)
  local findings, room = {}, {}
  local over_limit = job.over_limit or NONE -- see changes.lua
  local least_left
  local bound_by_rules = false
  local bounds, possible, all = {}, nil, nil
  if any_bound then
    possible, all = lib.mostnodes.possible(job)
  end
  local function compare(rule, ...)
    local is_listed = over_limit[rule] == true
    local left = evaluate(is_listed and {} or findings, rule, ...)
    if left and (least_left == nil or left < least_left) then
      least_left, job.nearest_rule = left, rule.id
    end
  end
  for _, rule in ipairs(job.class.rules) do
    local is_binding = rule.mode == "enforce" or rule.mode == "fit"
    if lib.scopes.in_force(rule, job) then
      bound_by_rules = bound_by_rules or is_binding
      local value_of = values_of(rule, job)
      for _, limit in ipairs(limits_by_rule[rule]) do
        local value = value_of(limit.key)
        if value then
          local fits = limit.is_minimum and check_minimum or check
          compare(rule, limit.key, fits, rule, limit, value, job, state, room)
          if possible and bound_by_rule[rule][limit] then
            bounds[#bounds + 1] = limit
            bounds[#bounds + 1] = lib.measures.reached(value, job.size) or math.huge
          end
        end
      end
      for _, key in ipairs({ "partitions", "gpu_types", "qos" }) do
        local value = value_of(key)
        if value then
          compare(rule, key, check_names, rule, key, value, job)
        end
      end
      for _, option in ipairs(rule.options and lib.options or NONE) do
        local need = rule.options[option.key]
        if need then
          compare(rule, "option:" .. option.key, check_option, rule, option, need, job)
        end
      end
    elseif rule.jobs and is_binding and lib.scopes.in_force(rule, job, true) then
      bound_by_rules = true -- an unreadable size may be why the rule does not apply
      if possible then
        lib.conditions.bound(rule.jobs, job, bounds)
      end
    end
  end
  for index, finding in ipairs(findings) do
    local following = findings[index + 1]
    if type(over_limit[finding.rule]) == "string" and not (following and following.rule == finding.rule) then
      finding.remark = over_limit[finding.rule] .. "."
    end
  end
  if bound_by_rules then
    findings[#findings + 1] = check_readable(job)
  end
  findings[#findings + 1] = check_shards(job, room)
  job.room = room
  for _, finding in ipairs(findings) do
    if finding.mode == "enforce" then
      return findings
    end
  end
  if bounds[1] then
    lib.mostnodes.write(job, bounds, possible, all)
  end
  return findings
end

return limits
