-- requires: measures, scopes, size
-- Sums over jobs: classes of jobs that no rule distinguishes, and the use of each scope and of each user in it.
local policy, lib = ...
local sums = {}

-- The measures that are summed in addition to the number of jobs.
sums.measures = { "mgpu", "cpus", "mib" }
for kind in pairs(lib.size.watched) do
  sums.measures[#sums.measures + 1] = "mgpu:" .. kind
end

-- Adds a vector of measures to another, multiplied by `times`.
function sums.add(into, vector, times)
  for measure, value in pairs(vector) do
    into[measure] = (into[measure] or 0) + value * times
  end
end

-- Returns the class of a job: one entry for all jobs with the same user, account, QOS, partitions and kind.
function sums.classify(state, job)
  local key = string.format("%.0f\n%s\n%s\n%s\n%s", job.uid, job.account, job.qos, job.partition, job.kind)
  local class = state.classes[key]
  if class == nil then
    local scopes, rules = lib.scopes.matching(job)
    class = { uid = job.uid, scopes = scopes, rules = rules, sum = { jobs = 0 }, alike = {} }
    state.classes[key] = class
  end
  return class
end

local n_fresh = 0

-- Returns empty sums; a scope gets {all, users} when a first job counts there. References to these are valid until sums
-- with another number replace them.
function sums.fresh()
  n_fresh = n_fresh + 1
  return { number = n_fresh }
end

-- By scope, the measures that its rules sum over the whole group (`group`) and over each user (`user`).
local wanted

local function find_wanted()
  local found, seen = {}, {}
  for _, rule in ipairs(policy.rules) do
    found[rule.scope] = found[rule.scope] or { group = {}, user = {} }
    seen[rule.scope] = seen[rule.scope] or { group = {}, user = {} }
    for _, limit in ipairs(rule.per ~= "job" and lib.measures.of_rule(rule) or {}) do
      local measures, known = found[rule.scope][rule.per], seen[rule.scope][rule.per]
      if limit.sum and not known[limit.sum] then
        known[limit.sum] = true
        measures[#measures + 1] = limit.sum
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

-- The sums in which a class counts, as a flat list: after each sum come the measures in it that some rule needs.
local function places_of(state, class)
  wanted = wanted or find_wanted()
  local places = {}
  for scope in pairs(class.scopes) do
    local use, measures = state.use[scope] or { all = {}, users = {} }, wanted[scope]
    state.use[scope] = use
    if #measures.group > 0 then
      places[#places + 1] = use.all
      places[#places + 1] = measures.group
    end
    if #measures.user > 0 then
      local own = use.users[class.uid]
      if own == nil then
        own = {}
        use.users[class.uid] = own
      end
      places[#places + 1] = own
      places[#places + 1] = measures.user
    end
  end
  return places
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
