-- Compares names with sets of names in which * matches any characters and ? matches one character (in UTF-8).
local wildcards = {}

-- Maximum length of names that are compared with wildcards, because a user can submit a name of any length.
wildcards.LONGEST = 255

local function pattern_of(name)
  local escaped = name:gsub("[^%w*?]", "%%%0"):gsub("%*", ".*"):gsub("%?", "[^\128-\191][\128-\191]*")
  return "^" .. escaped .. "$"
end

-- Maps each set of names to the patterns for its names with wildcards; a set without wildcards has no entry.
local patterns = {}

-- Prepares a set of names; sets that are not prepared match only their own names.
function wildcards.prepare(names)
  for name in pairs(names) do
    if name:find("[*?]") then
      patterns[names] = patterns[names] or {}
      table.insert(patterns[names], pattern_of(name))
    end
  end
end

-- Returns whether a set has a name with wildcards.
function wildcards.present(names)
  return patterns[names] ~= nil
end

-- Returns whether a name is in a set of names or matches a wildcard in the set; true if the set is nil.
function wildcards.match(names, name)
  if names == nil or names[name] then
    return true
  end
  local found = patterns[names]
  for index = 1, found and #name <= wildcards.LONGEST and #found or 0 do
    if name:find(found[index]) then
      return true
    end
  end
  return false
end

return wildcards
