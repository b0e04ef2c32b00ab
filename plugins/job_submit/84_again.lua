-- Jobs come in series: one like another that was let in is let in without being judged anew, if the sums still allow it.
--
-- What is found about a new job follows from what was read of it, from the policy, from the second where a rule looks
-- at the clock, and from what others use. So when a job is found fine, the questions that were asked about it are
-- kept with their answers, as a path in a tree. A job that answers alike comes to the same leaf, where only the
-- limits on sums are left to look at. Whatever is different, or fails, is judged from the beginning.
local policy, lib = ...
local again = {}

-- As many leaves at most: what is asked for can be anything.
local MOST_LEAVES = 500
-- Seconds after which all is forgotten: what is not asked again, such as a user's name, may have changed.
local KEPT_S = 600

-- Modules of which nothing else depends on the sums or the clock than what `checks` tell. Any other one says itself
-- whether it would still find nothing, by its function `again(job, state)`; one that does not has every job judged.
local KNOWN = {}
for _, name in ipairs({ "job", "lending", "state", "limits", "bundles" }) do
  KNOWN[lib[name] or name] = true
end
local others, usable = {}, true
for _, module in ipairs(lib.modules) do
  local own = type(module) == "table" and module.again or nil
  if own then
    others[#others + 1] = own
  elseif not KNOWN[module] then
    usable = false
  end
end

-- Whether no rule looks at the clock.
local timeless = true
for _, rule in ipairs(policy.rules) do
  if rule.when or rule.exceptions or policy.groups[rule.group].until_s then
    timeless = false
  end
end

local roots, n_leaves, since = {}, 0, 0

local function forget()
  roots, n_leaves = {}, 0
end

-- Where the tree for a kind of job and its submitter begins.
local function root_of(job)
  local kinds = roots[job.kind]
  return kinds and kinds[job.submit_uid]
end

local function plant(job)
  local root = {}
  roots[job.kind] = roots[job.kind] or {}
  roots[job.kind][job.submit_uid] = root
  return root
end

-- The leaf that a job's answers lead to.
local function leaf_of(job)
  local node, desc, parts = root_of(job), job.desc, job.parts or {}
  while node do
    local value
    if node.field then
      value = desc[node.field]
    elseif node.question then
      value = lib.reading.answer(node.question, parts)
    else
      return node.leaf
    end
    if value == nil then
      node = node.unset
    else
      node = node.by_answer[value]
    end
  end
  return nil
end

-- Whether a limit still has room for a job, and how much of it is left, as in 30_limits.
local function left_of(check, job, state)
  if check.left then
    return true, check.left
  end
  local used
  if check.sum then
    used = math.max(lib.state.used(state, check.rule, check.sum, check.uid, job.user), 0)
  else
    used = lib.state.gpu_hours(state, check.rule, check.hours, job.uid, job.user)
  end
  local left = check.bound - used
  local fits = check.requested == 0 or check.requested <= left
  return fits, check.bound > 0 and left / check.bound or 0
end

-- The limits that a job is held to, in their order; of those that nothing else has a part in only the nearest among
-- its neighbours, with what is left of it.
local function compress(checks)
  local kept = {}
  for _, check in ipairs(checks) do
    if check.sum or (check.hours and check.requested > 0) then
      kept[#kept + 1] = check
    else
      local left, last = check.bound > 0 and check.bound / check.bound or 0, kept[#kept]
      local before = last and last.left
      if not (before and before <= left) then -- without a limit (inf / inf) neither is nearer
        kept[#kept + (before and left < before and 0 or 1)] = { rule = check.rule, left = left }
      end
    end
  end
  return kept
end

local function find(job, state)
  job.kind = lib.job.kind_of(job, state)
  if job.now < since or job.now - since >= KEPT_S then
    forget()
    since = job.now
    return nil
  end
  local leaf = leaf_of(job)
  if leaf == nil or not (timeless or leaf.now == job.now) then
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
  known.desc, known.now, known.up = job.desc, job.now, job.up
  job.on_error_deny = known.on_error_deny
  return known
end

-- Whether jobs like this one may be found again: an update is of one job, and a listener wants to hear all.
local function may_recur(job)
  return usable and job.record == nil and job.queue_error == nil and slurm_gpu_considered == nil
end

-- The judgement of a job like this one, with this one's job_desc, if it would be let in just the same; nil where
-- it has to be judged.
function again.find(job, state)
  if not may_recur(job) then
    return nil
  end
  local fine, known = pcall(find, job, state)
  return fine and known or nil
end

-- The node that follows an answer, made where there is none.
local function next_of(node, value)
  local following
  if value == nil then
    following = node.unset or {}
    node.unset = following
  else
    following = node.by_answer[value] or {}
    node.by_answer[value] = following
  end
  return following
end

local COMPARABLE = { ["nil"] = true, string = true, number = true, boolean = true }

local function learn(job, questions, answers)
  if n_leaves >= MOST_LEAVES then
    forget()
  end
  local node = root_of(job) or plant(job)
  for index, question in ipairs(questions) do
    local value = answers[index]
    local asked = node.field or node.question
    if value ~= value or not COMPARABLE[type(value)] then
      return -- no answer that could be told again
    elseif node.leaf or asked and not lib.reading.same(asked, question) then
      return -- what is asked next follows from more than the answers
    elseif asked == nil then
      node.by_answer = {}
      node[type(question) == "string" and "field" or "question"] = question
    end
    node = next_of(node, value)
  end
  if node.by_answer == nil then
    n_leaves = n_leaves + (node.leaf and 0 or 1)
    job.command = nil -- it would ask this very job_desc
    job.checks = compress(job.checks)
    node.leaf = { job = job, now = job.now }
  end
end

-- Judges a job, and notes what is asked about it if others like it may come.
function again.judge(job, state)
  if not may_recur(job) or job.kind == nil then
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

-- Keeps the judgement of a job that was let in without a word, for those like it.
function again.keep(job)
  if job.questions and #job.findings == 0 and job.user ~= nil then
    pcall(learn, job, job.questions, job.answers)
  end
  job.questions, job.answers = nil, nil
end

return again
