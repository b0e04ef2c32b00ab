-- requires: amounts, measures, reserved, snapshot
-- Finds large jobs without a reservation, and returns findings as limits.lua does. A job passes if it names a
-- reservation or if its user has a reservation that is large enough. All jobs pass while the snapshot has no lines
-- about reservations. Adds to job: reserve_key = these lines; has_reserved = whether the user has any reservation;
-- cut_short = the user's reservation in which the job runs and which ends before the job.
local _, lib = ...
local amounts = lib.amounts

-- Returns the value of --reservation; nil without this option.
local function named(desc)
  return type(desc.reservation) == "string" and desc.reservation ~= "" and desc.reservation or nil
end

-- Returns the command that requests a reservation for this job.
local function request_of(job)
  local seconds = job.walltime_s or math.huge
  local time = "1d"
  if seconds < math.huge then
    local minutes = math.ceil(seconds / 60)
    local hours = math.floor(minutes / 60)
    time = string.format("%.0f-%02.0f:%02.0f:00", math.floor(hours / 24), hours % 24, minutes % 60)
  end
  local words = { "slurm-gpu reserve request", string.format("--gpus %.0f", math.ceil(job.mgpu / 1000)) }
  local nodes = amounts.least_nodes(job.request)
  if nodes > 1 then
    words[#words + 1] = string.format("--nodes %.0f", nodes)
  end
  words[#words + 1] = "--time " .. time
  if job.account ~= "" then
    words[#words + 1] = "--account " .. job.account
  end
  if job.partition ~= "" then
    words[#words + 1] = "--partition " .. job.partition:match("[^,]+")
  end
  words[#words + 1] = "--why …"
  return table.concat(words, " ")
end

-- Returns the rule, in the form of the policy's rules.
local function rule_of(found)
  local from = amounts.format_mgpu(found.mgpu)
  return {
    id = "reservation",
    title = "the reservation rule",
    per = "job",
    why = "jobs with " .. from .. " or more GPUs need a reservation, so that they start at an agreed time.",
    mode = found.mode,
    on_error = "allow",
  }
end

local function finding_of(job, found, user)
  local smaller = user and lib.reserved.too_small(found, job, user)
  return {
    rule = rule_of(found),
    key = "reservation",
    label = "GPUs without a reservation",
    limit = amounts.format_mgpu(found.mgpu - 1000),
    requested = amounts.format_mgpu(job.mgpu),
    mode = found.mode,
    remark = smaller and string.format(
      "Your reservation%s is for %s GPUs, too few for this job.",
      smaller.name and " " .. smaller.name or "",
      amounts.format_mgpu(smaller.mgpu)
    ),
    opening = "Request a reservation; after its approval, submit the job:",
    command = request_of(job),
  }
end

-- Returns whether a job satisfies the rule.
local function satisfies(job, found, user)
  if job.mgpu <= 0 or job.mgpu < found.mgpu or named(job.desc) then
    return true
  elseif job.record and job.mgpu <= job.was.mgpu and job.desc.reservation ~= "" then
    return true -- the update neither requests more GPUs nor clears the reservation
  end
  return user ~= nil and lib.reserved.holds(found, job, user)
end

local function run(job, state)
  local key, found = lib.reserved.table_of(state.snapshot)
  job.reserve_key = key
  if found == nil then
    return {}
  end
  local user = job.user or lib.snapshot.user_name(state.snapshot, job.uid)
  job.has_reserved = user ~= nil and found.held[user] ~= nil
  if job.has_reserved and job.record == nil then
    job.cut_short = lib.reserved.ends_before(found, job, user, named(job.desc))
  end
  local fine = satisfies(job, found, user)
  if found.mgpu < math.huge and job.mgpu > 0 and lib.measures.are_reported(job) then
    lib.measures.report(finding_of(job, found, user), fine)
  end
  return fine and {} or { finding_of(job, found, user) }
end

-- Returns whether an equal job would get the same findings: true if the lines about reservations are unchanged and
-- its user has no reservation. Otherwise, the findings depend on the second of submission.
local function again(job, state)
  return not job.has_reserved
    and (job.reserve_key == nil or job.reserve_key == (lib.reserved.table_of(state.snapshot)))
end

return { run = run, again = again }
