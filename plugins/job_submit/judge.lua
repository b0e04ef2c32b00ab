-- requires: stages
-- Runs the stages on a job, and on variants of the job.
local _, lib = ...
local judge = {}

-- Runs every stage on the job, and collects the findings in job.findings.
function judge.run(job, state)
  job.findings = {}
  local desc = job.desc
  for _, module in ipairs(lib.stages) do
    local run = type(module) == "table" and module.run or module
    for _, finding in ipairs(run(job, state) or {}) do
      job.findings[#job.findings + 1] = finding
    end
  end
  job.desc = desc -- changes.lua may have replaced it
  return job
end

-- Returns the findings that refuse the job, by key: those in mode `enforce`, and errors in enforced rules with
-- `on_error: deny`. Returns nil if there are none.
function judge.objections(job)
  local wrong
  for _, finding in ipairs(job.findings) do
    if finding.mode == "enforce" or finding.error and finding.rule.denies_errors then
      wrong = wrong or {}
      wrong[finding.key] = finding
    end
  end
  return wrong
end

-- Judges a copy of the job with other fields in its job_desc. `alone` ignores all other running and pending jobs.
-- `within_limits` refuses a job that a rule with `over_limit` would change.
function judge.instead(job, state, fields, alone, within_limits)
  local desc = setmetatable({}, {
    __index = function(_, name)
      local value = fields[name]
      if value == nil then
        value = job.desc[name]
      end
      return value
    end,
  })
  return judge.run({
    desc = desc,
    parts = job.parts,
    submit_uid = job.submit_uid,
    now = job.now,
    queue_error = job.queue_error,
    kind = job.kind,
    het = job.het,
    quiet = true,
    alone = alone,
    within_limits = within_limits,
  }, state)
end

return judge
