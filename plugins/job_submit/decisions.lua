-- requires: measures, scopes, size
-- Writes one line to decisions.log for each decision. The ledger is rebuilt from this log when the script is loaded.
local policy, lib = ...
local decisions = {}

-- The file is kept open for at most one second. Few lines are therefore written to the old file after a rename.
local file, size, opened_at = nil, 0, nil

-- Whether the last line may be incomplete, for example on a full file system; the next line must not continue it.
local torn = false

local function encode(value)
  return (tostring(value):gsub("[^%w_.:/,+@-]", function(byte)
    return string.format("%%%02X", string.byte(byte))
  end))
end

local function close()
  if file then
    file:close()
    file = nil
  end
end

-- Opens the log, after renaming it if it is too long. Returns the error, if any.
local function open(now)
  close()
  local reason
  file, reason = io.open(policy.decisions_log, "a")
  size = file and file:seek("end") or 0
  if file and size > policy.decisions_log_bytes then
    close()
    os.rename(policy.decisions_log, policy.decisions_log .. ".1")
    file, reason = io.open(policy.decisions_log, "a")
    size = 0
  end
  if file then
    file:setvbuf("no") -- each line is written immediately and as a whole
    opened_at = now
  end
  return not file and reason or nil
end

-- Appends one line. A failure is logged, and must not affect the job.
local function write(line, job, state)
  local reason
  if file == nil or opened_at ~= job.now or size > policy.decisions_log_bytes then
    reason = open(job.now)
  end
  if file then
    local written, why = file:write(torn and "\n" .. line or line)
    torn = not written
    if written then
      size = size + #line
      return
    end
    reason = why
    close()
  end
  if state.log_complained_at == nil or job.now - state.log_complained_at >= 60 then
    state.log_complained_at = job.now
    slurm.log_error(
      "%s",
      "slurm-gpu: decisions are not being logged: "
        .. tostring(reason)
        .. "; limits do not count jobs that were submitted in the 2 s before a reload"
    )
  end
end

-- Returns the GPU types of a sum as "a100:2000,h100:0"; nil if no type is counted separately.
local function types_text(sum)
  local types = {}
  for kind in pairs(lib.size.watched) do
    types[#types + 1] = string.format("%s:%.0f", kind, sum["mgpu:" .. kind] or 0)
  end
  table.sort(types)
  return #types > 0 and table.concat(types, ",") or nil
end

-- Returns the fields for the owner, account, QOS and partition of a job; all jobs of a class share these fields.
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

-- Returns the fields that follow the token in a line about the job.
local function text_of(job, sum)
  local ids, errors = {}, {}
  for _, finding in ipairs(job.findings) do
    ids[#ids + 1] = finding.rule.id .. ":" .. finding.key .. ":" .. (finding.error and "error" or finding.mode)
    if finding.error then
      errors[#errors + 1] = finding.error
    end
  end
  local changed = {}
  for index, change in ipairs(job.changes or {}) do
    ids[#ids + 1] = change.rule.id .. ":set:" .. change.key .. ":" .. change.rule.mode
    changed[index] = change.rule.id .. ":" .. change.rule.mode .. ":" .. change.option
  end
  local fields = {
    owner_text(job),
    string.format("tasks=%.0f", sum.jobs),
    string.format("mgpu=%.0f", sum.mgpu),
    string.format("cpus=%.0f", sum.cpus),
    string.format("mib=%.0f", sum.mib),
    "walltime=" .. (job.walltime_s and string.format("%.0f", math.min(job.walltime_s, 1e15)) or "-"),
    "rules=" .. (#ids > 0 and encode(table.concat(ids, ",")) or "-"),
  }
  local committed = {}
  for _, hours in ipairs(lib.measures.committed) do
    if sum[hours.unit] then
      committed[#committed + 1] = string.format("%s:%.6f", hours.unit, sum[hours.unit])
    end
  end
  if #committed > 0 then
    fields[#fields + 1] = "committed=" .. table.concat(committed, ",")
  end
  local types = types_text(sum)
  if types then
    fields[#fields + 1] = "types=" .. encode(types)
  end
  if job.kind == "interactive" then
    fields[#fields + 1] = "kind=interactive"
  end
  if lib.scopes.selects then
    fields[#fields + 1] = "selected=" .. encode(lib.scopes.selected_ids(job.selection))
  end
  if #changed > 0 then
    fields[#fields + 1] = "changes=" .. encode(table.concat(changed, ";"))
  end
  if job.place then
    fields[#fields + 1] = "zone=" .. encode(job.place.mode .. ":" .. job.place.text)
  end
  if job.urgent then
    fields[#fields + 1] = "urgent=" .. encode(job.urgent)
  end
  if job.share then
    fields[#fields + 1] = "share=" .. encode(job.share.mode .. ":" .. job.share.text)
  end
  if #errors > 0 then
    fields[#fields + 1] = "error=" .. encode(table.concat(errors, "; "))
  end
  return table.concat(fields, " ")
end

-- The text at the beginning of all lines of one second, and that second.
local opening, opening_of

-- Logs a decision. `sum` has the amounts that the job adds; they are the same in each line about one job.
function decisions.record(job, state, verdict, token, sum)
  if opening_of ~= job.now then
    opening, opening_of = string.format("slurm-gpu/1 %.0f ", job.now), job.now
  end
  local call = job.record and "modify " or "submit "
  job.logged = job.logged or text_of(job, sum)
  write(opening .. call .. verdict .. " " .. token .. " " .. job.logged .. "\n", job, state)
end

return decisions
