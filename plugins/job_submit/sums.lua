-- requires: measures, scopes, size
-- Computes sums over jobs: classes of jobs that no rule distinguishes, and the use of each scope and of its users.
local policy, lib = ...
local sums = {}

-- The measures that are summed in addition to the number of jobs.
sums.measures = { "mgpu", "cpus", "mib" }
for kind in pairs(lib.size.watched) do
  sums.measures[#sums.measures + 1] = "mgpu:" .. kind
end
if lib.size.counts_pending then
  sums.measures[#sums.measures + 1] = "pend_jobs" -- the others follow from it
end

-- Adds a vector of measures to another, multiplied by `times`.
function sums.add(into, vector, times)
  for measure, value in pairs(vector) do
    into[measure] = (into[measure] or 0) + value * times
  end
end

-- Returns the key of the jobs over which a rule sums: the jobs of a user or of an account, or all jobs of its group.
local function owner(per, class)
  return per == "user" and class.uid or per == "account" and class.account or ""
end

-- Returns whether a rule sums over the jobs of both classes together.
function sums.are_summed(rule, class, other)
  return owner(rule.per, class) == owner(rule.per, other)
end

-- Returns the class of a job: one entry for all jobs with the same user, account, QOS, partitions, kind and selection.
function sums.classify(state, job)
  local format = "%.0f\n%s\n%s\n%s\n%s\n%s"
  local key = string.format(format, job.uid, job.account, job.qos, job.partition, job.kind, job.selection)
  local class = state.classes[key]
  if class == nil then
    local scopes, rules = lib.scopes.matching(job)
    class = { uid = job.uid, account = job.account, scopes = scopes, rules = rules, sum = { jobs = 0 }, alike = {} }
    state.classes[key] = class
  end
  return class
end

local n_fresh = 0

-- Returns empty sums. A scope gets {group, user, account} when its first job is counted, each with sums by `owner`.
-- References to sums are valid until sums with another number replace them.
function sums.fresh()
  n_fresh = n_fresh + 1
  return { number = n_fresh }
end

-- The measures, by scope, that rules sum over the whole group, each user and each account.
local wanted

local function find_wanted()
  local found, seen = {}, {}
  for _, rule in ipairs(policy.rules) do
    found[rule.scope] = found[rule.scope] or { group = {}, user = {}, account = {} }
    seen[rule.scope] = seen[rule.scope] or { group = {}, user = {}, account = {} }
    for _, limit in ipairs(rule.per ~= "job" and lib.measures.of_rule(rule) or {}) do
      local measures, known = found[rule.scope][rule.per], seen[rule.scope][rule.per]
      local measure = limit.sum or (rule.hard and limit.hours)
      if measure and not known[measure] then
        known[measure] = true
        measures[#measures + 1] = measure
      end
    end
  end
  return found
end

local function add_some(into, vector, times, measures)
  for index = 1, #measures do
    local measure = measures[index]
    into[measure] = (into[measure] or 0) + (vector[measure] or 0) * times
  end
end

-- Returns the sums in which a class counts, as a flat list. Each sum is followed by the measures that some rule needs
-- from it.
local function places_of(state, class)
  wanted = wanted or find_wanted()
  local places = {}
  for scope in pairs(class.scopes) do
    local use = state.use[scope] or { group = {}, user = {}, account = {} }
    state.use[scope] = use
    for per, measures in pairs(wanted[scope]) do
      if #measures > 0 then
        local by_owner, key = use[per], owner(per, class)
        by_owner[key] = by_owner[key] or {}
        places[#places + 1] = by_owner[key]
        places[#places + 1] = measures
      end
    end
  end
  return places
end

-- Returns the sums of a rule that contain a class of jobs; nil if the sums contain no job.
function sums.of(state, rule, class)
  local use = state.use[rule.scope]
  return use and use[rule.per][owner(rule.per, class)]
end

-- Adds a vector to all sums of a class, limited to measures that some rule needs.
function sums.count(state, class, vector, times)
  local number = state.use.number
  if class.placed_in ~= number then
    class.placed_in, class.places = number, places_of(state, class)
  end
  local places = class.places
  for index = 1, #places, 2 do
    add_some(places[index], vector, times, places[index + 1])
  end
end

return sums
