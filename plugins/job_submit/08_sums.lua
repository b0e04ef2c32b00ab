-- Sums over jobs: classes of jobs that no rule can tell apart, and what each scope and each of its users uses.
local _, lib = ...
local sums = {}

-- What is summed up besides the number of jobs.
sums.measures = { "mgpu", "cpus", "mib" }
for kind in pairs(lib.size.watched) do
  sums.measures[#sums.measures + 1] = "mgpu:" .. kind
end

-- Adds a vector of measures to another, so many times over.
function sums.add(into, vector, times)
  for measure, value in pairs(vector) do
    into[measure] = (into[measure] or 0) + value * times
  end
end

-- One entry for all jobs that no rule can tell apart: same owner, account, QOS, partitions and kind.
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

-- No use at all, by scope.
function sums.fresh()
  local use = {}
  for index = 1, #lib.scopes.list do
    use[index] = { all = {}, users = {} }
  end
  return use
end

-- Counts a vector for all that a class belongs to.
function sums.count(state, class, vector, times)
  for _, index in ipairs(class.scopes) do
    local use = state.use[index]
    sums.add(use.all, vector, times)
    local own = use.users[class.uid]
    if own == nil then
      own = {}
      use.users[class.uid] = own
    end
    sums.add(own, vector, times)
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
