-- requires: calendar, conditions
-- Defines the scopes of rules: the jobs over which a rule sums, and the times at which it applies.
local policy, lib = ...

-- A scope consists of all jobs of a group, or only of its jobs of one kind. rule.scope is the key of a rule's scope.
local scopes = { sums_by_kind = false }

local NONE = {}

-- Maximum length of names that are compared with wildcards, because a user can submit a name of any length.
local LONGEST = 255

-- Returns the Lua pattern for a name in which * matches any characters and ? matches one character (in UTF-8).
local function pattern_of(name)
  local escaped = name:gsub("[^%w*?]", "%%%0"):gsub("%*", ".*"):gsub("%?", "[^\128-\191][\128-\191]*")
  return "^" .. escaped .. "$"
end

-- Maps each set of names to the patterns for its names with wildcards; a set without wildcards has no entry.
local patterns = {}

for _, group in ipairs(policy.groups) do
  for _, names in ipairs({ group.accounts or NONE, group.qos or NONE, group.partitions or NONE }) do
    for name in pairs(names) do
      if name:find("[*?]") then
        patterns[names] = patterns[names] or {}
        table.insert(patterns[names], pattern_of(name))
      end
    end
  end
end

-- Returns whether a name is in a set of names or matches a wildcard in the set; true if the set is nil.
local function is_among(names, name)
  if names == nil or names[name] then
    return true
  end
  local found = patterns[names]
  for index = 1, found and #name <= LONGEST and #found or 0 do
    if name:find(found[index]) then
      return true
    end
  end
  return false
end

-- Returns whether a group may contain jobs of an account. Wildcards are not compared: they may match any account.
local function may_have(group, account)
  for _, index in ipairs(group.all_of or NONE) do
    if not may_have(policy.groups[index], account) then
      return false
    end
  end
  local accounts = group.accounts
  return accounts == nil or accounts[account] ~= nil or patterns[accounts] ~= nil
end

for _, rule in ipairs(policy.rules) do
  rule.scope = rule.group .. (rule.kind or "")
  -- Whether a job is refused if the rule cannot be evaluated.
  rule.denies_errors = (rule.mode == "enforce" or rule.mode == "fit") and rule.on_error == "deny"
  scopes.sums_by_kind = scopes.sums_by_kind or (rule.kind ~= nil and rule.per ~= "job")
end

-- The accounts that groups name.
local named = {}

for _, group in ipairs(policy.groups) do
  for account in pairs(group.accounts or NONE) do
    named[account] = true
  end
end

-- The rules, by account, whose groups may contain jobs of the account; computed for the first job of each account.
-- Accounts that no group names share the key "".
local rules_of = {}

local function rules_for(account)
  local key = named[account] and account or ""
  local rules = rules_of[key]
  if rules == nil then
    rules = {}
    for _, rule in ipairs(policy.rules) do
      if may_have(policy.groups[rule.group], account) then
        rules[#rules + 1] = rule
      end
    end
    rules_of[key] = rules
  end
  return rules
end

-- Returns whether a job matches the users and accounts of a group.
function scopes.holds(group, uid, account)
  return (group.uids == nil or group.uids[uid])
    and (group.member_uids == nil or group.member_uids[uid])
    and is_among(group.accounts, account)
end

-- Returns whether a job that starts in one QOS and one partition matches all conditions of a group.
local function holds_in(group, job, qos, partition)
  if
    not (scopes.holds(group, job.uid, job.account) and is_among(group.qos, qos) and is_among(group.partitions, partition))
  then
    return false
  end
  for _, index in ipairs(group.all_of or NONE) do
    if not holds_in(policy.groups[index], job, qos, partition) then
      return false
    end
  end
  for _, index in ipairs(group.none_of or NONE) do
    if holds_in(policy.groups[index], job, qos, partition) then
      return false
    end
  end
  return true
end

local function split(names)
  local found = {}
  for name in string.gmatch(names, "[^,]+") do
    found[#found + 1] = name
  end
  return #found > 0 and found or { "" }
end

-- Returns each pair of a QOS and a partition in which a job may start.
local function places_of(job)
  local places, partitions = {}, split(job.partition)
  for _, qos in ipairs(split(job.qos)) do
    for _, partition in ipairs(partitions) do
      places[#places + 1] = { qos = qos, partition = partition }
    end
  end
  return places
end

-- Returns whether a job matches all conditions of a group in any of these places (by default, all places where the job
-- may start).
function scopes.holds_all(group, job, places)
  for _, place in ipairs(places or places_of(job)) do
    if holds_in(group, job, place.qos, place.partition) then
      return true
    end
  end
  return false
end

-- Returns the scopes of a job, as a set, and their rules, in order. A job with several partitions or, from Slurm 24.11
-- on, several QOS may start in any of them. The job therefore belongs to the scopes of each.
function scopes.matching(job)
  local found, rules, places = {}, {}, places_of(job)
  for _, rule in ipairs(rules_for(job.account)) do
    if (rule.kind == nil or rule.kind == job.kind) and scopes.holds_all(policy.groups[rule.group], job, places) then
      found[rule.scope] = true
      rules[#rules + 1] = rule
    end
  end
  return found, rules
end

-- Whether a rule applies to jobs of this kind and group.
function scopes.applies(rule, job)
  return (rule.kind == nil or rule.kind == job.kind) and scopes.holds_all(policy.groups[rule.group], job)
end

-- Whether a group or an exception applies at this moment.
function scopes.is_current(dated, now)
  return (dated.from_s or 0) <= now and now < (dated.until_s or math.huge)
end

-- Returns the user's exception, whose limits replace those of the rule; nil if none is in force.
function scopes.exception_for(rule, job)
  local exception = rule.exceptions and rule.exceptions[job.uid]
  return exception and scopes.is_current(exception, job.now) and exception or nil
end

-- Whether a rule with `at: run` applies to a job that runs from its earliest start until this time limit.
local function overlaps(rule, job, walltime_s)
  return lib.calendar.overlap(rule.when, job.begin_s, job.begin_s + (walltime_s or math.huge)) ~= nil
end

-- Returns whether a rule applies to a job, by its conditions and the job's time of submission. For a rule with `at:
-- run`, the time in which the job may run decides. With `at_any_size`, returns whether the rule could apply to a larger
-- job.
function scopes.in_force(rule, job, at_any_size)
  if not scopes.is_current(policy.groups[rule.group], job.now) then
    return false
  elseif rule.jobs and not lib.conditions.hold(rule.jobs, job, at_any_size) then
    return false
  elseif rule.when == nil then
    return true
  elseif rule.when.run then
    return overlaps(rule, job, job.walltime_s)
  end
  return lib.calendar.holds(rule.when, job.now)
end

-- Returns whether a rule already counted a job before its update.
function scopes.counted(rule, job)
  return job.counted.scopes[rule.scope] and (rule.per ~= "account" or job.account == job.past.account)
end

-- Returns whether a rule that applies to an updated job also applied before the update. Slurm does not show the old
-- StartTime.
function scopes.was_bound(rule, job)
  if not scopes.counted(rule, job) or (rule.jobs and not lib.conditions.held(rule.jobs, job)) then
    return false
  elseif not (rule.when and rule.when.run) then
    return true
  end
  return not job.moves_begin and overlaps(rule, job, job.past.walltime_s)
end

return scopes
