-- Jobs of so many GPUs that the site wants a reservation for them: findings as in 30_limits. One whose user has a
-- reservation for it, or that names one, is fine; and so is every job while slurm-gpuctld does not tell. Adds to job:
-- reserve_key = what was read of reservations.
local _, lib = ...
local amounts = lib.amounts

local function names_one(desc)
  return type(desc.reservation) == "string" and desc.reservation ~= ""
end

-- What to type for a reservation of this job.
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

local function run(job, state)
  if job.mgpu <= 0 then
    return {}
  end
  local key, found = lib.reserved.table_of(state.snapshot)
  job.reserve_key = key
  if found == nil or job.mgpu < found.mgpu or names_one(job.desc) then
    return {}
  elseif job.record and job.mgpu <= job.was.mgpu and job.desc.reservation ~= "" then
    return {} -- an update that does not ask for more, nor takes it out of the reservation that it named
  end
  local user = job.user or lib.snapshot.user_name(state.snapshot, job.uid)
  if user == nil or lib.reserved.holds(found, job, user) then
    return {}
  end
  local from = amounts.format_mgpu(found.mgpu)
  return {
    {
      rule = {
        id = "reservation",
        title = "the rule on reservations",
        per = "job",
        why = "jobs of " .. from .. " GPUs and more have one, so that they start when it was promised.",
        mode = found.mode,
        on_error = "allow",
      },
      key = "reservation",
      label = "GPUs without a reservation",
      limit = amounts.format_mgpu(found.mgpu - 1000),
      requested = amounts.format_mgpu(job.mgpu),
      mode = found.mode,
      opening = "Ask for one, and submit when it is approved:",
      command = request_of(job),
    },
  }
end

-- Whether a job like one before it would be found just the same: as long as reservations are told alike.
local function again(job, state)
  return job.reserve_key == nil or job.reserve_key == (lib.reserved.table_of(state.snapshot))
end

return { run = run, again = again }
