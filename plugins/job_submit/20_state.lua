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
--
-- The table holds bare pointers to job records: they are safe to follow only in the very call in which
-- Slurm built it, never later. So it is read once, at once, and only sums are kept.
local policy, lib = ...
local amounts = lib.amounts

-- Whole seconds between an admission and a table that must show it; slurmctld's own delay comes on top.
local SETTLE_S = 2
-- Seconds without a new table after which slurmctld's saved state is asked.
local QUIET_S = 10
-- How long admissions are remembered, also across a reload.
local REMEMBER_S = 60
-- The longest table that is read where a snapshot is there and no good: beyond it, on_error decides.
local MOST_JOBS = 20000

local function distinct_token_prefix()
  local seed = string.format("%x", os.time() % 0x10000000)
  local source = io.open("/dev/urandom", "rb")
  local bytes = source and source:read(4) or ""
  if source then
    source:close()
  end
  for index = 1, #bytes do
    seed = seed .. string.format("%02x", bytes:byte(index))
  end
  return seed
end

local TOKEN = "slurm%-gpu/1 t=(%w+)"

-- What is kept of a job that has ended.
local ENDED = { base = -1 }

local MEASURES = { "mgpu", "cpus", "mib" }
for kind in pairs(lib.size.watched) do
  MEASURES[#MEASURES + 1] = "mgpu:" .. kind
end

local function add(into, vector, times)
  for measure, value in pairs(vector) do
    into[measure] = (into[measure] or 0) + value * times
  end
end

-- One entry for all jobs that no rule can tell apart: same owner, account, QOS, partitions and kind.
local function classify(state, uid, account, qos, partition, kind)
  local key = string.format("%.0f\n%s\n%s\n%s\n%s", uid, account, qos, partition, kind)
  local class = state.classes[key]
  if class == nil then
    local scopes = lib.scopes.matching(uid, account, qos, partition, kind)
    class = { uid = uid, scopes = scopes, sum = { jobs = 0 }, alike = {} }
    state.classes[key] = class
  end
  return class
end

local function fresh_use()
  local use = {}
  for index = 1, #lib.scopes.list do
    use[index] = { all = {}, users = {} }
  end
  return use
end

local function count(state, class, vector, times)
  for _, index in ipairs(class.scopes) do
    local use = state.use[index]
    add(use.all, vector, times)
    local own = use.users[class.uid]
    if own == nil then
      own = {}
      use.users[class.uid] = own
    end
    add(own, vector, times)
  end
end

-- Whether a record is of a job without a script: its submission noted it.
local function kind_of_record(record)
  local comment = record.admin_comment
  return comment and string.find(comment, "slurm%-gpu/1 t=%w+ k=i") and "interactive" or "batch"
end

-- What a job record says that does not change while its state does not. `each` is what one task counts for.
local function describe(state, record, base)
  local tasks = amounts.u32(record.array_task_cnt)
  local account, qos = string.lower(record.account or ""), string.lower(record.qos or "")
  local kind = kind_of_record(record)
  return {
    base = base,
    array = tasks ~= nil and tasks > 0,
    each = lib.size.vector(lib.size.of_record(record, base ~= 0), 1),
    class = classify(state, record.user_id, account, qos, record.partition or "", kind),
  }
end

-- Jobs of one class that count for the same are added up as one: thousands of jobs come in a few shapes.
local function give_shape(job)
  local each, parts = job.each, {}
  for index, measure in ipairs(MEASURES) do
    parts[index] = each[measure] or 0
  end
  job.shape = table.concat(parts, " ")
end

-- slurmctld was busy between the decision and the insertion; allow for that a while.
local function note_delay(state, entry, inserted, now)
  if inserted and inserted > entry.at then
    state.delay, state.delay_until = math.max(state.delay, math.min(inserted - entry.at, 60)), now + 60
  end
end

-- A job has shown up in the table: its admission need not be remembered any more. Returns the admission.
local function settle(state, record, now)
  local token = string.match(record.admin_comment or "", TOKEN)
  local entry = token and state.ledger[token]
  if entry then
    note_delay(state, entry, amounts.u32(record.submit_time), now)
    entry.shown = true
  end
  return entry
end

-- Sums up a table that Slurm built in this very call.
local function read_table(state, jobs, now)
  state.counting, state.whole, state.read_at = "table", false, now
  if now > state.delay_until then
    state.delay = 0
  end
  for _, class in pairs(state.classes) do
    class.sum, class.alike, class.pending = { jobs = 0 }, {}, nil
  end
  local known = {}
  for id, record in pairs(jobs) do
    local base = record.job_state % 256 -- flags lie above; 0 pending, 1 running, 2 suspended, ended above
    local job = state.known[id]
    local entry = job == nil and settle(state, record, now)
    if base > 2 then
      known[id] = ENDED
    else
      if job == nil or job.base ~= base then
        job = describe(state, record, base)
        if entry and base == 0 and entry.sum.jobs > 0 then
          -- The table does not say that a pending job wants whole nodes; its submission did.
          for measure, value in pairs(entry.sum) do
            job.each[measure] = math.max(job.each[measure] or 0, value / entry.sum.jobs)
          end
        end
        give_shape(job)
      end
      known[id] = job
      local tasks = 1
      if job.array then
        tasks = math.max(record.array_task_cnt or 1, 1)
      end
      local class = job.class
      local alike = class.alike[job.shape]
      if alike == nil then
        class.alike[job.shape] = { each = job.each, tasks = tasks }
      else
        alike.tasks = alike.tasks + tasks
      end
      if base == 0 then
        class.pending = math.max(class.pending or 0, tonumber(id))
      end
    end
  end
  state.known = known
  state.use = fresh_use()
  for key, class in pairs(state.classes) do
    for _, alike in pairs(class.alike) do
      add(class.sum, alike.each, alike.tasks)
    end
    class.alike = {}
    if class.sum.jobs > 0 then
      count(state, class, class.sum, 1)
    else
      state.classes[key] = nil -- setting an existing key to nil is allowed while traversing
    end
  end
  for token, entry in pairs(state.ledger) do
    entry.at = math.min(entry.at, now) -- the clock may have been set back
    local age = now - entry.at
    if entry.shown then
      -- A snapshot may still be older than this table: remembered until none can be.
      if age >= REMEMBER_S then
        state.ledger[token] = nil
      end
    elseif age >= SETTLE_S + state.delay then
      state.ledger[token] = nil
    else
      count(state, entry.class, entry.sum, 1)
    end
  end
  state.whole = true
end

-- Takes the sums of a new snapshot; in state.use stands only what it does not know yet.
local function read_snapshot(state, snapshot, now)
  state.counting, state.counted = "snapshot", snapshot
  -- Names of accounts and partitions can be anything until Slurm refuses them: what is kept by them must not grow.
  state.classes, state.known = {}, {}
  local seen = next(state.ledger) and lib.snapshot.seen(snapshot) or {}
  if now > state.delay_until then
    state.delay = 0
  end
  for token, inserted in pairs(seen) do
    if state.ledger[token] then
      note_delay(state, state.ledger[token], inserted, now)
    end
  end
  state.use = fresh_use()
  for token, entry in pairs(state.ledger) do
    entry.at = math.min(entry.at, now)
    if seen[token] or snapshot.as_of - entry.at >= SETTLE_S + state.delay then
      state.ledger[token] = nil
    else
      count(state, entry.class, entry.sum, 1)
    end
  end
end

local function longer_than(jobs, most)
  local length = 0
  for _ in pairs(jobs) do
    length = length + 1
    if length > most then
      return true
    end
  end
  return false
end

-- Drops admissions that led to no job although no new table says so: a job put in within the very second of
-- the last table changes nothing until some other job does, and on a quiet cluster that can be hours.
-- slurmctld saves its jobs, AdminComment and all, within seconds, and so what it saved is the evidence.
local function expire(state, now)
  if now <= state.expired_at then
    return
  end
  state.expired_at = now
  local saved
  for token, entry in pairs(state.ledger) do
    if not entry.saved and not entry.shown and now - entry.at >= QUIET_S + state.delay then
      saved = saved or lib.remembered.saved_jobs()
      if saved == nil then
        return
      end
      entry.saved = string.find(saved, "t=" .. token, 1, true) ~= nil
      if not entry.saved then
        state.ledger[token] = nil
        count(state, entry.class, entry.sum, -1)
      end
    end
  end
end

-- Takes the youngest admissions back from decisions.log after a reload or a restart.
local function restore(state, now)
  for token, line in pairs(lib.remembered.admissions(now, REMEMBER_S)) do
    local class = classify(state, line.uid, line.account, line.qos, line.partition, line.kind)
    state.ledger[token] = { at = line.at, class = class, sum = line.sum }
  end
end

local state_module = {}

-- The state of a newly loaded script.
function state_module.new()
  return {
    jobs = nil, -- the table of the last call, kept only to know a new one
    counting = nil, -- "table" or "snapshot": where the sums come from
    counted = nil, -- the snapshot whose sums are in force
    snapshot = nil, -- the last fresh one, for what no table tells
    whole = false, -- whether the last table could be read
    read_at = 0,
    expired_at = 0,
    delay = 0, -- seconds that slurmctld lately took from decision to insertion
    delay_until = 0,
    known = {}, -- job id → what does not change while its state does not
    classes = {},
    use = fresh_use(),
    ledger = {}, -- token → {at, class, sum}
    het_kind = {}, -- uid → kind of the het job whose components are coming
    prefix = distinct_token_prefix(),
    tokens = 0,
    restored = false,
  }
end

-- Brings the state up to date; must run in every call before anything else does.
function state_module.refresh(state, now)
  local jobs = slurm.jobs or {}
  local is_new = state.jobs ~= jobs or not state.restored
  state.jobs = jobs
  if not state.restored then
    state.restored = true
    local fine, reason = pcall(restore, state, now) -- a log that cannot be read must cost no decision
    if not fine then
      slurm.log_error("%s", "slurm-gpu: " .. policy.decisions_log .. " cannot be read: " .. tostring(reason))
    end
  end
  local problem
  state.snapshot, problem = lib.snapshot.look(state.snapshot or state.counted, now)
  -- The snapshot knows no kinds: where a sum is over one kind, the table is read instead.
  if state.snapshot and not lib.scopes.sums_by_kind then
    if state.counting ~= "snapshot" or state.counted ~= state.snapshot then
      read_snapshot(state, state.snapshot, now)
    end
  elseif is_new then
    if problem and longer_than(jobs, MOST_JOBS) then
      state.counting, state.whole = "table", false
      error(problem .. ", and the queue is too long to be read instead; is slurm-gpuctld running?", 0)
    end
    read_table(state, jobs, now)
  elseif state.counting == "table" and not state.whole then
    error("the queue could not be read; see the first error of this kind")
  else
    -- No job has changed since the sums were made, be they of the table or of a snapshot.
    expire(state, now)
  end
end

function state_module.next_token(state)
  state.tokens = state.tokens + 1
  return state.prefix .. "x" .. string.format("%x", state.tokens)
end

-- Counts an admission from now on; `sum` is what it adds, by measure.
function state_module.admit(state, token, class, sum, now)
  state.ledger[token] = { at = now, class = class, sum = sum }
  count(state, class, sum, 1)
end

state_module.kind_of_record = kind_of_record

-- What a rule's jobs use of one measure: all of its group, or one user's among them. `user` is the name behind
-- uid, nil where it is not known.
function state_module.used(state, rule, measure, uid, user)
  local own = state.use[rule.scope]
  if rule.per == "user" then
    own = own.users[uid]
  else
    own = own.all
  end
  local sum = own and own[measure] or 0
  if state.counting == "snapshot" then
    local name
    if rule.per == "user" then
      name = user or lib.snapshot.user_name(state.counted, uid)
      if name == nil then
        return sum
      end
    end
    local use = lib.snapshot.use(state.counted, policy.groups[rule.group].name, name)
    sum = sum + (use[measure] or 0)
  end
  return sum
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

local function belongs(class, scope)
  for _, index in ipairs(class.scopes) do
    if index == scope then
      return true
    end
  end
  return false
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
      if belongs(class, rule.scope) then
        youngest = class.pending
      end
    end
  end
  return youngest
end

-- What of a rule's use neither table nor snapshot has shown yet, by measure, and the seconds after which it counts
-- no more if Slurm itself refused it.
function state_module.just_submitted(state, rule, uid, now)
  local sum, left_s = {}, 1
  local lasts = (state.counting == "snapshot" and SETTLE_S + 2 or QUIET_S) + state.delay
  for _, entry in pairs(state.ledger) do
    local own = rule.per ~= "user" or entry.class.uid == uid
    if own and not entry.saved and not entry.shown and belongs(entry.class, rule.scope) then
      add(sum, entry.sum, 1)
      left_s = math.max(left_s, lasts - (now - entry.at))
    end
  end
  return sum, left_s
end

-- The module proper: finds the job's class, and what the job already counts for if it is being updated.
function state_module.run(job, state)
  job.class = classify(state, job.uid, job.account, job.qos, job.partition, job.kind)
  job.in_scope = {}
  for _, index in ipairs(job.class.scopes) do
    job.in_scope[index] = true
  end
  job.on_error_deny = false
  for _, rule in ipairs(policy.rules) do
    if job.in_scope[rule.scope] and rule.mode == "enforce" and rule.on_error == "deny" then
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
    local before = describe(state, job.record, job.record.job_state % 256)
    job.counted.sum = lib.size.vector(job.was, job.tasks)
    for _, index in ipairs(before.class.scopes) do
      job.counted.scopes[index] = true
    end
  end
end

return state_module
