-- Parses Slurm's hostlists, such as n[1-3,7],login. All functions are pure.
local hosts = {}

-- Maximum number of names that are expanded, because users may submit any text.
local MOST = 10000

-- Adds the names of one item. Returns false for too many names and unsupported items, such as several brackets.
local function add(names, item)
  local before, ranges, after = item:match("^([^%[%]]*)%[([^%[%]]+)%]([^%[%]]*)$")
  if before == nil then
    names.n = names.n + 1
    names.set[item] = true
    return item:find("[%[%]]") == nil and names.n <= MOST
  end
  for range in ranges:gmatch("[^,]+") do
    local first, last = range:match("^(%d+)%-(%d+)$")
    first, last = first or range:match("^%d+$"), last or range:match("^%d+$")
    if first == nil or #last > 9 or tonumber(last) - tonumber(first) > MOST then
      return false
    end
    for number = tonumber(first), tonumber(last) do
      names.n = names.n + 1
      names.set[before .. string.format("%0" .. #first .. ".0f", number) .. after] = true
      if names.n > MOST then
        return false
      end
    end
  end
  return true
end

-- Returns the names in a hostlist as {name = true}; nil if an item cannot be parsed or there are too many names.
function hosts.set(text)
  local names, start, depth = { n = 0, set = {} }, 1, 0
  for at = 1, #text + 1 do
    local sign = text:sub(at, at)
    if sign == "[" then
      depth = depth + 1
    elseif sign == "]" then
      depth = depth - 1
    elseif (sign == "," and depth == 0) or sign == "" then
      if at > start and not add(names, text:sub(start, at - 1)) then
        return nil
      end
      start = at + 1
    end
  end
  return names.set
end

-- Returns whether one set of names contains every name of another.
function hosts.within(names, others)
  for name in pairs(names) do
    if not others[name] then
      return false
    end
  end
  return true
end

return hosts
