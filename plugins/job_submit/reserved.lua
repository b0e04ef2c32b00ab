-- requires: amounts, hosts
-- Reads reservations from slurm-gpuctld's snapshot: the job size that requires a reservation, and the users'
-- reservations.
local _, lib = ...
local reserved = {}

local function decode(name)
  return (name:gsub("%%(%x%x)", function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

local FOLLOWING = { "\ncolocation ", "\nplacement ", "\nend " }

-- Returns the lines about reservations, which are contiguous; "" if there are no such lines.
local function section(body)
  local at = body:find("\nreserve ", 1, true)
  for _, ending in ipairs(at and FOLLOWING or {}) do
    local last = body:find(ending, at, true)
    if last then
      return body:sub(at, last)
    end
  end
  return ""
end

local function parse(text)
  local mode, mgpu = text:match("^\nreserve (%l+) mgpu=(%S+)\n")
  if mode ~= "observe" and mode ~= "advise" and mode ~= "enforce" then
    return nil
  end
  local found = { mode = mode, mgpu = tonumber(mgpu) or math.huge, held = {} }
  for user, account, partition, most, rest in text:gmatch("\nreserved (%S+) (%S+) (%S+) (%d+)([^\n]*)") do
    -- Lines of an older slurm-gpuctld end here.
    local name, begins_s, ends_s, nodes = rest:match("^ (%S+) (%d+) (%d+) (%S+)")
    user = decode(user)
    found.held[user] = found.held[user] or {}
    table.insert(found.held[user], {
      account = string.lower(decode(account)),
      partition = decode(partition),
      mgpu = tonumber(most),
      name = name and decode(name),
      begins_s = tonumber(begins_s),
      ends_s = tonumber(ends_s),
      nodes = nodes and decode(nodes),
    })
  end
  return found
end

-- Returns the lines about reservations, and their contents (nil without such lines): {mode, mgpu, held = {user → list
-- of {account, partition, mgpu, name, begins_s, ends_s, nodes}}}. Jobs with at least `mgpu` GPUs (in thousandths)
-- require a reservation; the size is infinite if no job requires one.
function reserved.table_of(snapshot)
  if snapshot == nil then
    return "", nil
  elseif snapshot.reserve_text == nil then
    snapshot.reserve_text = section(snapshot.body)
    snapshot.reserve = parse(snapshot.reserve_text)
  end
  return snapshot.reserve_text, snapshot.reserve
end

-- Returns whether Slurm runs a job in this reservation, which belongs to the job's user, if it is large enough.
local function draws(one, job)
  local at_partition = ("," .. job.partition .. ","):find("," .. one.partition .. ",", 1, true)
  return one.account == job.account and at_partition ~= nil
end

-- Returns whether a job fits a reservation of its user in which Slurm runs it without --reservation.
function reserved.holds(found, job, user)
  for _, one in ipairs(found.held[user] or {}) do
    if draws(one, job) and job.mgpu <= one.mgpu then
      return true
    end
  end
  return false
end

-- Returns the user's largest reservation that Slurm would use for the job but that has too few GPUs; nil if there is no
-- such reservation.
function reserved.too_small(found, job, user)
  local largest
  for _, one in ipairs(found.held[user] or {}) do
    if draws(one, job) and one.mgpu < job.mgpu and (largest == nil or one.mgpu > largest.mgpu) then
      largest = one
    end
  end
  return largest
end

local function names_of(value)
  return type(value) == "string" and value ~= "" and lib.hosts.set(value) or nil
end

-- Returns whether --nodelist and --exclude allow the nodes of a reservation; lists that cannot be parsed allow all
-- nodes.
local function may_enter(one, desc)
  local nodes, wanted, left_out = lib.hosts.set(one.nodes), names_of(desc.req_nodes), names_of(desc.exc_nodes)
  if nodes == nil then
    return true
  end
  return not (left_out and lib.hosts.within(nodes, left_out)) and not (wanted and not lib.hosts.within(wanted, nodes))
end

-- Returns the user's current reservation in which the job runs and which ends before the job's time limit; the first to
-- end if there are several, nil if there are none. Slurm ignores the time limit in such reservations. `named` is the
-- value of --reservation.
function reserved.ends_before(found, job, user, named)
  local first
  local from_s = math.max(job.now, lib.amounts.u32(job.desc.begin_time) or 0)
  local limit_s = from_s + (job.walltime_s or 0)
  for _, one in ipairs(found.held[user] or {}) do
    local takes = one.ends_s and (named == nil and draws(one, job) or named == one.name)
    local has_begun = takes and one.begins_s <= job.now and from_s < one.ends_s
    local is_first = has_begun and limit_s > one.ends_s and (first == nil or one.ends_s < first.ends_s)
    if is_first and may_enter(one, job.desc) then
      first = one
    end
  end
  return first
end

return reserved
