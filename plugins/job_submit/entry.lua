-- requires: again, chain, clock, decide, het, job, queue, state
-- Defines the two functions that Slurm calls. Both functions catch every error and apply the policy's on_error. If the
-- script raised an error, Slurm 25.11 and earlier would accept the job, and Slurm 26.05 and later would refuse it.
local policy, lib = ...

local state = lib.state.new()

-- Whether any rule refuses jobs if it cannot be evaluated.
local deny_on_error = false
for _, rule in ipairs(policy.rules) do
  deny_on_error = deny_on_error or rule.denies_errors
end

-- The job of the current decision, once known. If the decision fails, `protected` applies the on_error of the job's
-- rules.
local current

local function judge(job)
  current = job
  local code = lib.decide.run(lib.again.judge(job, state), state)
  job.desc, job.parts = nil, nil -- Slurm's values are valid only during this call
  if code == slurm.SUCCESS and not lib.decide.has_message then
    lib.again.keep(job)
  end
  return code
end

-- Decides on a new job. Creates no table for a job that is identical to an earlier job: tables cause garbage
-- collections, which delay slurmctld because a collection visits every job in slurm.jobs.
local function decide(desc, parts, submit_uid, now, up, queue_error)
  local kind = lib.job.kind_of(desc, state)
  local het = lib.het.earlier(desc, state)
  local known = queue_error == nil and not het and lib.again.find(state, kind, desc, parts, submit_uid, now, up)
  if known then
    current = known
    local code = lib.decide.accept(known, state)
    known.desc = nil
    return code
  end
  return judge({
    desc = desc,
    parts = parts,
    submit_uid = submit_uid,
    now = now,
    up = up,
    kind = kind,
    het = het,
    queue_error = queue_error,
  })
end

-- Calls `ask` and returns its code. If `ask` fails, logs one line to slurmctld's log and applies on_error.
local function protected(ask, ...)
  local fine, result = pcall(ask, ...)
  local job = current
  current = nil -- the last job may still refer to Slurm's job_desc
  if fine and type(result) == "number" then
    return result
  end
  pcall(slurm.log_error, "%s", "slurm-gpu: the decision failed: " .. tostring(result))
  local deny = job and job.on_error_deny -- set once the job's rules are known
  if deny == nil then
    deny = deny_on_error
  end
  if not deny then
    return slurm.SUCCESS
  end
  pcall(
    slurm.log_user,
    "%s",
    "Refused: the policy could not be checked (on_error: deny)."
      .. (policy.contact and "\n  Please report this to: " .. policy.contact or "")
  )
  return slurm.ERROR
end

-- Runs the site's `before` script, this policy and the site's `after` script until one refuses the job.
local function ask_in_order(ours, name, ...)
  local arguments, code = { ... }, nil
  local unpack_all = unpack or table.unpack
  for _, place in ipairs({ "before", "ours", "after" }) do
    if place == "ours" then
      code = ours()
    else
      code = protected(function()
        return lib.chain.ask(place, name, unpack_all(arguments, 1, 4))
      end)
    end
    if code ~= slurm.SUCCESS then
      return code
    end
  end
  return slurm.SUCCESS
end

-- Every call reads the queue first: the table of jobs is safe to read only in the call that received it.
local refresh = lib.state.refresh

function slurm_job_submit(job_desc, part_list, submit_uid)
  pcall(lib.queue.note_partitions, part_list)
  local now, up = os.time(), lib.clock.uptime()
  local fine, reason = pcall(refresh, state, now, up)
  local queue_error = not fine and tostring(reason) or nil
  if not lib.chain.present then
    return protected(decide, job_desc, part_list, submit_uid, now, up, queue_error)
  end
  return ask_in_order(function()
    return protected(decide, job_desc, part_list, submit_uid, now, up, queue_error)
  end, "slurm_job_submit", job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  pcall(lib.queue.note_partitions, part_list)
  local now, up = os.time(), lib.clock.uptime()
  local fine, reason = pcall(refresh, state, now, up)
  pcall(function()
    lib.state.forget(state, job_rec.job_id)
  end)
  -- Only updates by the job's owner are checked: all other updates come from operators, who may exceed limits.
  local by_owner = modify_uid ~= 0 and modify_uid ~= policy.slurm_user_uid and modify_uid == job_rec.user_id
  return ask_in_order(function()
    return by_owner
        and protected(judge, {
          desc = job_desc,
          record = job_rec,
          parts = part_list,
          submit_uid = modify_uid,
          now = now,
          up = up,
          queue_error = not fine and tostring(reason) or nil,
        })
      or slurm.SUCCESS
  end, "slurm_job_modify", job_desc, job_rec, part_list, modify_uid)
end

-- A starting slurmctld loads the script before it recovers its jobs. slurmctld stamps the empty table and the recovery
-- in whole seconds, and treats the table as current if the stamps are equal. The script therefore waits for the next
-- second, even if it is reloaded while slurmctld has no jobs.
local function outlast_this_second()
  local comm = io.open("/proc/self/comm", "r")
  local name = comm and comm:read("*l")
  if comm then
    comm:close()
  end
  local second, cpu_s = os.time(), os.clock()
  while name == "slurmctld" and os.time() == second and os.clock() - cpu_s < 4 do
  end
end

if next(slurm.jobs or {}) == nil then
  outlast_this_second()
end

return slurm.SUCCESS
