-- requires: remembered, snapshot, sums
-- Counts admissions (accepted jobs and updates) that neither slurm.jobs nor a snapshot contains yet.
--
-- state.ledger maps a token to {at, up, claim}: the second of the decision, the uptime at that moment (nil if it cannot
-- be read), and the claim. A claim {class, sum} contains the job's class and the amounts that the job adds. Thousands
-- of identical jobs share one claim. An admission may also have `missed` (the age in seconds at which a snapshot lacked
-- it), `shown` (a table contains it) or `saved` (slurmctld's saved state contains it). Entries have few fields because
-- a Lua table with up to four fields takes half the memory of a table with five.
local _, lib = ...
local ledger = {}

-- Seconds after which a table, or a snapshot without uptime, must contain an admission; slurmctld's delay is added.
ledger.SETTLE_S = 2
-- Seconds after which a snapshot with uptime must contain an admission. slurmctld's delay and the duration of the query
-- are added. For example, a scheduler that holds slurmctld's lock delays both the job and the query.
local MARGIN_S = 0.7
-- Seconds without a new table after which slurmctld's saved state is searched.
ledger.QUIET_S = 10
-- Seconds for which admissions are kept, even across a reload.
ledger.REMEMBER_S = 60
-- Seconds for which an observed delay of slurmctld is taken into account, and its maximum.
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

-- Returns the fields of the state that concern admissions, with their values in a newly loaded script.
function ledger.new()
  return {
    ledger = {},
    delay = 0, -- recent seconds between a decision and slurmctld's insertion of the job
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

-- Returns the claim of an accepted job; `sum` has the amounts that the job adds, by measure.
function ledger.claim(job, sum)
  return { class = job.class, sum = sum }
end

-- Starts counting an admission.
function ledger.admit(state, token, job, claim)
  state.ledger[token] = { at = job.now, up = job.up, claim = claim }
  lib.sums.count(state, claim.class, claim.sum, 1)
end

-- Drops an admission that did not lead to a job.
local function drop(state, token, entry)
  state.ledger[token] = nil
  lib.sums.count(state, entry.claim.class, entry.claim.sum, -1)
end

-- Records that slurmctld took `seconds` between a decision and the insertion of the job.
function ledger.note_delay(state, seconds, now)
  if seconds > 0 then
    state.delay, state.delay_until = math.max(state.delay, math.min(seconds, MOST_DELAY_S)), now + ALLOW_FOR_S
  end
end

-- Returns whether a snapshot that lacks an admission is late enough to contain it; if so, the admission led to no job.
local function is_settled(state, entry, snapshot)
  if entry.up and snapshot.began then
    return snapshot.began - entry.up >= MARGIN_S + snapshot.took + state.delay
  end
  return snapshot.as_of - entry.at >= ledger.SETTLE_S + state.delay
end

-- Estimates slurmctld's delay from a job that appears late in a snapshot: at least the job's age in the last snapshot
-- that lacked it. The time stamps of the job give another estimate, with an error of up to one second.
local function learn_delay(state, entry, inserted, snapshot, now)
  local fine = entry.up ~= nil and snapshot.began ~= nil
  ledger.note_delay(state, math.max(entry.missed or 0, inserted - entry.at - (fine and 1 or 0)), now)
end

-- Drops the admissions that a snapshot counts. No admission is older than the second `oldest`.
local function drop_seen(state, snapshot, oldest, now)
  for token, inserted in lib.snapshot.seen(snapshot) do
    local entry = state.ledger[token]
    if entry then
      learn_delay(state, entry, inserted, snapshot, now)
      state.ledger[token] = nil
    end
    if inserted < oldest - 1 and snapshot.began then
      return -- the remaining entries are older
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

-- Resets an observed delay that has expired. Must run before admissions are checked.
function ledger.forget_delay(state, now)
  if now > state.delay_until or now < state.delay_until - ALLOW_FOR_S then
    state.delay = 0
  end
end

-- Drops admissions that led to no job while Slurm builds no new table. A job that is inserted in the second of the last
-- table causes no new table: Slurm builds the next table when another job changes, which may take hours on a quiet
-- cluster. slurmctld saves its jobs with their AdminComment within seconds, so this function searches the saved state.
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

-- Restores recent admissions from decisions.log after a reload or restart.
function ledger.restore(state, now)
  for token, line in pairs(lib.remembered.admissions(now, ledger.REMEMBER_S)) do
    local class = lib.sums.classify(state, line)
    state.ledger[token] = { at = line.at, claim = { class = class, sum = line.sum } }
  end
end

-- Returns the seconds until an admission stops counting if it led to no job.
local function left_of(state, entry, now)
  local counted = state.counting == "snapshot" and state.counted
  if counted and counted.began and entry.up then
    local margin = MARGIN_S + 2 * counted.took + state.delay
    return margin + state.gap - (state.up - entry.up)
  end
  local lasts = counted and ledger.SETTLE_S + 2 or ledger.QUIET_S
  return lasts + state.delay - (now - entry.at)
end

-- Returns, by measure, the use of other jobs that count together with a job but are in no table or snapshot yet. The
-- second result is the number of seconds after which this use stops counting if Slurm refused those jobs.
function ledger.just_submitted(state, rule, job)
  local sum, left_s = {}, 1
  for _, entry in pairs(state.ledger) do
    local class = entry.claim.class
    local counts = class.scopes[rule.scope] and lib.sums.are_summed(rule, class, job)
    if counts and not entry.saved and not entry.shown then
      lib.sums.add(sum, entry.claim.sum, 1)
      left_s = math.max(left_s, math.ceil(left_of(state, entry, job.now)))
    end
  end
  return sum, left_s
end

-- Returns the hours, in this unit, of admissions that a snapshot lacks and that a hard rule counts together with a job.
function ledger.committed(state, rule, unit, job, snapshot)
  local sum, surely_seen_s = 0, snapshot.as_of - ledger.SETTLE_S - state.delay
  if snapshot.tokens == nil then
    snapshot.tokens = {}
    for token in lib.snapshot.seen(snapshot) do
      snapshot.tokens[token] = true
    end
  end
  for token, entry in pairs(state.ledger) do
    local class = entry.claim.class
    local is_new = not snapshot.tokens[token] and not ((entry.saved or entry.shown) and entry.at < surely_seen_s)
    if is_new and class.scopes[rule.scope] and lib.sums.are_summed(rule, class, job) then
      sum = sum + (entry.claim.sum[unit] or 0)
    end
  end
  return sum
end

return ledger
