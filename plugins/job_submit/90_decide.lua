-- The verdict and what is said about it: the only module that writes job_desc and calls slurm.*.
local policy, lib = ...

local wrap = lib.wording.wrap

local function say(text)
  slurm.log_user("%s", text)
end

local function encode(value)
  return (tostring(value):gsub("[^%w_.:/,+@-]", function(byte)
    return string.format("%%%02X", string.byte(byte))
  end))
end

-- Appends one line; a failure must not cost the job, and must not go unnoticed.
local function write_decision(line, job, state)
  local log, reason = io.open(policy.decisions_log, "a")
  if log then
    if (log:seek("end") or 0) > policy.decisions_log_bytes then
      log:close()
      os.rename(policy.decisions_log, policy.decisions_log .. ".1")
      log, reason = io.open(policy.decisions_log, "a")
    end
  end
  if log then
    local written, why = log:write(line, "\n")
    local closed, why_not = log:close()
    if written and closed then
      return
    end
    reason = why or why_not
  end
  if state.log_complained_at == nil or job.now - state.log_complained_at >= 60 then
    state.log_complained_at = job.now
    slurm.log_error(
      "%s",
      "slurm-gpu: decisions are not being logged: " .. tostring(reason) .. "; limits forget the last 2 s at a reload"
    )
  end
end

-- "a100:2000,h100:0" of what GPU types a sum counts; nil where none is counted apart.
local function types_text(sum)
  local types = {}
  for kind in pairs(lib.size.watched) do
    types[#types + 1] = string.format("%s:%.0f", kind, sum["mgpu:" .. kind] or 0)
  end
  table.sort(types)
  return #types > 0 and table.concat(types, ",") or nil
end

-- Whose job it is and where; the same for all jobs of a class.
local function owner_text(job)
  local class = job.class
  if class.owner_text == nil then
    class.owner_text = string.format("uid=%.0f account=", job.uid)
      .. encode(job.account)
      .. " qos="
      .. encode(job.qos)
      .. " partition="
      .. encode(job.partition)
  end
  return class.owner_text
end

-- One line of decisions.log; `sum` is what the job adds by measure.
local function record(job, state, verdict, token, sum)
  local ids, errors = {}, {}
  for _, finding in ipairs(job.findings) do
    ids[#ids + 1] = finding.rule.id .. ":" .. finding.key .. ":" .. (finding.error and "error" or finding.mode)
    if finding.error then
      errors[#errors + 1] = finding.error
    end
  end
  local fields = {
    "slurm-gpu/1",
    string.format("%.0f", job.now),
    job.record and "modify" or "submit",
    verdict,
    token,
    owner_text(job),
    string.format("tasks=%.0f", sum.jobs),
    string.format("mgpu=%.0f", sum.mgpu),
    string.format("cpus=%.0f", sum.cpus),
    string.format("mib=%.0f", sum.mib),
    "walltime=" .. (job.walltime_s and string.format("%.0f", math.min(job.walltime_s, 1e15)) or "-"),
    "rules=" .. (#ids > 0 and encode(table.concat(ids, ",")) or "-"),
  }
  local types = types_text(sum)
  if types then
    fields[#fields + 1] = "types=" .. encode(types)
  end
  if job.kind == "interactive" then
    fields[#fields + 1] = "kind=interactive"
  end
  if #errors > 0 then
    fields[#fields + 1] = "error=" .. encode(table.concat(errors, "; "))
  end
  write_decision(table.concat(fields, " "), job, state)
end

-- The rule with its reason, once for all that it objects to, then the numbers.
local function explain_finding(lines, finding, job, before)
  local rule = finding.rule
  if before == nil or before.rule.id ~= rule.id then
    local opening = finding.mode == "enforce" and "Refused by " or "Against "
    wrap(lines, opening .. (rule.title or "rule " .. rule.id) .. ": " .. rule.why, "")
  end
  local numbers = finding.label .. ": "
  if finding.used then
    local recent = finding.recent and " (" .. finding.recent .. " just submitted)" or ""
    numbers = numbers .. "used " .. finding.used .. recent .. ", "
  end
  numbers = numbers .. "limit " .. finding.limit .. ", requested " .. finding.requested
  if finding.used and rule.per == "group" then
    numbers = numbers .. " (all of group " .. policy.groups[rule.group].name .. " together)"
  end
  wrap(lines, numbers .. ".", "  ")
  local said = before and before.label:find("GPUs ")
  if finding.label:find("GPUs ") and job.form == "whole_nodes" and not said then
    wrap(lines, "A job that has its nodes to itself takes all their GPUs, asked for or not.", "  ")
  end
  if finding.key == "walltime" and job.walltime_from then
    wrap(lines, "Without --time the job gets the default of partition " .. job.walltime_from .. ".", "  ")
  end
end

local function contact_line(lines)
  if policy.contact then
    wrap(lines, "Questions: " .. policy.contact, "  ")
  end
end

-- What a job adds to the sums: all of a new one, and that by which an update makes a job larger.
local function growth_of(job)
  if job.record == nil then
    return job.sum
  end
  local growth = {}
  for measure, value in pairs(job.sum) do
    growth[measure] = math.max(value - (job.counted.sum[measure] or 0), 0)
  end
  return growth
end

return function(job, state)
  local refusals, advice, failed = {}, {}, false
  for _, finding in ipairs(job.findings) do
    if finding.error then
      slurm.log_error("%s", "slurm-gpu: rule " .. finding.rule.id .. " failed: " .. finding.error)
      failed = failed or (finding.rule.mode == "enforce" and finding.rule.on_error == "deny")
    elseif finding.mode == "enforce" then
      refusals[#refusals + 1] = finding
    elseif finding.mode == "advise" then
      advice[#advice + 1] = finding
    end
  end
  local growth = growth_of(job)
  if #refusals > 0 or failed then
    local lines = {}
    for index, finding in ipairs(refusals) do
      explain_finding(lines, finding, job, refusals[index - 1])
    end
    if #refusals > 0 then
      lib.advice(lines, job, state, refusals)
    else
      wrap(lines, "Refused: a rule could not be checked, and it says that no job passes then.", "")
    end
    contact_line(lines)
    say(table.concat(lines, "\n"))
    record(job, state, "deny", "-", growth)
    return slurm.ESLURM_ACCOUNTING_POLICY or 2050
  end
  if #advice > 0 then
    local lines = {}
    for index, finding in ipairs(advice) do
      explain_finding(lines, finding, job, advice[index - 1])
    end
    wrap(lines, "This job is accepted all the same.", "  ")
    contact_line(lines)
    say(table.concat(lines, "\n"))
  end

  local token = lib.ledger.next_token(state)
  if job.record then
    for _, index in ipairs(job.class.scopes) do
      if not job.counted.scopes[index] then
        -- It moves to where it did not count at all; where it did, it counts twice until the next table.
        growth = job.sum
      end
    end
    if growth.jobs > 0 or growth.mgpu > 0 or growth.cpus > 0 or growth.mib > 0 then
      lib.ledger.admit(state, token, job, growth)
    end
    record(job, state, "allow", token, growth)
    return slurm.SUCCESS
  end
  for field, value in pairs(job.writes) do
    job.desc[field] = value
  end
  local comment = "slurm-gpu/1 t=" .. token
  if job.kind == "interactive" then
    comment = comment .. " k=i"
  end
  if job.nearest_rule then
    comment = comment .. " r=" .. job.nearest_rule
  end
  local foreign = job.desc.admin_comment
  if type(foreign) == "string" and foreign ~= "" then
    comment = comment .. " " .. foreign
  end
  job.desc.admin_comment = comment
  lib.ledger.admit(state, token, job, job.sum)
  record(job, state, "allow", token, job.sum)
  return slurm.SUCCESS
end
