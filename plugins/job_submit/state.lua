-- requires: ledger, measures, queue, scopes, snapshot, sums
-- Computes the current use by group and user, from slurm.jobs or a snapshot, and from jobs that were accepted later.
--
-- Slurm rebuilds slurm.jobs only when its whole-second stamp of the last job change advances, so the table may lack
-- jobs of the current second. The check and the insertion of a job are never atomic either. The ledger therefore counts
-- every admission from the moment of the decision. An admission stops counting when a table contains the job (by the
-- token in its AdminComment). An admission also stops counting when a table that must contain the job does not: the job
-- was --test-only, or Slurm refused it. Admissions are also written to decisions.log, from which the ledger is rebuilt
-- when the script is loaded again.
--
-- If slurm-gpuctld writes a snapshot, the sums in the snapshot replace the table. The ledger works in the same way: an
-- admission counts until a snapshot contains its token, or until a snapshot that must contain the token does not.
local policy, lib = ...
local state_module = {}

-- Maximum number of jobs that are read if the snapshot is unusable. If there are more, on_error applies.
local MOST_JOBS = 20000

-- Minimum number of seconds between two reads of the snapshot file.
local REREAD_S = 0.05

-- Starts to use the sums of a new snapshot; from then on, state.use counts only jobs that the snapshot does not
-- contain.
local function read_snapshot(state, snapshot, now)
  local before = state.counted
  if before and before.began and snapshot.began then
    state.gap = math.max(snapshot.began - before.began, 0)
  end
  state.counting, state.counted = "snapshot", snapshot
  -- Slurm has not checked the submitted account and partition names yet: tables with such keys must not keep growing.
  state.classes, state.known = {}, {}
  state.use = lib.sums.fresh()
  lib.ledger.compare(state, snapshot, now)
end

-- Returns the valid snapshot, and the problem with the file. Reads the file again after REREAD_S, or always if the
-- uptime is unknown.
local function current_snapshot(state, now, up)
  local since = up and state.read_at and up - state.read_at
  if not (since and since >= 0 and since < REREAD_S) then
    state.snapshot, state.problem, state.missing = lib.snapshot.read(state.snapshot or state.counted, now)
    state.read_at = up
  end
  return state.snapshot, state.problem
end

-- Logs one line when the queue is counted because no snapshot is valid, and another when a snapshot is valid again.
local function complain(state, reason)
  if state.complained ~= (reason ~= nil) then
    state.complained = reason ~= nil
    local good = tostring(policy.snapshot) .. " is valid again"
    slurm.log_info("%s", "slurm-gpu: " .. (reason and reason .. "; the queue is counted instead" or good))
  end
end

-- Returns the state of a newly loaded script.
function state_module.new()
  local state = {
    jobs = nil, -- The table of the last call, stored only to recognize a new table.
    counting = nil, -- "table" or "snapshot": the source of the sums.
    counted = nil, -- The snapshot whose sums are in use.
    snapshot = nil, -- The valid snapshot, for values that no table has.
    problem = nil, -- The problem with the snapshot, if the file exists.
    missing = nil, -- The reason if there is no file.
    complained = false, -- Whether the lack of a valid snapshot was logged.
    read_at = nil, -- The uptime when the snapshot was last read.
    up = nil, -- The uptime of this call.
    gap = 1, -- Seconds between the last two snapshots.
    whole = false, -- Whether the last table could be read.
    known = {}, -- Descriptions of jobs by job ID (queue.lua).
    classes = {},
    use = lib.sums.fresh(),
    het = {}, -- Amounts of the accepted components of the last het job, by uid.
    het_kind = {}, -- The kind of the het job whose components follow, by uid.
    restored = false,
  }
  for name, value in pairs(lib.ledger.new()) do
    state[name] = value
  end
  return state
end

-- Updates the state; must run first in every call. `up` is the machine's uptime; nil if it cannot be read.
function state_module.refresh(state, now, up)
  state.up = up
  local jobs = slurm.jobs or {}
  local is_new = state.jobs ~= jobs or not state.restored
  state.jobs = jobs
  if not state.restored then
    state.restored = true
    local fine, reason = pcall(lib.ledger.restore, state, now) -- an unreadable log must not affect decisions
    if not fine then
      slurm.log_error("%s", "slurm-gpu: " .. policy.decisions_log .. " cannot be read: " .. tostring(reason))
    end
  end
  local snapshot, problem = current_snapshot(state, now, up)
  -- For sums over only some jobs of a group, the table is read instead.
  if snapshot and not lib.scopes.needs_queue then
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
    -- No job has changed since the sums of the table or of a snapshot were computed.
    lib.ledger.expire(state, now)
  end
end

-- Returns the sums in a snapshot over the jobs that a rule counts together with a job; nil if its user is not known.
local function reported_of(snapshot, rule, job)
  local name = rule.per == "account" and job.account or ""
  if rule.per == "user" then
    name = job.user or lib.snapshot.user_name(snapshot, job.uid)
  end
  return name and lib.snapshot.use(snapshot, policy.groups[rule.group].name, rule.per, name)
end

-- Returns the use by the jobs that a rule counts together with a job, as two tables by measure: jobs counted here,
-- and jobs in the snapshot; nil for none.
function state_module.sums(state, rule, job)
  local own = lib.sums.of(state, rule, job)
  return own, state.counting == "snapshot" and reported_of(state.counted, rule, job) or nil
end

-- Returns the use by the jobs that a rule counts together with a job, in one measure.
function state_module.used(state, rule, measure, job)
  local own, reported = state_module.sums(state, rule, job)
  return (own and own[measure] or 0) + (reported and reported[measure] or 0)
end

-- Returns the hours used in the current period of a limit and, if the rule is hard, those that pending and running jobs
-- may still use. The second result is the unused part of `value`, the limit, in the previous period, if the rule adds
-- it. If the snapshot lacks the current period, the first result is nil. If it lacks either period, the second result is
-- the most that may be left, and the third the reason.
function state_module.hours(state, rule, limit, value, job)
  local snapshot = state.snapshot
  local reason = limit.kind.name .. " are unknown: they require a snapshot from slurm-gpuctld"
  if not (snapshot and lib.snapshot.has_hours(snapshot, limit.used)) then
    return nil, limit.before and value or 0, reason
  end
  local reported = reported_of(snapshot, rule, job) or {}
  local used = reported[limit.used] or 0
  local carried = limit.before and math.max(value - (reported[limit.before] or 0), 0) or 0
  if limit.before == nil or lib.snapshot.has_hours(snapshot, limit.before) then
    reason = nil
  end
  if not rule.hard then
    return used, carried, reason
  end
  used = used + (reported[limit.committed] or 0)
  if state.counting ~= "snapshot" or state.counted ~= snapshot then
    return used + lib.ledger.committed(state, rule, limit.hours, job, snapshot), carried, reason
  end
  local own = lib.sums.of(state, rule, job)
  return used + (own and own[limit.hours] or 0), carried, reason
end

-- Marks the cached description of a job as stale before an update; it is used until Slurm builds the next job table.
function state_module.forget(state, job_id)
  local known = state.known[string.format("%.0f", job_id)]
  if known and known.base >= 0 then -- all ended jobs share one description
    known.is_stale = true
  end
end

-- Returns the newest pending job of a job's user that counts for a rule, in this measure; nil if none is known. The
-- job may be of another account.
function state_module.youngest_pending(state, rule, measure, job)
  if rule.per == "account" then
    return nil
  elseif state.counting == "snapshot" then
    -- The snapshot does not contain the GPU type of the user's newest job.
    local name = not measure:find(":") and (job.user or lib.snapshot.user_name(state.counted, job.uid))
    return name and lib.snapshot.use(state.counted, policy.groups[rule.group].name, "user", name).last_pend
  end
  local youngest
  for id, known in pairs(state.known) do
    if
      known.base == 0
      and known.class.uid == job.uid
      and known.class.scopes[rule.scope]
      and (known.each[measure] or 0) > 0
    then
      youngest = math.max(youngest or 0, tonumber(id))
    end
  end
  return youngest
end

-- Runs the stage: finds the job's class, and the amounts that are already counted for an updated job.
function state_module.run(job, state)
  job.selection = lib.scopes.selection(job)
  job.class = lib.sums.classify(state, job)
  job.on_error_deny = false
  for _, rule in ipairs(job.class.rules) do
    if rule.denies_errors and lib.scopes.in_force(rule, job) then
      job.on_error_deny = true
    end
  end
  if job.queue_error then
    error(job.queue_error, 0)
  end
  local is_pending = job.record == nil or job.record.job_state % 256 == 0
  job.sum = lib.measures.vector(job.size, job, job.tasks, is_pending)
  -- The amounts that are already counted for the job, by measure, and their scopes; empty for a new job.
  job.counted = { sum = {}, scopes = {} }
  if job.record then
    local before = lib.queue.describe(state, job.record, job.record.job_state % 256)
    local sum = lib.measures.vector(job.was, job.past, job.tasks, is_pending)
    job.counted = { sum = sum, scopes = before.class.scopes }
  end
end

return state_module
