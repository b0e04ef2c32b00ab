-- requires: snapshot
-- Reads zones from slurm-gpuctld's snapshot, and appends zones to constraints. slurm_gpu/placement/zone_constraint.py
-- recovers the user's own constraint exactly.
local _, lib = ...
local zones = {}

local encode, decode = lib.snapshot.encode, lib.snapshot.decode

-- Maximum number of alternatives in one constraint.
local MOST_ALTERNATIVES = 32

-- Maximum length, in bytes, of a user's constraint that is parsed: a longer one would delay slurmctld.
local LONGEST_OWN = 1000

local NAME = "^[%w_.:+=-]+$"
local SCALES = { "small", "medium", "large" }

local function numbers_of(text)
  local found = {}
  for key, value in text:gmatch(" ([%w_]+)=(%d+)") do
    found[key] = tonumber(value)
  end
  return found
end

-- Parses "a100:4,h100:8" or "a100,nvlink", whose names are percent-encoded, as {name = count or true}.
local function names_of(text)
  local found = {}
  for item in (text or ""):gmatch("[^,]+") do
    local name, count = item:match("^(.*):(%d+)$")
    found[decode(name or item)] = tonumber(count) or true
  end
  return found
end

-- Returns the lines about placement, which are contiguous and the last in a snapshot; "" if there are no such lines.
local function section(snapshot)
  local body = snapshot.body
  local at = body:find("\nplacement ", 1, true)
  return at and body:sub(at, (body:find("\nend ", at, true))) or ""
end

-- The pools that were parsed last. A new snapshot arrives every second, but nodes rarely change, and parsing a thousand
-- different nodes would delay slurmctld.
local last = { text = "", pools = {}, most_gpus = {} }

local function pools_of(text)
  local at = text:find("\npool ", 1, true)
  local lines = at and text:sub(at) or ""
  if lines ~= last.text then
    local found = { text = lines, pools = {}, most_gpus = {} }
    for zone, partition, more in lines:gmatch("\npool (%S+) (%S+)([^\n]*)") do
      local pool = numbers_of(more)
      pool.zone, partition = decode(zone), decode(partition)
      pool.types, pool.features = names_of(more:match(" types=(%S+)")), names_of(more:match(" features=(%S+)"))
      local pools = found.pools[partition] or {}
      pools[#pools + 1] = pool
      found.pools[partition] = pools
      found.most_gpus[partition] = math.max(found.most_gpus[partition] or 0, pool.gpus or 0)
    end
    last = found
  end
  return last.pools, last.most_gpus
end

local function parse(text)
  local mode, settings = text:match("\nplacement (%l+)([^\n]*)")
  if mode ~= "observe" and mode ~= "advise" and mode ~= "enforce" then
    return nil
  end
  local found = { mode = mode, most_medium = numbers_of(settings).medium or 1, scores = {} }
  for name, more in text:gmatch("\nscore (%S+)([^\n]*)") do
    found.scores[decode(name)] = numbers_of(more)
  end
  found.pools, found.most_gpus = pools_of(text)
  found.text = text
  return found
end

-- Rounds down to eight steps per doubling, as slurm-gpuctld does (slurm_gpu/placement/mix.py: coarse).
local function coarse(number)
  local step = 1
  while number / step >= 16 do
    step = step * 2
  end
  return math.floor(number / step) * step
end

-- Returns the features of nodes in the order in which a job on one node tries them; nil if jobs of this size have no
-- order, or if nodes of the partitions lack features.
function zones.ordered(found, partitions, mgpu, cpus, mib)
  local usable = " " .. (found.text:match("\nfeatures ([^\n]*)") or "") .. " "
  for partition in partitions:gmatch("[^,]+") do
    if not usable:find(" " .. encode(partition) .. " ", 1, true) then
      return nil
    end
  end
  local key = string.format("\norder %.0f %.0f %.0f ", mgpu, coarse(cpus), coarse(mib))
  local at = found.text:find(key, 1, true)
  local names = {}
  for name in (at and found.text:match("^%S+", at + #key) or ""):gmatch("[^,]+") do
    names[#names + 1] = decode(name)
  end
  return #names > 1 and #names <= MOST_ALTERNATIVES and names or nil
end

-- Returns the lines about placement, and their contents (nil if there are no lines): {mode, most_medium, scores, pools,
-- most_gpus}. `most_medium` is the number of nodes up to which a job is medium; `scores` is {zone → {small, medium,
-- large}}. `pools` is {partition → list of {zone, nodes, gpus, cpus, mib, types, features}}. Each pool is a set of
-- equal nodes; zone is "-" for nodes outside all zones. `most_gpus` is {partition → most GPUs on one node}.
function zones.table_of(snapshot)
  if snapshot == nil then
    return "", nil
  elseif snapshot.placement_text == nil then
    snapshot.placement_text = section(snapshot)
    snapshot.placement = parse(snapshot.placement_text)
  end
  return snapshot.placement_text, snapshot.placement
end

-- Parses a user's own constraint as {sign = "&", "|" or nil, names}; {names = {}} for none. Nil if zones cannot be
-- appended without changing its meaning or making it invalid.
function zones.read_own(text)
  if type(text) ~= "string" or text == "" then
    return { names = {} }
  elseif #text > LONGEST_OWN then
    return nil
  end
  local has_and, has_or = text:find("&", 1, true), text:find("|", 1, true)
  if has_and and has_or then
    return nil -- Slurm does not document the precedence of & and |
  end
  local sign, names = has_and and "&" or has_or and "|" or nil, {}
  for name in (text .. (sign or "&")):gmatch(sign == "|" and "([^|]*)|" or "([^&]*)&") do
    if not name:find(NAME) then
      return nil
    end
    names[#names + 1] = name
  end
  return { sign = sign, names = names }
end

-- Returns whether nodes with these features satisfy a parsed constraint.
function zones.holds(own, features)
  if own.sign == "|" then
    for _, name in ipairs(own.names) do
      if features[name] then
        return true
      end
    end
    return false
  end
  for _, name in ipairs(own.names) do
    if not features[name] then
      return false
    end
  end
  return true
end

-- Returns the constraint with zones appended; the first zone has precedence.
function zones.joined(text, names)
  local alternatives = "[" .. table.concat(names, "|") .. "]"
  if type(text) ~= "string" or text == "" then
    return alternatives
  elseif text:find("[&|]") then
    return "(" .. text .. ")&" .. alternatives
  end
  return text .. "&" .. alternatives
end

function zones.scale_of(nodes, most_medium)
  if nodes <= 1 then
    return SCALES[1]
  end
  return nodes <= most_medium and SCALES[2] or SCALES[3]
end

-- Returns the zones with enough nodes for a job, free or not: a list of {name, score}, best first. `fits(pool)`
-- returns whether a node of the pool is large enough for its share of the job.
function zones.fitting(found, partitions, nodes, fits)
  local least = {} -- by zone, the number of fitting nodes in the partition that has the fewest
  for partition in partitions:gmatch("[^,]+") do
    local here = {}
    for _, pool in ipairs(found.pools[partition] or {}) do
      if found.scores[pool.zone] and fits(pool) then
        here[pool.zone] = (here[pool.zone] or 0) + (pool.nodes or 0)
      end
    end
    for zone in pairs(found.scores) do
      least[zone] = math.min(least[zone] or math.huge, here[zone] or 0)
    end
  end
  local scale, list = zones.scale_of(nodes, found.most_medium), {}
  for zone, count in pairs(least) do
    if count >= nodes then
      list[#list + 1] = { name = zone, score = found.scores[zone][scale] or 0 }
    end
  end
  table.sort(list, function(one, other)
    if one.score ~= other.score then
      return one.score > other.score
    end
    return one.name < other.name
  end)
  for index = #list, MOST_ALTERNATIVES + 1, -1 do
    list[index] = nil
  end
  return list
end

return zones
