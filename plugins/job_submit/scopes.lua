-- requires: calendar, conditions, wildcards
-- Defines the scopes of rules: the jobs over which a rule sums, and the times at which it applies.
local policy, lib = ...

-- A scope consists of all jobs of a group, or only of its jobs of one kind or with certain conditions (`jobs:`).
-- rule.scope is the key of a rule's scope. `needs_queue` is true if a rule sums over only some jobs of its group,
-- because snapshots have only sums over whole groups.
local scopes = { needs_queue = false }

-- The rules that sum over jobs with certain conditions.
local selecting = {}

local NONE = {}

for _, group in ipairs(policy.groups) do
  for _, names in ipairs({ group.accounts or NONE, group.qos or NONE, group.partitions or NONE }) do
    lib.wildcards.prepare(names)
  end
end

local is_among = lib.wildcards.match

-- Returns whether a group may contain jobs of an account. Wildcards are not compared: they may match any account.
local function may_have(group, account)
  for _, index in ipairs(group.all_of or NONE) do
    if not may_have(policy.groups[index], account) then
      return false
    end
  end
  local accounts = group.accounts
  return accounts == nil or accounts[account] ~= nil or lib.wildcards.present(accounts)
end

for _, rule in ipairs(policy.rules) do
  rule.scope = rule.group .. (rule.kind or "")
  if rule.jobs and rule.per ~= "job" then
    selecting[#selecting + 1] = rule
    rule.selecting, rule.scope = #selecting, rule.scope .. " " .. rule.id
  end
  -- Whether a job is refused if the rule cannot be evaluated.
  rule.denies_errors = (rule.mode == "enforce" or rule.mode == "fit") and rule.on_error == "deny"
  scopes.needs_queue = scopes.needs_queue or (rule.per ~= "job" and (rule.kind or rule.jobs) ~= nil)
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

-- Returns a string of 0s and 1s: for each rule that sums over jobs with certain conditions, whether a job meets them.
-- With `past`, the job before an update is compared, as in conditions.held.
function scopes.selection(job, past)
  local holds = past and lib.conditions.held or lib.conditions.hold
  local found = ""
  for _, rule in ipairs(selecting) do
    found = found .. (holds(rule.jobs, job) and "1" or "0")
  end
  return found
end

-- Whether a rule needs the selection.
scopes.selects = #selecting > 0

-- Returns the IDs of the rules whose conditions a selection meets, separated by commas.
function scopes.selected_ids(selection)
  local ids = {}
  for index, rule in ipairs(selecting) do
    if selection:sub(index, index) == "1" then
      ids[#ids + 1] = rule.id
    end
  end
  return table.concat(ids, ",")
end

-- Returns the selection that meets the conditions of the rules with these IDs; without IDs, of all rules.
function scopes.selection_of(ids)
  local found = ""
  for _, rule in ipairs(selecting) do
    local holds = ids == nil or ("," .. ids .. ","):find("," .. rule.id .. ",", 1, true)
    found = found .. (holds and "1" or "0")
  end
  return found
end

-- Returns the scopes of a job, as a set, and the rules of its groups, in order. A job with several partitions or, from
-- Slurm 24.11 on, several QOS may start in any of them. The job therefore belongs to the scopes of each.
function scopes.matching(job)
  local found, rules, places = {}, {}, places_of(job)
  for _, rule in ipairs(rules_for(job.account)) do
    if (rule.kind == nil or rule.kind == job.kind) and scopes.holds_all(policy.groups[rule.group], job, places) then
      local index = rule.selecting
      if index == nil or job.selection:sub(index, index) == "1" then
        found[rule.scope] = true
      end
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
