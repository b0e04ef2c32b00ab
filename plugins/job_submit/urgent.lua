-- requires: scopes
-- Checks urgent jobs: only some users may use the urgent QOS, and each urgent job needs a reason. Slurm limits how many
-- urgent jobs run at once (GrpJobs of the QOS). The SiteFactor of urgent jobs ranks them above all other jobs. Adds to
-- job: urgent = the reason of a new job that names the QOS ("" without a reason).
local policy, lib = ...
local urgent = policy.urgent

-- Maximum number of bytes of the reason that are logged.
local LONGEST = 300

local rule
for _, one in ipairs(policy.rules) do
  if urgent and one.id == "urgent" then
    rule = one
  end
end

local function may(job)
  for _, index in ipairs(urgent.groups) do
    local group = policy.groups[index]
    if lib.scopes.is_current(group, job.now) and lib.scopes.holds(group, job.uid, job.account) then
      return true
    end
  end
  return false
end

local function finding(key, text)
  return { rule = rule, key = key, mode = "enforce", label = "", text = text }
end

-- Returns whether these names include the urgent QOS. From 24.11 on, Slurm accepts several names, separated by
-- commas.
local function has_it(qos)
  return ("," .. string.lower(qos) .. ","):find("," .. urgent.qos .. ",", 1, true) ~= nil
end

local function names(value)
  return type(value) == "string" and value ~= ""
end

local function not_for()
  local text = "Urgent jobs (--qos=%s) are allowed for: %s. At most %.0f may run at once; others wait."
  return { finding("who", string.format(text, urgent.qos, urgent.who, urgent.jobs_running)) }
end

-- Checks only the fields that an update changes. For example, a job that is already urgent may be renamed.
local function update(job)
  local was, is = has_it(job.record.qos or ""), has_it(job.qos)
  if is and not was then
    return { finding("update", "A job can become urgent only at submission: sbatch --qos=" .. urgent.qos .. " ...") }
  elseif was and names(job.desc.qos) and job.qos ~= urgent.qos then
    -- The job would keep its SiteFactor, but neither Slurm nor the audit would count it as urgent.
    local text = "The QOS of an urgent job cannot be changed. Cancel the job and submit it again without --qos."
    return { finding("update", text) }
  elseif was and names(job.desc.account) and not may(job) then
    return not_for()
  end
  return {}
end

local function run(job)
  if urgent == nil or rule == nil then
    return {}
  elseif job.record then
    return update(job)
  elseif not has_it(job.qos) then
    return {}
  end
  local reason = job.desc.comment
  job.urgent = type(reason) == "string" and reason:sub(1, LONGEST) or ""
  if not may(job) then
    return not_for()
  elseif job.qos ~= urgent.qos then
    return { finding("qos", "An urgent job must not name another QOS; use only --qos=" .. urgent.qos .. ".") }
  elseif not job.urgent:find("%S") then
    return { finding("comment", "An urgent job needs a reason, which is recorded: add --comment='the reason'.") }
  end
  job.writes.site_factor = urgent.points
  return {}
end

-- Decisions about urgent jobs are never cached.
local function again(job)
  return job.urgent == nil
end

return { run = run, again = again }
