-- requires: amounts
-- Counts the components of a het job together for limits on one job. Slurm submits the components one after the other.
local policy, lib = ...
local het = {}

-- Whether a rule has limits for which components count together.
local matters = #policy.rules > 0

-- Returns the amounts of the earlier components of a het job, by rule and limit; nil for other jobs. slurmctld may submit
-- other jobs between two components.
function het.earlier(desc, state)
  local offset = matters and lib.amounts.u32(desc.het_job_offset)
  if not offset then
    return nil
  end
  local before = offset > 0 and state.het[desc.user_id]
  return { uid = desc.user_id, sums = before or {} }
end

-- Adds the amount of this component to the total of the job, and returns the total of the earlier components.
function het.count(job, rule, limit, requested)
  local place = rule.id .. " " .. limit.key
  local before = job.het.sums[place] or 0
  job.het_sums = job.het_sums or setmetatable({}, { __index = job.het.sums })
  job.het_sums[place] = before + requested
  return before
end

-- Stores the amounts of an accepted component for the components that follow.
function het.accept(job, state)
  if job.het then
    state.het[job.het.uid] = job.het_sums or job.het.sums
  end
end

return het
