-- requires: advice, cutshort, decisions, het, ledger, loan, placed, scopes, shared, snapshot, wording
-- Decides on a judged job and sends messages about it to the user. Only this module writes to job_desc.
local policy, lib = ...
local decide = {}

local NONE = {}
local wrap, ledger, decisions = lib.wording.wrap, lib.ledger, lib.decisions

-- The percent-encoded ID of each rule, for AdminComment, in which spaces separate fields.
local noted = {}
for _, rule in ipairs(policy.rules) do
  noted[rule.id] = lib.snapshot.encode(rule.id)
end

-- Whether the last decision sent the user a message.
decide.has_message = false

local function say(text)
  decide.has_message = true
  slurm.log_user("%s", text)
end

-- Returns the amounts of a finding as a sentence.
local function numbers_of(finding, job)
  local rule = finding.rule
  local numbers = finding.label .. ": "
  if finding.used then
    local recent = finding.recent and " (" .. finding.recent .. " just submitted)" or ""
    numbers = numbers .. "used " .. finding.used .. recent .. ", "
  end
  local bound = finding.limit and "limit " .. finding.limit or finding.least or "allowed " .. finding.allowed
  numbers = numbers .. bound .. ", requested " .. finding.requested
  if rule.per == "group" then
    local group = policy.groups[rule.group]
    numbers = numbers .. " (limit shared by " .. (group.label or "group " .. group.name) .. ")"
  elseif rule.per == "account" then
    local account = job.account == "" and "all jobs without an account" or "account " .. job.account
    numbers = numbers .. " (limit shared by " .. account .. ")"
  end
  return numbers .. "."
end

-- Adds the amounts of a finding. The rule and its reason come first, unless the previous finding has the same rule.
local function explain_finding(lines, finding, job, before)
  local rule = finding.rule
  if before == nil or before.rule.id ~= rule.id then
    local opening = finding.mode == "enforce" and "Refused by " or "Violates "
    wrap(lines, opening .. (rule.title or "rule " .. rule.id) .. ": " .. rule.why, "")
    for _, only in ipairs({ rule.jobs or false, rule.when or false }) do
      if only then
        wrap(lines, "The rule applies to jobs " .. only.text .. ".", "  ")
      end
    end
  end
  if finding.text then
    wrap(lines, finding.text, "  ")
    return
  end
  wrap(lines, numbers_of(finding, job), "  ")
  local explained = before and before.label:find("GPUs ")
  if finding.label:find("GPUs ") and job.form == "whole_nodes" and not (finding.least or explained) then
    wrap(lines, "An exclusive job gets all GPUs of its nodes, even those that it does not request.", "  ")
  end
  if finding.remark then
    wrap(lines, finding.remark, "  ")
  end
  if finding.command then
    wrap(lines, finding.opening, "  ")
    lines[#lines + 1] = "    " .. finding.command -- never wrapped, because users copy it
  end
  if finding.label == "time limit" and job.walltime_from then
    wrap(lines, "Without --time, the job gets the default time limit of partition " .. job.walltime_from .. ".", "  ")
  end
end

local function contact_line(lines)
  if policy.contact then
    wrap(lines, "Questions: " .. policy.contact, "  ")
  end
end

-- Returns the changes that rules in this mode make to a job, as a list of {rule, text, finding = the exceeded limit},
-- with one entry for each rule.
local function changes_in(mode, job)
  local found = {}
  for _, change in ipairs(job.changes or {}) do
    if change.rule.mode == mode then
      local last = found[#found]
      if last == nil or last.rule ~= change.rule then
        last = { rule = change.rule, text = "" }
        found[#found + 1] = last
      end
      local was = change.was and mode == "fit" and " (was " .. change.was .. ")" or ""
      last.text = last.text .. (last.text ~= "" and " " or "") .. change.option .. was
      last.finding = change.finding
    end
  end
  return found
end

-- Adds the limit that is the reason for a change, if there is one.
local function add_numbers(lines, one, job)
  if one.finding then
    wrap(lines, numbers_of(one.finding, job), "  ")
  end
end

-- Sends the user a line about each rule that changed the job, or would do so in mode `fit`.
local function report_changes(job)
  local lines = {}
  for _, one in ipairs(changes_in("fit", job)) do
    wrap(lines, "Rule " .. one.rule.id .. " sets " .. one.text .. ": " .. one.rule.why, "")
    add_numbers(lines, one, job)
  end
  for _, one in ipairs(changes_in("advise", job)) do
    wrap(lines, "Rule " .. one.rule.id .. ": " .. one.rule.why .. " Try: " .. one.text, "")
    add_numbers(lines, one, job)
  end
  if #lines > 0 then
    say(table.concat(lines, "\n"))
  end
end

-- Returns the amounts that a job adds to the sums: all amounts of a new job or, for an update, their increase.
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

local function is_growth(growth)
  for measure, value in pairs(growth) do
    if value > 0 and not measure:find(":", 1, true) then
      return true
    end
  end
  return false
end

-- Sends the owner a message about sharing GPUs, if there is one, and returns the job's field for AdminComment.
function decide.share(job)
  local share, lines = job.share, {}
  lib.shared(lines, share)
  if #lines > 0 then
    say(table.concat(lines, "\n"))
  end
  if share.environment then
    for _, name in ipairs(share.environment) do
      if job.desc.environment and job.desc.environment[name] then
        job.desc.environment[name] = ""
      end
    end
    return " c=" .. share.text
  end
  return share.key and " c=-:" .. share.key or ""
end

-- Accepts a new job: sends messages about it, writes to its job_desc, counts it, and logs it.
function decide.accept(job, state)
  local token = ledger.next_token(state)
  if job.loan then
    local lines = {}
    lib.loan(lines, job.loan)
    say(table.concat(lines, "\n"))
  end
  if job.place then
    local lines = {}
    lib.placed(lines, job.place)
    if #lines > 0 then
      say(table.concat(lines, "\n"))
    end
  end
  if job.cut_short then
    local lines = {}
    lib.cutshort(lines, job.cut_short, job)
    say(table.concat(lines, "\n"))
  end
  for field, value in pairs(job.fields or NONE) do
    job.desc[field] = value
  end
  for field, value in pairs(job.writes) do
    job.desc[field] = value
  end
  local shared = ""
  if job.share then
    shared = decide.share(job)
  end
  local kind = job.kind == "interactive" and " k=i" or ""
  local whole = job.notes_whole_nodes and " w=1" or ""
  local qos = job.qos:find(",", 1, true) and not job.qos:find("%s") and " q=" .. job.qos or ""
  local loan = job.loan and job.loan.always and " l=" .. table.concat(job.loan.owners, ",") or ""
  local nearest = job.nearest_rule and " r=" .. noted[job.nearest_rule] or ""
  -- slurm-gpuctld requires that zones are recorded only if a constraint was written.
  local zones = job.writes.features
      and (job.order and " o=" .. table.concat(job.order, ",") or " z=" .. job.place.text)
    or ""
  local foreign = job.desc.admin_comment
  foreign = type(foreign) == "string" and foreign ~= "" and " " .. foreign or ""
  job.desc.admin_comment = "slurm-gpu/1 t=" .. token .. kind .. whole .. qos .. loan .. shared .. nearest .. zones .. foreign
  lib.het.accept(job, state)
  job.claim = job.claim or ledger.claim(job, job.sum)
  ledger.admit(state, token, job, job.claim)
  decisions.record(job, state, "allow", token, job.sum)
  return slurm.SUCCESS
end

-- Accepts or refuses a judged job; returns the code for Slurm.
function decide.run(job, state)
  local refusals, advice, failed = {}, {}, false
  decide.has_message = false
  for _, finding in ipairs(job.findings) do
    if finding.error then
      slurm.log_error("%s", "slurm-gpu: rule " .. finding.rule.id .. " failed: " .. finding.error)
      failed = failed or finding.rule.denies_errors
    elseif finding.mode == "enforce" then
      refusals[#refusals + 1] = finding
    elseif finding.mode == "advise" then
      advice[#advice + 1] = finding
    end
  end
  local growth = growth_of(job)
  if #refusals > 0 or failed then
    local lines = {}
    if #refusals == 0 then
      wrap(lines, "Refused: a rule of the policy could not be checked (on_error: deny).", "")
    end
    for index, finding in ipairs(refusals) do
      explain_finding(lines, finding, job, refusals[index - 1])
    end
    for _, one in ipairs(changes_in("fit", job)) do
      wrap(lines, "Before this check, rule " .. one.rule.id .. " set " .. one.text .. ".", "  ")
      add_numbers(lines, one, job)
    end
    if #refusals > 0 then
      lib.advice(lines, job, state, refusals)
    end
    contact_line(lines)
    say(table.concat(lines, "\n"))
    decisions.record(job, state, "deny", "-", growth)
    return slurm.ESLURM_ACCOUNTING_POLICY or 2050
  end
  report_changes(job)
  if #advice > 0 then
    local lines = {}
    for index, finding in ipairs(advice) do
      explain_finding(lines, finding, job, advice[index - 1])
    end
    wrap(lines, "Warning only; the job was accepted.", "  ")
    contact_line(lines)
    say(table.concat(lines, "\n"))
  end

  if job.record then
    if job.writes.max_nodes then
      job.desc.max_nodes = job.writes.max_nodes
    end
    local token = ledger.next_token(state)
    for _, rule in ipairs(job.class.rules) do
      if job.class.scopes[rule.scope] and not lib.scopes.counted(rule, job) then
        -- The job enters a sum that did not include it before. Other sums count the job twice until the next table.
        growth = job.sum
      end
    end
    if is_growth(growth) then
      ledger.admit(state, token, job, ledger.claim(job, growth))
    end
    decisions.record(job, state, "allow", token, growth)
    return slurm.SUCCESS
  end
  return decide.accept(job, state)
end

return decide
