-- requires: calendar
-- The scopes of rules: which jobs they sum over, and when they apply.
local policy, lib = ...

-- A scope is the jobs of a group, or those of one kind among them. rule.scope is its key.
local scopes = { sums_by_kind = false }

-- The accounts that groups of rules name.
local named = {}

for _, rule in ipairs(policy.rules) do
  rule.scope = rule.group .. (rule.kind or "")
  scopes.sums_by_kind = scopes.sums_by_kind or (rule.kind ~= nil and rule.per ~= "job")
  for account in pairs(policy.groups[rule.group].accounts or {}) do
    named[account] = true
  end
end

-- By account, the rules whose groups it does not exclude; found at its first job. Accounts that no group names share
-- the key "".
local rules_of = {}

local function rules_for(account)
  local key = named[account] and account or ""
  local rules = rules_of[key]
  if rules == nil then
    rules = {}
    for _, rule in ipairs(policy.rules) do
      local accounts = policy.groups[rule.group].accounts
      if accounts == nil or accounts[account] then
        rules[#rules + 1] = rule
      end
    end
    rules_of[key] = rules
  end
  return rules
end

-- Whether a job matches the users and accounts of a group.
function scopes.holds(group, uid, account)
  return (group.uids == nil or group.uids[uid])
    and (group.member_uids == nil or group.member_uids[uid])
    and (group.accounts == nil or group.accounts[account])
end

-- Whether any of these names, joined by commas, is in a set; true if the set is nil.
local function any_in(set, names)
  if set == nil then
    return true
  end
  for name in string.gmatch(names, "[^,]+") do
    if set[name] then
      return true
    end
  end
  return false
end

-- Whether a job matches all conditions of a group.
function scopes.holds_all(group, job)
  return scopes.holds(group, job.uid, job.account) and any_in(group.qos, job.qos) and any_in(group.partitions, job.partition)
end

-- The scopes of a job, as a set, and their rules, in order. A job with several partitions, or (from Slurm 24.11 on)
-- several QOS, may start in any, and so belongs to the scopes of each.
function scopes.matching(job)
  local found, rules = {}, {}
  for _, rule in ipairs(rules_for(job.account)) do
    if (rule.kind == nil or rule.kind == job.kind) and scopes.holds_all(policy.groups[rule.group], job) then
      found[rule.scope] = true
      rules[#rules + 1] = rule
    end
  end
  return found, rules
end

-- Whether a group or an exception applies at this moment.
function scopes.is_current(dated, now)
  return (dated.from_s or 0) <= now and now < (dated.until_s or math.huge)
end

-- Whether a rule with `at: run` applies to a job with this time limit, from its earliest start on.
local function overlaps(rule, job, walltime_s)
  return lib.calendar.overlap(rule.when, job.begin_s, job.begin_s + (walltime_s or math.huge)) ~= nil
end

-- Whether a rule applies to a job, by its time of submission or, with `at: run`, by the time in which it may run.
function scopes.in_force(rule, job)
  if not scopes.is_current(policy.groups[rule.group], job.now) then
    return false
  elseif rule.when == nil then
    return true
  elseif rule.when.run then
    return overlaps(rule, job, job.walltime_s)
  end
  return lib.calendar.holds(rule.when, job.now)
end

-- Whether a rule that applies to an updated job applied to it before. Slurm does not show the former StartTime.
function scopes.was_bound(rule, job)
  if not job.counted.scopes[rule.scope] then
    return false
  elseif not (rule.when and rule.when.run) then
    return true
  end
  return not job.moves_begin and overlaps(rule, job, job.past.walltime_s)
end

return scopes
