-- Reservations as slurm-gpuctld's snapshot tells them: from how many GPUs on a job needs one, and who has one.
local reserved = {}

local function decode(name)
  return (name:gsub("%%(%x%x)", function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

-- The lines about reservations, all together; "" where there are none.
local function section(body)
  local at = body:find("\nreserve ", 1, true)
  return at and body:sub(at, body:find("\nplacement ", at, true) or body:find("\nend ", at, true)) or ""
end

local function parse(text)
  local mode, mgpu = text:match("^\nreserve (%l+) mgpu=(%S+)\n")
  if mode ~= "observe" and mode ~= "advise" and mode ~= "enforce" then
    return nil
  end
  local found = { mode = mode, mgpu = tonumber(mgpu) or math.huge, held = {} }
  for user, account, partition, most in text:gmatch("\nreserved (%S+) (%S+) (%S+) (%d+)") do
    user = decode(user)
    found.held[user] = found.held[user] or {}
    table.insert(found.held[user], {
      account = string.lower(decode(account)),
      partition = decode(partition),
      mgpu = tonumber(most),
    })
  end
  return found
end

-- What names the table, and the table: {mode, mgpu = from which on jobs need a reservation, held = {user → list of
-- {account, partition, mgpu}}}; nil where none does.
function reserved.table_of(snapshot)
  if snapshot == nil then
    return "", nil
  elseif snapshot.reserve_text == nil then
    snapshot.reserve_text = section(snapshot.body)
    snapshot.reserve = parse(snapshot.reserve_text)
  end
  return snapshot.reserve_text, snapshot.reserve
end

-- Whether a job may run in a reservation of its user's, which draws it in by itself.
function reserved.holds(found, job, user)
  for _, one in ipairs(found.held[user] or {}) do
    local at_partition = ("," .. job.partition .. ","):find("," .. one.partition .. ",", 1, true)
    if one.account == job.account and at_partition and job.mgpu <= one.mgpu then
      return true
    end
  end
  return false
end

return reserved
