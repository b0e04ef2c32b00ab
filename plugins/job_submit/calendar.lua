-- Local time at the site. Lua in slurmctld has only UTC, so the policy includes the offsets.
local policy = ...
local calendar = {}

-- Seconds east of UTC at a moment; entries of policy.utc_offsets ascend, and the last has no end.
local function offset_at(second)
  local offset = 0
  for _, entry in ipairs(policy.utc_offsets or {}) do
    if second >= entry.from_s then
      offset = entry.offset_s
    end
  end
  return offset
end

-- The day of the week (1 is Monday) and the minutes since midnight at the site.
function calendar.local_time(second)
  local there = second + offset_at(second)
  local day = math.floor(there / 86400) -- 1 January 1970 was a Thursday
  return (day + 3) % 7 + 1, math.floor(there % 86400 / 60)
end

-- A moment for people, such as "2026-11-24 14:00".
function calendar.shown(second)
  return os.date("!%Y-%m-%d %H:%M", second + offset_at(second))
end

-- Whether a moment is in a rule's `when`; a rule without it always applies.
function calendar.holds(when, second)
  if when == nil then
    return true
  end
  local day, minute = calendar.local_time(second)
  return when.days[day] == true and minute >= when.from_min and minute < when.to_min
end

return calendar
