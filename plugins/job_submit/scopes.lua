-- requires: calendar
-- The scopes of rules: which jobs they sum over, and when they apply.
local policy, lib = ...

-- A scope is the jobs of a group, or those of one kind among them. rule.scope is an index into the list.
local scopes = { list = {}, sums_by_kind = false }
local index_of = {}

for _, rule in ipairs(policy.rules) do
  local key = rule.group .. (rule.kind or "")
  if index_of[key] == nil then
    scopes.list[#scopes.list + 1] = { group = rule.group, kind = rule.kind }
    index_of[key] = #scopes.list
  end
  rule.scope = index_of[key]
  scopes.sums_by_kind = scopes.sums_by_kind or (rule.kind ~= nil and rule.per ~= "job")
end

-- Whether a job matches the users and accounts of a group. Repeated inline below, on the path of every job.
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

-- The indexes of the scopes of a job. A job with several partitions, or (from Slurm 24.11 on) several QOS, may start in
-- any, and so belongs to the scopes of each.
function scopes.matching(uid, account, qos, partition, kind)
  local found = {}
  for index, scope in ipairs(scopes.list) do
    local group = policy.groups[scope.group]
    local matches = (scope.kind == nil or scope.kind == kind)
      and (group.uids == nil or group.uids[uid])
      and (group.member_uids == nil or group.member_uids[uid])
      and (group.accounts == nil or group.accounts[account])
      and any_in(group.qos, qos)
      and any_in(group.partitions, partition)
    if matches then
      found[#found + 1] = index
    end
  end
  return found
end

-- Whether a rule is in force at this moment.
function scopes.in_force(rule, now)
  local group = policy.groups[rule.group]
  return (group.until_s == nil or now < group.until_s) and lib.calendar.holds(rule.when, now)
end

return scopes
