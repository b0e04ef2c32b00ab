-- Converts times to the site's local time. Lua in slurmctld has only UTC, so the policy includes the UTC offsets.
local policy = ...
local calendar = {}

-- Returns the site's UTC offset at a time, in seconds. Entries of policy.utc_offsets are sorted; the last entry applies
-- indefinitely.
local function offset_at(second)
  local offset = 0
  for _, entry in ipairs(policy.utc_offsets or {}) do
    if second >= entry.from_s then
      offset = entry.offset_s
    end
  end
  return offset
end

-- Returns the day of the week (1 is Monday) and the minutes since midnight at the site.
function calendar.local_time(second)
  local there = second + offset_at(second)
  local day = math.floor(there / 86400) -- 1 January 1970 was a Thursday
  return (day + 3) % 7 + 1, math.floor(there % 86400 / 60)
end

-- Formats a time for users, such as "2026-11-24 14:00".
function calendar.shown(second)
  return os.date("!%Y-%m-%d %H:%M", second + offset_at(second))
end

-- Returns whether a time is within the hours of a `when`. Hours that end on the next day belong to the day on which
-- they begin.
function calendar.holds(when, second)
  local day, minute = calendar.local_time(second)
  return when.days[day] and minute >= when.from_min and minute < when.to_min
    or when.days[(day + 5) % 7 + 1] and minute + 1440 < when.to_min
end

local DAY_S, WEEK_S = 86400, 604800

-- Computes `calendar.overlap` for a period with one UTC offset.
local function overlap_at(when, begin_s, end_s, offset_s)
  local first, last = begin_s + offset_s, end_s + offset_s
  local monday = math.floor((first + 3 * DAY_S) / WEEK_S) * WEEK_S - 3 * DAY_S
  for day = -1, 13 do -- covers hours from the preceding Sunday to the end of the following week
    local from_s, to_s = monday + day * DAY_S + when.from_min * 60, monday + day * DAY_S + when.to_min * 60
    if when.days[day % 7 + 1] and from_s < last and to_s > first then
      return math.max(from_s, first) - offset_s, to_s - offset_s
    end
  end
  return nil
end

-- Returns the time at which a run from `begin_s` to `end_s` first overlaps the hours of a `when`, and the end of
-- these hours; nil if they do not overlap.
function calendar.overlap(when, begin_s, end_s)
  local offsets = policy.utc_offsets
  for index, entry in ipairs(offsets) do
    local from_s = index == 1 and begin_s or math.max(begin_s, entry.from_s)
    local until_s = offsets[index + 1] and offsets[index + 1].from_s or math.huge
    if from_s < math.min(end_s, until_s) then
      local first_s, last_s = overlap_at(when, from_s, math.min(end_s, until_s), entry.offset_s)
      if first_s then
        return first_s, math.min(last_s, until_s)
      end
    end
  end
  return nil
end

-- Returns the first begin time from `begin_s` on for which a run of this length does not overlap these hours; nil if 32
-- steps do not find one.
function calendar.free_from(whens, begin_s, length_s)
  for _ = 1, 32 do
    local before_s = begin_s
    for _, when in ipairs(whens) do
      local _, last_s = calendar.overlap(when, begin_s, begin_s + length_s)
      begin_s = last_s or begin_s
    end
    if begin_s == before_s then
      return begin_s
    end
  end
  return nil
end

return calendar
