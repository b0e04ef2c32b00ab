-- requires: again, chain, clock, decide, job, state
-- The two functions that Slurm calls. Whatever fails inside, the decision is the policy's, not Slurm's:
-- until 25.11 an error would let every job in, from 26.05 on it would let none in.
local policy, lib = ...

local state = lib.state.new()

-- Whether some enforced rule wants jobs refused when it cannot be checked.
local deny_on_error = false
for _, rule in ipairs(policy.rules) do
  deny_on_error = deny_on_error or (rule.mode == "enforce" and rule.on_error == "deny")
end

-- The job that is being decided, as soon as there is one: `protected` asks it whose on_error counts if the decision
-- fails.
local at_hand

local function judge(job)
  at_hand = job
  local code = lib.decide.run(lib.again.judge(job, state), state)
  job.desc, job.parts = nil, nil -- they are Slurm's, and may be kept no longer than this call
  if code == slurm.SUCCESS and not lib.decide.said then
    lib.again.keep(job)
  end
  return code
end

-- The decision on a new job. One like a job before it gets no table of its own: what is made here is collected in
-- slurmctld's time, which looks at every job in slurm.jobs as it does so.
local function decide(desc, parts, submit_uid, now, up, queue_error)
  local kind = lib.job.kind_of(desc, state)
  local known = queue_error == nil and lib.again.find(state, kind, desc, parts, submit_uid, now, up)
  if known then
    at_hand = known
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
    queue_error = queue_error,
  })
end

-- The code of `ask`, or where that fails the policy's own answer and one line in slurmctld's log.
local function protected(ask, ...)
  local fine, result = pcall(ask, ...)
  local job = at_hand
  at_hand = nil -- it may still have Slurm's job_desc
  if fine and type(result) == "number" then
    return result
  end
  pcall(slurm.log_error, "%s", "slurm-gpu: the decision failed: " .. tostring(result))
  local deny = job and job.on_error_deny -- known once the job's rules were
  if deny == nil then
    deny = deny_on_error
  end
  if not deny then
    return slurm.SUCCESS
  end
  pcall(
    slurm.log_user,
    "%s",
    "Refused: the policy could not be checked, and it says that no job passes then."
      .. (policy.contact and "\n  Please tell: " .. policy.contact or "")
  )
  return slurm.ERROR
end

-- Our decision between those of a site's own script, where it has one: the first that refuses is the answer.
local function ask_in_turn(ours, name, ...)
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

-- Every call looks at the queue first: the table is safe to read only in the call that got it.
local refresh = lib.state.refresh

function slurm_job_submit(job_desc, part_list, submit_uid)
  local now, up = os.time(), lib.clock.uptime()
  local fine, reason = pcall(refresh, state, now, up)
  local queue_error = not fine and tostring(reason) or nil
  if not lib.chain.present then
    return protected(decide, job_desc, part_list, submit_uid, now, up, queue_error)
  end
  return ask_in_turn(function()
    return protected(decide, job_desc, part_list, submit_uid, now, up, queue_error)
  end, "slurm_job_submit", job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  local now, up = os.time(), lib.clock.uptime()
  local fine, reason = pcall(refresh, state, now, up)
  pcall(function()
    lib.state.forget(state, job_rec.job_id)
  end)
  -- Only owners are checked: for anyone else Slurm itself asks operator's rights, and those decide.
  local by_owner = modify_uid ~= 0 and modify_uid ~= policy.slurm_user_uid and modify_uid == job_rec.user_id
  return ask_in_turn(function()
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

-- A starting slurmctld loads the script before it recovers its jobs. It stamps the empty table and the
-- recovery in whole seconds, and would take the table for up to date if both fell into one; so the script
-- lets that second pass. Under a slurmctld without any job this costs a reload up to a second, too.
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
