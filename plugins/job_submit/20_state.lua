-- What is there: usage by group and user, from slurm.jobs and from what was admitted since.
--
-- Slurm rebuilds slurm.jobs only when its whole-second stamp of the last job change advances, so the table
-- may lack jobs of the current second; and the check and the insertion of a job are never atomic. Hence the
-- ledger: every admission counts from the moment it was given, until a table shows the job (by the token in
-- its AdminComment) or was built late enough that the job would be in it (it was --test-only, or Slurm
-- itself refused it). Admissions are also lines of decisions.log, from which the ledger is rebuilt when the
-- script is loaded anew.
--
-- The table holds bare pointers to job records: they are safe to follow only in the very call in which
-- Slurm built it, never later. So it is read once, at once, and only sums are kept.
local policy, lib = ...
local amounts = lib.amounts

-- Whole seconds between an admission and a table that must show it; slurmctld's own delay comes on top.
local SETTLE_S = 2
-- Seconds without a new table after which slurmctld's saved state is asked, and how much of it at most.
local QUIET_S, SAVED_BYTES = 10, 67108864
-- How far back decisions.log is read after a reload.
local REMEMBER_S, REMEMBER_BYTES = 60, 262144

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

-- Indexes of the groups that a job of this owner in this place belongs to.
local function matching_groups(uid, account, qos, partition)
  local groups = {}
  for index, group in ipairs(policy.groups) do
    local matches = (group.uids == nil or group.uids[uid])
      and (group.member_uids == nil or group.member_uids[uid])
      and (group.accounts == nil or group.accounts[account])
      and (group.qos == nil or group.qos[qos])
    if matches and group.partitions ~= nil then
      matches = false
      for name in string.gmatch(partition, "[^,]+") do
        matches = matches or group.partitions[name]
      end
    end
    if matches then
      groups[#groups + 1] = index
    end
  end
  return groups
end

-- One entry for all jobs that no rule can tell apart: same owner, account, QOS and partitions.
local function classify(state, uid, account, qos, partition)
  local key = string.format("%.0f\n%s\n%s\n%s", uid, account, qos, partition)
  local class = state.classes[key]
  if class == nil then
    class = { uid = uid, groups = matching_groups(uid, account, qos, partition), jobs = 0, mgpu = 0 }
    state.classes[key] = class
  end
  return class
end

local function fresh_use()
  local use = {}
  for index = 1, #policy.groups do
    use[index] = { jobs = 0, mgpu = 0, users = {} }
  end
  return use
end

local function count(state, class, jobs, mgpu)
  for _, index in ipairs(class.groups) do
    local use = state.use[index]
    use.jobs, use.mgpu = use.jobs + jobs, use.mgpu + mgpu
    local own = use.users[class.uid]
    if own == nil then
      own = { jobs = 0, mgpu = 0 }
      use.users[class.uid] = own
    end
    own.jobs, own.mgpu = own.jobs + jobs, own.mgpu + mgpu
  end
end

-- Thousandths of a GPU that one task of a job in the table takes: what it was given once it runs, else
-- what its request fields say. Slurm's printed total is only for forms that need the number of tasks or
-- sockets: it goes stale when a job is updated.
local function record_mgpu(record, running)
  if running then
    local allocated = amounts.total_mgpu(record.tres_fmt_alloc_str or "")
    if allocated then
      return allocated
    end
  end
  local request = {
    per_job = record.tres_per_job,
    per_node = record.tres_per_node,
    per_socket = record.tres_per_socket,
    per_task = record.tres_per_task,
    nodes = amounts.u32(record.min_nodes),
    most_nodes = amounts.u32(record.max_nodes),
  }
  local counted, form = amounts.counted_mgpu(request)
  if form == nil or form == "per_task" or form == "per_socket" then
    local total = amounts.total_mgpu(record.tres_fmt_req_str or "")
    if total and form == "per_socket" then
      total = total * amounts.counted_nodes(request) / amounts.least_nodes(request) -- Slurm's is of the least
    end
    return total or counted
  end
  return counted
end

-- What a job record says that does not change while its state does not.
local function describe(state, record, base)
  local tasks = amounts.u32(record.array_task_cnt)
  local account, qos = string.lower(record.account or ""), string.lower(record.qos or "")
  return {
    base = base,
    array = tasks ~= nil and tasks > 0,
    mgpu = record_mgpu(record, base ~= 0),
    class = classify(state, record.user_id, account, qos, record.partition or ""),
  }
end

-- A job has shown up in the table: its admission need not be remembered any more. Returns the admission.
local function settle(state, record, now)
  local token = string.match(record.admin_comment or "", TOKEN)
  local entry = token and state.ledger[token]
  if entry then
    local inserted = amounts.u32(record.submit_time)
    if inserted and inserted > entry.at then
      -- slurmctld was busy between the decision and the insertion; allow for that a while.
      state.delay, state.delay_until = math.max(state.delay, math.min(inserted - entry.at, 60)), now + 60
    end
    state.ledger[token] = nil
  end
  return entry
end

-- Sums up a table that Slurm built in this very call.
local function read_table(state, jobs, now)
  state.jobs, state.whole, state.read_at = jobs, false, now
  if now > state.delay_until then
    state.delay = 0
  end
  for _, class in pairs(state.classes) do
    class.jobs, class.mgpu, class.pending = 0, 0, nil
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
        if entry and base == 0 and entry.tasks > 0 then
          -- The table does not say that a pending job wants whole nodes; its submission did.
          job.mgpu = math.max(job.mgpu, entry.mgpu / entry.tasks)
        end
      end
      known[id] = job
      local tasks = 1
      if job.array then
        tasks = math.max(record.array_task_cnt or 1, 1)
      end
      local class = job.class
      class.jobs, class.mgpu = class.jobs + tasks, class.mgpu + tasks * job.mgpu
      if base == 0 then
        class.pending = math.max(class.pending or 0, tonumber(id))
      end
    end
  end
  state.known = known
  state.use = fresh_use()
  for key, class in pairs(state.classes) do
    if class.jobs > 0 then
      count(state, class, class.jobs, class.mgpu)
    else
      state.classes[key] = nil -- setting an existing key to nil is allowed while traversing
    end
  end
  for token, entry in pairs(state.ledger) do
    entry.at = math.min(entry.at, now) -- the clock may have been set back
    if now - entry.at >= SETTLE_S + state.delay then
      state.ledger[token] = nil
    else
      count(state, entry.class, entry.tasks, entry.mgpu)
    end
  end
  state.whole = true
end

-- Whether slurmctld is at home where its jobs are missing, and so has never had one to save: at its first start
-- it writes the cluster's name there.
local function never_had_a_job()
  local name = io.open((policy.job_state:gsub("[^/]+$", "clustername")), "r")
  if name then
    name:close()
  end
  return name ~= nil
end

-- What slurmctld last saved of its jobs; nil where it cannot be read or is too long to be searched.
local function saved_jobs()
  if not policy.job_state then
    return nil
  end
  local file, _, code = io.open(policy.job_state, "rb")
  if not file then
    return code == 2 and never_had_a_job() and "" or nil -- 2 is ENOENT
  end
  local size = file:seek("end")
  local text
  if size and size <= SAVED_BYTES then
    file:seek("set", 0)
    text = file:read(size)
  end
  file:close()
  return text
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
    if not entry.saved and now - entry.at >= QUIET_S + state.delay then
      saved = saved or saved_jobs()
      if saved == nil then
        return
      end
      entry.saved = string.find(saved, "t=" .. token, 1, true) ~= nil
      if not entry.saved then
        state.ledger[token] = nil
        count(state, entry.class, -entry.tasks, -entry.mgpu)
      end
    end
  end
end

local function decode(value)
  return (value:gsub("%%(%x%x)", function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

-- Takes the youngest admissions back from decisions.log after a reload or a restart.
local function restore(state, now)
  local log = io.open(policy.decisions_log, "r")
  if log == nil then
    return
  end
  local size = log:seek("end") or 0
  log:seek("set", math.max(0, size - REMEMBER_BYTES))
  for line in log:lines() do
    local at, token, rest = line:match("^slurm%-gpu/1 (%d+) %l+ allow (%w+) (.*)$")
    at = tonumber(at)
    if at and at <= now and now - at < REMEMBER_S then
      local field = {}
      for key, value in rest:gmatch("(%l+)=(%S*)") do
        field[key] = decode(value)
      end
      local uid, tasks, mgpu = tonumber(field.uid), tonumber(field.tasks), tonumber(field.mgpu)
      if uid and tasks and mgpu then
        local class = classify(state, uid, field.account or "", field.qos or "", field.partition or "")
        state.ledger[token] = { at = at, class = class, tasks = tasks, mgpu = mgpu }
      end
    end
  end
  log:close()
end

local state_module = {}

-- The state of a newly loaded script.
function state_module.new()
  return {
    jobs = nil, -- the table last read, kept only to know a new one
    whole = false,
    read_at = 0,
    expired_at = 0,
    delay = 0, -- seconds that slurmctld lately took from decision to insertion
    delay_until = 0,
    known = {}, -- job id → what does not change while its state does not
    classes = {},
    use = fresh_use(),
    ledger = {}, -- token → {at, class, tasks, mgpu}
    prefix = distinct_token_prefix(),
    tokens = 0,
    restored = false,
  }
end

-- Brings the state up to date; must run in every call before anything else does.
function state_module.refresh(state, now)
  local jobs = slurm.jobs or {}
  if not state.restored then
    state.restored = true
    local fine, reason = pcall(restore, state, now) -- a log that cannot be read must cost no decision
    if not fine then
      slurm.log_error("%s", "slurm-gpu: " .. policy.decisions_log .. " cannot be read: " .. tostring(reason))
    end
    state.jobs = nil
  end
  if state.jobs ~= jobs then
    read_table(state, jobs, now)
  elseif not state.whole then
    error("the queue could not be read; see the first error of this kind")
  else
    expire(state, now)
  end
end

function state_module.next_token(state)
  state.tokens = state.tokens + 1
  return state.prefix .. "x" .. string.format("%x", state.tokens)
end

-- Counts an admission from now on; tasks and mgpu are what it adds.
function state_module.admit(state, token, class, tasks, mgpu, now)
  state.ledger[token] = { at = now, class = class, tasks = tasks, mgpu = mgpu }
  count(state, class, tasks, mgpu)
end

-- Forgets what was read of a job that is about to be updated.
function state_module.forget(state, job_id)
  state.known[string.format("%.0f", job_id)] = nil
end

-- The youngest pending job of a user that counts in a group; nil where there is none.
function state_module.youngest_pending(state, uid, group)
  local youngest
  for _, class in pairs(state.classes) do
    if class.uid == uid and class.pending and (youngest == nil or class.pending > youngest) then
      for _, index in ipairs(class.groups) do
        if index == group then
          youngest = class.pending
        end
      end
    end
  end
  return youngest
end

-- What of a group's use (of one user's where uid is given) no table has shown yet: jobs, mgpu, and the seconds
-- after which it counts no more if Slurm itself refused it.
function state_module.just_submitted(state, group, uid, now)
  local sum = { jobs = 0, mgpu = 0, left_s = 1 }
  for _, entry in pairs(state.ledger) do
    if not entry.saved and (uid == nil or entry.class.uid == uid) then
      for _, index in ipairs(entry.class.groups) do
        if index == group then
          sum.jobs, sum.mgpu = sum.jobs + entry.tasks, sum.mgpu + entry.mgpu
          sum.left_s = math.max(sum.left_s, QUIET_S + state.delay - (now - entry.at))
        end
      end
    end
  end
  return sum
end

-- The module proper: finds the job's class, and what the job already counts for if it is being updated.
function state_module.run(job, state)
  job.class = classify(state, job.uid, job.account, job.qos, job.partition)
  job.on_error_deny = false
  for _, rule in ipairs(policy.rules) do
    for _, index in ipairs(job.class.groups) do
      if index == rule.group and rule.mode == "enforce" and rule.on_error == "deny" then
        job.on_error_deny = true
      end
    end
  end
  if job.queue_error then
    error(job.queue_error, 0)
  end
  job.counted = { mgpu = 0, tasks = 0, groups = {} }
  if job.record then
    local before = describe(state, job.record, job.record.job_state % 256)
    if not job.resized then
      job.mgpu = before.mgpu
    end
    job.counted.tasks, job.counted.mgpu = job.tasks, before.mgpu * job.tasks
    for _, index in ipairs(before.class.groups) do
      job.counted.groups[index] = true
    end
  end
end

return state_module
