-- What the modules find about a job, and about what it could have asked for instead.
local _, lib = ...
local judge = {}

-- Runs every module over the job; findings of all stand in job.findings.
function judge.run(job, state)
  job.findings = {}
  for _, module in ipairs(lib.modules) do
    local run = type(module) == "table" and module.run or module
    for _, finding in ipairs(run(job, state) or {}) do
      job.findings[#job.findings + 1] = finding
    end
  end
  return job
end

-- The same job with other fields in its job_desc, judged; nothing of it is kept.
function judge.instead(job, state, fields)
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
    quiet = true,
  }, state)
end

return judge
