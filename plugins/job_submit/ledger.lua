-- requires: remembered, snapshot, sums
-- Admissions that neither slurm.jobs nor a snapshot shows yet. state.ledger is token → {at, up, claim}: the second and,
-- where the machine tells it, the uptime of the decision, and what was let in: {class, sum, whole_nodes}, whose it is,
-- what it adds, and whether the job has its nodes to itself (nil where that is not known any more). Thousands of jobs
-- that are alike have one claim. Besides, an admission may have `missed` (how many seconds later a snapshot lacked it),
-- `shown` (a table has it) or `saved` (slurmctld's saved state has it): up to four fields take half of what five do.
local _, lib = ...
local ledger = {}

-- Whole seconds between an admission and a table, or a snapshot of whole seconds, that must show it; slurmctld's own
-- delay comes on top.
ledger.SETTLE_S = 2
-- Seconds between an admission and a snapshot by the same clock that must show it. On top come slurmctld's own delay,
-- and what it took to answer: whatever keeps a job from being put in, such as a scheduler that holds the lock, keeps
-- a question waiting as well.
local MARGIN_S = 0.7
-- Seconds without a new table after which slurmctld's saved state is asked.
ledger.QUIET_S = 10
-- How long admissions are remembered, also across a reload.
ledger.REMEMBER_S = 60
-- How long a delay of slurmctld's is allowed for after it was seen, and how much at most.
local ALLOW_FOR_S, MOST_DELAY_S = 60, 60

local function distinct_prefix()
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

-- What a newly loaded script knows of admissions: fields of its state.
function ledger.new()
  return {
    ledger = {},
    delay = 0, -- seconds that slurmctld lately took from decision to insertion
    delay_until = 0,
    expired_at = 0,
    prefix = distinct_prefix() .. "x",
    tokens = 0,
  }
end

function ledger.next_token(state)
  state.tokens = state.tokens + 1
  return string.format("%s%x", state.prefix, state.tokens)
end

-- What a job takes that is let in; `sum` is what it adds, by measure.
function ledger.claim(job, sum)
  return { class = job.class, sum = sum, whole_nodes = job.request.whole_nodes }
end

-- Counts an admission from now on.
function ledger.admit(state, token, job, claim)
  state.ledger[token] = { at = job.now, up = job.up, claim = claim }
  lib.sums.count(state, claim.class, claim.sum, 1)
end

-- Forgets an admission that came to nothing.
local function drop(state, token, entry)
  state.ledger[token] = nil
  lib.sums.count(state, entry.claim.class, entry.claim.sum, -1)
end

-- slurmctld was busy for `seconds` between a decision and the insertion; allow for that a while.
function ledger.note_delay(state, seconds, now)
  if seconds > 0 then
    state.delay, state.delay_until = math.max(state.delay, math.min(seconds, MOST_DELAY_S)), now + ALLOW_FOR_S
  end
end

-- Whether an admission that a snapshot lacks has led to no job: it is late enough to have shown it.
local function is_settled(state, entry, snapshot)
  if entry.up and snapshot.began then
    return snapshot.began - entry.up >= MARGIN_S + snapshot.took + state.delay
  end
  return snapshot.as_of - entry.at >= ledger.SETTLE_S + state.delay
end

-- What a snapshot has shown late tells how long slurmctld takes to put a job in: longer than until the last snapshot
-- that lacked it. The whole seconds of its stamps tell the same, but not of what begins in one and ends in the next.
local function learn_delay(state, entry, inserted, snapshot, now)
  local fine = entry.up ~= nil and snapshot.began ~= nil
  ledger.note_delay(state, math.max(entry.missed or 0, inserted - entry.at - (fine and 1 or 0)), now)
end

-- Drops the admissions that a snapshot counts, of those that were given from the second `oldest` on.
local function drop_seen(state, snapshot, oldest, now)
  for token, inserted in lib.snapshot.seen(snapshot) do
    local entry = state.ledger[token]
    if entry then
      learn_delay(state, entry, inserted, snapshot, now)
      state.ledger[token] = nil
    end
    if inserted < oldest - 1 and snapshot.began then
      return -- what follows came in before
    end
  end
end

-- Counts the admissions that a new snapshot does not count yet, and drops the others.
function ledger.compare(state, snapshot, now)
  local oldest = math.huge
  for _, entry in pairs(state.ledger) do
    entry.at = math.min(entry.at, now) -- the clock may have been set back
    oldest = math.min(oldest, entry.at)
  end
  ledger.forget_delay(state, now)
  if oldest < math.huge then
    drop_seen(state, snapshot, oldest, now)
  end
  for token, entry in pairs(state.ledger) do
    if is_settled(state, entry, snapshot) then
      state.ledger[token] = nil
    else
      entry.missed = entry.up and snapshot.began and snapshot.began - entry.up or nil
      lib.sums.count(state, entry.claim.class, entry.claim.sum, 1)
    end
  end
end

-- Before a look at all admissions: delays of long ago are none any more.
function ledger.forget_delay(state, now)
  if now > state.delay_until or now < state.delay_until - ALLOW_FOR_S then
    state.delay = 0
  end
end

-- Drops admissions that led to no job although no new table says so: a job put in within the very second of
-- the last table changes nothing until some other job does, and on a quiet cluster that can be hours.
-- slurmctld saves its jobs, AdminComment and all, within seconds, and so what it saved is the evidence.
function ledger.expire(state, now)
  if now == state.expired_at then
    return
  end
  state.expired_at = now
  local saved
  for token, entry in pairs(state.ledger) do
    entry.at = math.min(entry.at, now) -- the clock may have been set back
    if not entry.saved and not entry.shown and now - entry.at >= ledger.QUIET_S + state.delay then
      saved = saved or lib.remembered.saved_jobs()
      if saved == nil then
        return
      end
      entry.saved = string.find(saved, "t=" .. token, 1, true) ~= nil
      if not entry.saved then
        drop(state, token, entry)
      end
    end
  end
end

-- Takes the youngest admissions back from decisions.log after a reload or a restart.
function ledger.restore(state, now)
  for token, line in pairs(lib.remembered.admissions(now, ledger.REMEMBER_S)) do
    local class = lib.sums.classify(state, line.uid, line.account, line.qos, line.partition, line.kind)
    state.ledger[token] = { at = line.at, claim = { class = class, sum = line.sum } }
  end
end

-- Seconds until an admission that leads to no job counts no more.
local function left_of(state, entry, now)
  local counted = state.counting == "snapshot" and state.counted
  if counted and counted.began and entry.up then
    local margin = MARGIN_S + 2 * counted.took + state.delay
    return margin + state.gap - (state.up - entry.up)
  end
  local lasts = counted and ledger.SETTLE_S + 2 or ledger.QUIET_S
  return lasts + state.delay - (now - entry.at)
end

-- What of a rule's use neither table nor snapshot has shown yet, by measure, and the seconds after which it counts
-- no more if Slurm itself refused it.
function ledger.just_submitted(state, rule, uid, now)
  local sum, left_s = {}, 1
  for _, entry in pairs(state.ledger) do
    local class = entry.claim.class
    local own = rule.per ~= "user" or class.uid == uid
    if own and not entry.saved and not entry.shown and lib.sums.belongs(class, rule.scope) then
      lib.sums.add(sum, entry.claim.sum, 1)
      left_s = math.max(left_s, math.ceil(left_of(state, entry, now)))
    end
  end
  return sum, left_s
end

return ledger
