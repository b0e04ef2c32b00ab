-- requires: judge, reading, stages, state
-- Caches decisions. Users submit many identical jobs; a job that is identical to an accepted job is accepted without a
-- judgement.
--
-- With 10,000 queued jobs and a script that does nothing, slurmctld spends 0.9 to 1.5 ms of CPU time on a
-- submission. A judgement takes 0.14 to 0.28 ms, a hit 0.04 to 0.08 ms (bench/submit.py, medians of two runs).
--
-- A key consists of the kind of the job, the submitter, and all values that the judgement read, in order
-- (reading.lua): fields of job_desc and of partitions. The cached value, a leaf, is the judged job with the limits
-- that apply to it. Invariants:
--
-- 1. Only new jobs that were accepted without a finding, a change, a message or a queue error are cached.
-- 2. A judgement depends only on its key, the policy, the sums and, if a rule depends on the clock, the current
--    second. A lookup compares the key and the second, and evaluates the sums again. A module that depends on more
--    has a function `again(job, state)`; an unknown module without one disables the cache.
-- 3. Any difference or error is a miss; the job is then judged in full.
-- 4. The cache has at most MOST_LEAVES leaves, is emptied every KEPT_S seconds, and is empty when the script is
--    loaded.
-- 5. References to Slurm's job_desc and partitions are dropped at the end of the call.
-- 6. The cache is disabled while the function `slurm_gpu_considered` is set, because every judgement must call it.
--
-- The keys form a tree. A question names a value that the judgement read; the answer is that value. A node has a list
-- of `questions` to which all its jobs gave the same `answers`. Both lists are flat, because memory accesses take
-- longer than comparisons. A node ends with a `leaf`, or with a `question` that its jobs answered differently. After a
-- question, `by_answer` has the next node for each answer, and `unset` has the next node for nil. `fields` has the
-- questions about fields of job_desc, and false for other questions.
local policy, lib = ...
local again = {}

-- Maximum number of leaves, since users may submit any number of different requests.
local MOST_LEAVES = 500
-- Maximum length of an answer in bytes; jobs with longer answers are not cached.
local LONGEST_ANSWER = 1000
-- Seconds after which the cache is emptied, because values that are not compared, such as a user's name, may change.
local KEPT_S = 600

-- Stages that depend on sums and the clock only through `checks`. Any other stage needs a function `again(job, state)`
-- that returns whether the stage would still find nothing; without this function, the cache is disabled.
local KNOWN = {}
for _, name in ipairs({ "job", "changes", "lending", "state", "limits", "bundles" }) do
  KNOWN[lib[name] or name] = true
end
local others, usable = {}, true
for _, module in ipairs(lib.stages) do
  local own = type(module) == "table" and module.again or nil
  if own then
    others[#others + 1] = own
  elseif not KNOWN[module] then
    usable = false
  end
end

-- Whether neither the rules nor the groups depend on the clock.
local timeless = true
for _, rule in ipairs(policy.rules) do
  timeless = timeless and not (rule.when or rule.exceptions)
end
for _, group in ipairs(policy.groups) do
  timeless = timeless and not (group.from_s or group.until_s)
end

local answer, same = lib.reading.answer, lib.reading.same

local roots, n_leaves, since = {}, 0, 0

local function forget()
  roots, n_leaves = {}, 0
end

-- Returns the root of the tree for a kind of job and a submitter; nil if there is no tree.
local function root_of(kind, submit_uid)
  local kinds = roots[kind]
  return kinds and kinds[submit_uid]
end

local function following(node, value)
  if value == nil then
    return node.unset
  end
  return node.by_answer[value]
end

-- Returns the leaf that matches a job's answers; nil if no leaf matches.
local function leaf_of(node, desc, parts)
  while node do
    local fields, answers = node.fields, node.answers
    for index = 1, #fields do
      local field, value = fields[index], nil
      if field then
        value = desc[field]
      else
        value = answer(node.questions[index], parts)
      end
      if value ~= answers[index] then
        return nil
      end
    end
    if node.leaf then
      return node.leaf
    end
    local question, value = node.question, nil
    if type(question) == "string" then
      value = desc[question]
    else
      value = answer(question, parts)
    end
    node = following(node, value)
  end
  return nil
end

local NONE = {}

-- Returns whether a job still fits a limit, and the fraction of the limit that is left, as in limits.lua.
local function left_of(check, job, state)
  if check.left then
    return true, check.left
  end
  local used, carried, unknown = nil, 0, nil
  if check.sum then
    local number = state.use.number
    if check.summed_in ~= number then
      local own, reported = lib.state.sums(state, check.rule, job)
      check.own, check.reported = own or NONE, reported or NONE
      check.summed_in = own and number -- a user without sums may get some later
    end
    used = (check.own[check.sum] or 0) + (check.reported[check.sum] or 0)
    used = used > 0 and used or 0
  else
    used, carried, unknown = lib.state.hours(state, check.rule, check.hours, check.bound, job)
    if unknown then
      return false
    end
  end
  local bound = check.bound + carried
  local left = bound - used
  local fits = check.requested == 0 or check.requested <= left
  return fits, bound > 0 and left / bound or 0
end

-- Returns the limits that apply to a job, in order. Merges adjacent limits that depend only on the job into the limit
-- with the smallest fraction left.
local function compress(checks)
  local kept = {}
  for _, check in ipairs(checks) do
    if check.sum or (check.hours and check.requested > 0) then
      kept[#kept + 1] = check
    else
      local left, last = check.bound > 0 and check.bound / check.bound or 0, kept[#kept]
      local before = last and last.left
      if not (before and before <= left) then -- inf / inf (no limit) is NaN, which no comparison satisfies
        kept[#kept + (before and left < before and 0 or 1)] = { rule = check.rule, left = left }
      end
    end
  end
  return kept
end

local function find(state, kind, desc, parts, submit_uid, now, up)
  if now < since or now - since >= KEPT_S then
    forget()
    since = now
    return nil
  end
  local leaf = leaf_of(root_of(kind, submit_uid), desc, parts or NONE)
  if leaf == nil or not (timeless or leaf.now == now) then
    return nil
  end
  local known, least, nearest = leaf.job, nil, nil
  local checks = known.checks
  for index = 1, #checks do
    local check = checks[index]
    local fits, left = left_of(check, known, state)
    if not fits then
      return nil
    end
    if least == nil or left < least then
      least, nearest = left, check.rule.id
    end
  end
  for _, still in ipairs(others) do
    if not still(known, state) then
      return nil
    end
  end
  known.nearest_rule = nearest
  known.desc, known.now, known.up = desc, now, up
  return known
end

-- Returns whether the cache may be used; if `slurm_gpu_considered` is set, every job must be judged.
local function is_enabled()
  return usable and slurm_gpu_considered == nil
end

-- Returns the cached job that is identical to the new job, with the new job_desc, if it would still be accepted.
-- Returns nil if the new job must be judged.
function again.find(state, ...)
  if not is_enabled() then
    return nil
  end
  local fine, known = pcall(find, state, ...)
  return fine and known or nil
end

local COMPARABLE = { ["nil"] = true, string = true, number = true, boolean = true }

-- Returns a node with the questions and answers from index `first` to `last`.
local function stretch(questions, answers, first, last)
  local node = { questions = {}, fields = {}, answers = {} }
  for index = first, last do
    local question, at = questions[index], index - first + 1
    node.questions[at], node.fields[at] = question, type(question) == "string" and question
    node.answers[at] = false
  end
  for at = 1, last - first + 1 do
    node.answers[at] = answers[first + at - 1] -- Lua stores a filled list as an array, even with nils
  end
  return node
end

local function set_following(node, value, other)
  if value == nil then
    node.unset = other
  else
    node.by_answer[value] = other
  end
end

-- Splits a node at a question to which a job has a different answer.
local function split(node, at)
  local questions, answers = node.questions, node.answers
  local before, after = stretch(questions, answers, 1, at - 1), stretch(questions, answers, at + 1, #questions)
  after.leaf, after.question, after.by_answer, after.unset = node.leaf, node.question, node.by_answer, node.unset
  node.questions, node.fields, node.answers = before.questions, before.fields, before.answers
  node.leaf, node.question, node.by_answer, node.unset = nil, questions[at], {}, nil
  set_following(node, answers[at], after)
end

-- Returns how many of a node's questions, counted from the first, have the same answers as those in `answers`, counted
-- from index `first`. Returns nil if the questions differ, because they then depend on more than the earlier answers.
local function alike(node, questions, answers, first)
  for at = 1, #node.questions do
    local index = first + at - 1
    if questions[index] == nil or not same(node.questions[at], questions[index]) then
      return nil
    elseif node.answers[at] ~= answers[index] then
      return at - 1
    end
  end
  return #node.questions
end

-- Returns the node for a judgement with these questions and answers; nil if it cannot be cached.
local function place(kind, submit_uid, questions, answers)
  roots[kind] = roots[kind] or {}
  local node = root_of(kind, submit_uid)
  if node == nil then
    node = stretch(questions, answers, 1, #questions)
    roots[kind][submit_uid] = node
    return node
  end
  local first = 1
  while true do
    local n = alike(node, questions, answers, first)
    if n == nil then
      return nil
    elseif n < #node.questions then
      split(node, n + 1)
    end
    first = first + n
    local question, value = questions[first], answers[first]
    if node.leaf or question == nil then
      return node.leaf and question == nil and node or nil
    elseif not same(node.question, question) then
      return nil
    end
    local before = node
    node, first = following(before, value), first + 1
    if node == nil then
      node = stretch(questions, answers, first, #questions)
      set_following(before, value, node)
      return node
    end
  end
end

local function learn(job, questions, answers)
  for index = 1, #questions do
    local value = answers[index]
    if value ~= value or not COMPARABLE[type(value)] then
      return -- this answer cannot be compared later
    elseif type(value) == "string" and #value > LONGEST_ANSWER then
      return
    end
  end
  if n_leaves >= MOST_LEAVES then
    forget()
  end
  job.command = nil -- the judgement must not keep a reference to this job_desc
  job.checks = compress(job.checks)
  local node = place(job.kind, job.submit_uid, questions, answers)
  if node then
    n_leaves = n_leaves + (node.leaf and 0 or 1)
    node.leaf = { job = job, now = job.now }
  end
end

-- Judges a job, and records the questions and answers if the job may be cached.
function again.judge(job, state)
  if not is_enabled() or job.record or job.queue_error or job.het then
    return lib.judge.run(job, state)
  end
  local desc, parts, questions, answers = job.desc, job.parts, nil, nil
  job.checks = {}
  job.desc, job.parts, questions, answers = lib.reading.watch(desc, parts)
  local fine, reason = pcall(lib.judge.run, job, state)
  job.desc, job.parts = desc, parts
  if not fine then
    error(reason, 0)
  end
  job.questions, job.answers = questions, answers
  return job
end

-- Caches the judgement of a job that was accepted without a message.
function again.keep(job)
  if job.questions and #job.findings == 0 and job.changes == nil and not job.left_out and job.user ~= nil then
    pcall(learn, job, job.questions, job.answers)
  end
  job.questions, job.answers = nil, nil
end

return again
