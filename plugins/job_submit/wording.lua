-- Formats messages as lines that fit a terminal. All functions are pure.
local wording = {}

wording.WIDTH = 85 -- with the prefix "sbatch: error: ", a line has at most 100 characters

-- Returns the number of characters of a UTF-8 text, not of bytes.
function wording.width(text)
  return #(text:gsub("[\128-\191]", ""))
end

-- Wraps a text at spaces and appends its lines; lines after the first are indented.
function wording.wrap(lines, text, indent)
  local line = indent
  for word in text:gmatch("%S+") do
    if wording.width(line) > #indent and wording.width(line) + 1 + wording.width(word) > wording.WIDTH then
      lines[#lines + 1] = line
      line = indent .. "  "
    end
    line = line .. (line:match("%S") and " " or "") .. word
  end
  lines[#lines + 1] = line
end

-- Returns the names of a set, sorted: "a, b".
function wording.names(set)
  local names = {}
  for name in pairs(set) do
    names[#names + 1] = name
  end
  table.sort(names)
  return table.concat(names, ", ")
end

return wording
