-- requires: measures, scopes, size
-- Sums over jobs: classes of jobs that no rule distinguishes, and what each scope and each of its users uses.
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

-- One entry for all jobs that no rule distinguishes: same owner, account, QOS, partitions and kind.
function sums.classify(state, uid, account, qos, partition, kind)
  local key = string.format("%.0f\n%s\n%s\n%s\n%s", uid, account, qos, partition, kind)
  local class = state.classes[key]
  if class == nil then
    local scopes = lib.scopes.matching(uid, account, qos, partition, kind)
    class = { uid = uid, scopes = scopes, sum = { jobs = 0 }, alike = {} }
    state.classes[key] = class
  end
  return class
end

local n_fresh = 0

-- Empty sums by scope. Their tables may be kept until new sums, with another number, replace them.
function sums.fresh()
  n_fresh = n_fresh + 1
  local use = { number = n_fresh }
  for index = 1, #lib.scopes.list do
    use[index] = { all = {}, users = {} }
  end
  return use
end

-- By scope, lists of the measures that its rules sum over the group and by user.
local wanted

local function find_wanted()
  local found, seen = {}, {}
  for index = 1, #lib.scopes.list do
    found[index], seen[index] = { group = {}, user = {} }, { group = {}, user = {} }
  end
  for _, rule in ipairs(policy.rules) do
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

-- The sums in which a class counts: a flat list of pairs of a sum and the measures that some rule needs of it.
local function places_of(state, class)
  wanted = wanted or find_wanted()
  local places = {}
  for _, index in ipairs(class.scopes) do
    local use, measures = state.use[index], wanted[index]
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

-- Whether jobs of a class belong to a scope.
function sums.belongs(class, scope)
  for _, index in ipairs(class.scopes) do
    if index == scope then
      return true
    end
  end
  return false
end

return sums
