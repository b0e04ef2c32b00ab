-- requires: ledger, queue, scopes, size, snapshot, sums
-- What is there: usage by group and user, from slurm.jobs and from what was admitted since.
--
-- Slurm rebuilds slurm.jobs only when its whole-second stamp of the last job change advances, so the table
-- may lack jobs of the current second; and the check and the insertion of a job are never atomic. Hence the
-- ledger: every admission counts from the moment it was given, until a table shows the job (by the token in
-- its AdminComment) or was built late enough that the job would be in it (it was --test-only, or Slurm
-- itself refused it). Admissions are also lines of decisions.log, from which the ledger is rebuilt when the
-- script is loaded anew.
--
-- Where slurm-gpuctld writes a snapshot, its sums take the table's place, and the ledger works alike: an admission
-- counts until a snapshot has seen its token, or was taken late enough that it would have.
local policy, lib = ...
local state_module = {}

-- The longest table that is read where a snapshot is there and no good: beyond it, on_error decides.
local MOST_JOBS = 20000

-- Seconds for which one look at the snapshot is good.
local LOOK_S = 0.05

-- Takes the sums of a new snapshot; in state.use stands only what it does not know yet.
local function read_snapshot(state, snapshot, now)
  local before = state.counted
  if before and before.began and snapshot.began then
    state.gap = math.max(snapshot.began - before.began, 0)
  end
  state.counting, state.counted = "snapshot", snapshot
  -- Names of accounts and partitions can be anything until Slurm refuses them: what is kept by them must not grow.
  state.classes, state.known = {}, {}
  state.use = lib.sums.fresh()
  lib.ledger.compare(state, snapshot, now)
end

-- The snapshot in force, and what is wrong with the file, looked at anew where that was some time ago. Without an
-- uptime nobody knows.
local function look(state, now, up)
  local since = up and state.looked_up and up - state.looked_up
  if not (since and since >= 0 and since < LOOK_S) then
    state.snapshot, state.problem, state.missing = lib.snapshot.look(state.snapshot or state.counted, now)
    state.looked_up = up
  end
  return state.snapshot, state.problem
end

-- One line in slurmctld's log when the queue is counted since there is no good snapshot, and one when there is.
local function complain(state, reason)
  if state.complained ~= (reason ~= nil) then
    state.complained = reason ~= nil
    local good = "there is a good " .. tostring(policy.snapshot) .. " again"
    slurm.log_info("%s", "slurm-gpu: " .. (reason and reason .. "; the queue is counted instead" or good))
  end
end

-- The state of a newly loaded script.
function state_module.new()
  local state = {
    jobs = nil, -- the table of the last call, kept only to know a new one
    counting = nil, -- "table" or "snapshot": where the sums come from
    counted = nil, -- the snapshot whose sums are in force
    snapshot = nil, -- the last fresh one, for what no table tells
    problem = nil, -- what is wrong with the snapshot that is there
    missing = nil, -- why there is none
    complained = false, -- whether that was said
    looked_up = nil, -- the uptime of the last look at it
    up = nil, -- the uptime of this call
    gap = 1, -- seconds from the last snapshot but one to the last
    whole = false, -- whether the last table could be read
    known = {}, -- job id → what does not change while its state does not
    classes = {},
    use = lib.sums.fresh(),
    het_kind = {}, -- uid → kind of the het job whose components are coming
    restored = false,
  }
  for name, value in pairs(lib.ledger.new()) do
    state[name] = value
  end
  return state
end

-- Brings the state up to date; must run in every call before anything else does. `up` is the machine's uptime, nil
-- where it does not tell.
function state_module.refresh(state, now, up)
  state.up = up
  local jobs = slurm.jobs or {}
  local is_new = state.jobs ~= jobs or not state.restored
  state.jobs = jobs
  if not state.restored then
    state.restored = true
    local fine, reason = pcall(lib.ledger.restore, state, now) -- a log that cannot be read must cost no decision
    if not fine then
      slurm.log_error("%s", "slurm-gpu: " .. policy.decisions_log .. " cannot be read: " .. tostring(reason))
    end
  end
  local snapshot, problem = look(state, now, up)
  -- The snapshot knows no kinds: where a sum is over one kind, the table is read instead.
  if snapshot and not lib.scopes.sums_by_kind then
    if state.counting ~= "snapshot" or state.counted ~= snapshot then
      read_snapshot(state, snapshot, now)
      complain(state, nil)
    end
  elseif is_new then
    if problem and lib.queue.longer_than(jobs, MOST_JOBS) then
      state.counting, state.whole = "table", false
      error(problem .. ", and the queue is too long to be read instead; is slurm-gpuctld running?", 0)
    end
    lib.queue.read(state, jobs, now)
    complain(state, not snapshot and (problem or state.missing) or nil)
  elseif state.counting == "table" and not state.whole then
    error("the queue could not be read; see the first error of this kind")
  else
    -- No job has changed since the sums were made, be they of the table or of a snapshot.
    lib.ledger.expire(state, now)
  end
end

-- What a rule's jobs use, all of its group or one user's among them, as two tables by measure: what was counted here,
-- and what the snapshot tells; nil for none. `user` is the name behind uid, nil where it is not known.
function state_module.sums(state, rule, uid, user)
  local own = state.use[rule.scope]
  if rule.per == "user" then
    own = own.users[uid]
  else
    own = own.all
  end
  if state.counting ~= "snapshot" then
    return own, nil
  end
  local name
  if rule.per == "user" then
    name = user or lib.snapshot.user_name(state.counted, uid)
    if name == nil then
      return own, nil
    end
  end
  return own, lib.snapshot.use(state.counted, policy.groups[rule.group].name, name)
end

-- The same of one measure, as a number.
function state_module.used(state, rule, measure, uid, user)
  local own, told = state_module.sums(state, rule, uid, user)
  return (own and own[measure] or 0) + (told and told[measure] or 0)
end

-- GPU-hours used in the running period; raises an error where slurm-gpuctld has not told them.
function state_module.gpu_hours(state, rule, period, uid, user)
  local snapshot = state.snapshot
  if not (snapshot and snapshot.has_hours) then
    error("GPU-hours are not known: they need slurm-gpuctld and its snapshot", 0)
  end
  local name
  if rule.per == "user" then
    name = user or lib.snapshot.user_name(snapshot, uid)
    if name == nil then
      return 0
    end
  end
  return lib.snapshot.use(snapshot, policy.groups[rule.group].name, name)["gpu_h_" .. period] or 0
end

-- Forgets what was read of a job that is about to be updated.
function state_module.forget(state, job_id)
  state.known[string.format("%.0f", job_id)] = nil
end

-- The youngest pending job of a user that counts for a rule; nil where none is known. `user` as in `used`.
function state_module.youngest_pending(state, rule, uid, user)
  if state.counting == "snapshot" then
    local name = user or lib.snapshot.user_name(state.counted, uid)
    return name and lib.snapshot.use(state.counted, policy.groups[rule.group].name, name).last_pend
  end
  local youngest
  for _, class in pairs(state.classes) do
    if class.uid == uid and class.pending and (youngest == nil or class.pending > youngest) then
      if lib.sums.belongs(class, rule.scope) then
        youngest = class.pending
      end
    end
  end
  return youngest
end

-- The module proper: finds the job's class, and what the job already counts for if it is being updated.
function state_module.run(job, state)
  job.class = lib.sums.classify(state, job.uid, job.account, job.qos, job.partition, job.kind)
  job.in_scope = {}
  for _, index in ipairs(job.class.scopes) do
    job.in_scope[index] = true
  end
  job.on_error_deny = false
  for _, rule in ipairs(policy.rules) do
    local denies = rule.mode == "enforce" and rule.on_error == "deny"
    if denies and job.in_scope[rule.scope] and lib.scopes.in_force(rule, job.now) then
      job.on_error_deny = true
    end
  end
  if job.queue_error then
    error(job.queue_error, 0)
  end
  job.sum = lib.size.vector(job.size, job.tasks)
  -- What it counts for already, by measure, and in which scopes; nothing if it is new.
  job.counted = { sum = {}, scopes = {} }
  if job.record then
    local before = lib.queue.describe(state, job.record, job.record.job_state % 256)
    job.counted.sum = lib.size.vector(job.was, job.tasks)
    for _, index in ipairs(before.class.scopes) do
      job.counted.scopes[index] = true
    end
  end
end

return state_module
