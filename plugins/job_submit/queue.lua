-- requires: amounts, job, least, ledger, noted, scopes, size, sums, update
-- Computes sums over slurm.jobs, which is read if no snapshot is valid or if a rule sums over only some jobs of its
-- group.
--
-- The table contains raw pointers to job records, which are valid only in the call for which Slurm built it. The table
-- is therefore read once, in that call, and only computed values are kept.
local _, lib = ...
local amounts = lib.amounts
local queue = {}

local TOKEN = "slurm%-gpu/1 t=(%w+)"

-- The description that all ended jobs share.
local ENDED = { base = -1 }

-- The default and maximum time limits of partitions that users could use, by name. They are needed because the record
-- of a pending job without --time has no time limit.
local times = {}

-- Stores the time limits of the partitions of a submission.
function queue.note_partitions(parts)
  if not lib.scopes.selects then
    return
  end
  for name, part in pairs(parts) do
    times[name] = { default_time = part.default_time, max_time = part.max_time }
  end
end

-- Returns the types of the allocated GPUs, as in a request; nil if they are unknown.
local function allocated(record)
  local items = {}
  for kind, count in string.gmatch(record.tres_fmt_alloc_str or "", "gres/gpu:([^=,]+)=(%d+)") do
    items[#items + 1] = "gres:gpu:" .. kind .. ":" .. count
  end
  return #items > 0 and table.concat(items, ",") or nil
end

-- Returns the selection of a job record, see scopes.selection.
local function selection_of(record, base, is_array, was)
  if not lib.scopes.selects then
    return ""
  end
  local job = { record = record, tasks = 1, is_array = is_array, was = was }
  job.was_least = lib.least.of_record(record, base ~= 0, lib.noted.has_whole_nodes(record))
  job.past = lib.update.past(job)
  local types = base ~= 0 and allocated(record)
  job.past.gpus = types and { per_job = types } or job.past.gpus
  job.past.walltime_s = job.past.walltime_s or lib.job.default_walltime(times, job.past.partition)
  return lib.scopes.selection(job, true)
end

-- Describes a job record by values that change only with the job's state. `each` has the amounts of one task.
function queue.describe(state, record, base)
  local tasks = amounts.u32(record.array_task_cnt)
  local is_array = tasks ~= nil and tasks > 0
  local size = lib.size.of_record(record, base ~= 0, lib.noted.has_whole_nodes(record))
  local class = {
    uid = record.user_id,
    account = string.lower(record.account or ""),
    qos = lib.noted.qos_of(record, base),
    partition = record.partition or "",
    kind = lib.noted.kind_of(record),
    selection = selection_of(record, base, is_array or (amounts.u32(record.array_job_id) or 0) > 0, size),
  }
  return {
    base = base,
    array = is_array,
    each = lib.size.vector(size, 1, base == 0),
    class = lib.sums.classify(state, class),
  }
end

-- Sets the key by which jobs of one class with equal amounts are grouped: thousands of jobs have only a few shapes.
local function give_shape(job)
  local each, parts = job.each, {}
  for index, measure in ipairs(lib.sums.measures) do
    parts[index] = each[measure] or 0
  end
  job.shape = table.concat(parts, " ")
end

-- Marks the admission of a job that is in the table.
local function settle(state, record, now)
  local token = string.match(record.admin_comment or "", TOKEN)
  local entry = token and state.ledger[token]
  if entry then
    local inserted = amounts.u32(record.submit_time)
    lib.ledger.note_delay(state, inserted and inserted - entry.at or 0, now)
    entry.shown = true
  end
end

-- Counts admissions that the table may not contain yet, and drops admissions that it would contain by now.
local function count_admissions(state, now)
  for token, entry in pairs(state.ledger) do
    entry.at = math.min(entry.at, now) -- the clock may have been set back
    local age = now - entry.at
    if entry.shown then
      -- The entry is kept while a snapshot may be older than this table.
      if age >= lib.ledger.REMEMBER_S then
        state.ledger[token] = nil
      end
    elseif age >= lib.ledger.SETTLE_S + state.delay then
      state.ledger[token] = nil
    else
      lib.sums.count(state, entry.claim.class, entry.claim.sum, 1)
    end
  end
end

-- Sums up a table that Slurm built in this call.
function queue.read(state, jobs, now)
  state.counting, state.whole = "table", false
  lib.ledger.forget_delay(state, now)
  for _, class in pairs(state.classes) do
    class.sum, class.alike = { jobs = 0 }, {}
  end
  local known = {}
  for id, record in pairs(jobs) do
    local base = record.job_state % 256 -- higher bits are flags; 0: pending, 1: running, 2: suspended, larger: ended
    local job = state.known[id]
    if job and job.is_stale then
      job = nil
    end
    if job == nil then
      settle(state, record, now)
    end
    if base > 2 then
      known[id] = ENDED
    else
      if job == nil or job.base ~= base then
        job = queue.describe(state, record, base)
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
    end
  end
  state.known = known
  state.use = lib.sums.fresh()
  for key, class in pairs(state.classes) do
    for _, alike in pairs(class.alike) do
      lib.sums.add(class.sum, alike.each, alike.tasks)
    end
    class.alike = {}
    if class.sum.jobs > 0 then
      lib.sums.count(state, class, class.sum, 1)
    else
      state.classes[key] = nil -- setting an existing key to nil is allowed while traversing
    end
  end
  count_admissions(state, now)
  state.whole = true
end

-- Returns whether a table has more jobs than `most`.
function queue.longer_than(jobs, most)
  local length = 0
  for _ in pairs(jobs) do
    length = length + 1
    if length > most then
      return true
    end
  end
  return false
end

return queue
