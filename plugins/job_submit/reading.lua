-- Records which fields of job_desc and of partitions a judgement reads, in order, with their values. The fields and
-- values are the keys of the decision cache (again.lua). A question is the name of a field of job_desc, or {kind, name,
-- field}.
local reading = {}

local PART, FIELD, DEFAULT = "partition", "field of a partition", "default partition"

-- Fields that are not recorded, because they depend on another field and are expensive to read. For example, Slurm
-- resolves the name of a user from the uid.
local IMPLIED = { user_name = true }

-- The key under which a stand-in for the partitions stores the real partitions.
local BEHIND = {}

-- The current recording: the real job_desc, the questions and answers, their number, and the fields recorded so far.
local desc, questions, answers, n, asked

local function note(question, answer)
  n = n + 1
  questions[n], answers[n] = question, answer
  return answer
end

local watched_desc = setmetatable({}, {
  __index = function(_, name)
    local answer = desc[name]
    if not asked[name] then
      asked[name] = true
      note(name, answer)
    end
    return answer
  end,
})

local function watched_part(part, name)
  local known = {}
  return setmetatable({}, {
    __index = function(_, field)
      local answer = part[field]
      if not known[field] then
        known[field] = true
        note({ kind = FIELD, name = name, field = field }, answer)
      end
      return answer
    end,
  })
end

local function watched_parts(parts)
  local known = {}
  return setmetatable({ [BEHIND] = parts }, {
    __index = function(_, name)
      if known[name] == nil then
        local part = parts[name]
        note({ kind = PART, name = name }, part ~= nil)
        known[name] = part ~= nil and watched_part(part, name)
      end
      return known[name] or nil
    end,
  })
end

-- Returns stand-ins for a job_desc and its partitions, valid until the next call; the list of questions, which grows
-- with each read; and the list of answers, some of which are nil.
function reading.watch(job_desc, parts)
  desc, questions, answers, n, asked = job_desc, {}, {}, 0, {}
  for name in pairs(IMPLIED) do
    asked[name] = true
  end
  return watched_desc, watched_parts(parts or {}), questions, answers
end

local function default_of(parts)
  for name, part in pairs(parts) do
    local flag = part.flag_default
    if flag == 1 or flag == true then
      return name
    end
  end
  return nil
end

-- Returns the default partition for jobs without --partition; nil if the cluster has no default partition.
function reading.default_partition(parts)
  local behind = rawget(parts, BEHIND)
  if behind == nil then
    return default_of(parts)
  end
  return note({ kind = DEFAULT }, default_of(behind))
end

-- Returns the answer to a question about these partitions.
function reading.answer(question, parts)
  if question.kind == DEFAULT then
    return default_of(parts)
  end
  local part = parts[question.name]
  if question.kind == PART then
    return part ~= nil
  end
  return part[question.field]
end

-- Returns whether two questions are the same.
function reading.same(one, other)
  if type(one) == "string" or type(other) == "string" then
    return one == other
  end
  return one.kind == other.kind and one.name == other.name and one.field == other.field
end

return reading
