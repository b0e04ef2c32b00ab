-- requires: clock, size
-- Reads slurm-gpuctld's snapshot.txt. The snapshot contains sums over running and pending jobs, so decisions need not
-- scan the queue. The file is data and is never executed. Each call reads the header; the body is read once per
-- generation.
local policy, lib = ...
local snapshot = {}

-- Seconds after which a snapshot is too old for decisions.
local FRESH_S = 30

-- Names in the snapshot are percent-encoded, so they contain no separators.
function snapshot.encode(name)
  return (name:gsub("[^%w_.-]", function(byte)
    return string.format("%%%02X", string.byte(byte))
  end))
end

function snapshot.decode(name)
  return (name:gsub("%%(%x%x)", function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

local encode, decode = snapshot.encode, snapshot.decode

local function read_body(file, generation, as_of)
  local body = "\n" .. (file:read("*a") or "")
  local ending = "\nend " .. generation .. "\n"
  if body:sub(-#ending) ~= ending then
    return nil, "is incomplete"
  end
  local began, took, boot = body:match("\nlooked (%d+%.%d+) (%d+%.%d+) (%S+)\n")
  local here = boot ~= nil and boot == lib.clock.boot
  return {
    generation = generation,
    as_of = as_of,
    began = here and tonumber(began) or nil, -- uptime at the query of slurmctld; nil if it is from another boot
    took = here and tonumber(took) or nil, -- duration of the query
    body = body,
    groups = body:match("\ngroups (%S+)"),
    hours = body:match("\nhours( [^\n]*)"), -- the start of each period for which hours are known
    uses = {},
  }
end

-- Returns the valid snapshot, or nil if no snapshot is valid; `last` is the result of the last call. The second result
-- is the problem with an existing file. A snapshot with the groups of another policy is not reported as a problem,
-- because snapshots have other groups only for a moment after `policy apply`. The third result is the reason if there
-- is no file.
function snapshot.read(last, now)
  if not policy.snapshot then
    return nil
  end
  local file, reason = io.open(policy.snapshot, "r")
  if not file then
    return nil, nil, reason or policy.snapshot .. " does not exist"
  end
  local header = file:read("*l") or ""
  local generation, as_of = header:match("^slurm%-gpu%-snapshot 1 (%d+) (%d+)$")
  local found, problem
  if generation == nil then
    problem = "is not a snapshot"
  elseif math.abs(now - tonumber(as_of)) > FRESH_S then
    problem = string.format("is %.0f s old", now - tonumber(as_of))
  elseif last and last.generation == generation and last.as_of == tonumber(as_of) then
    found = last
  else
    found, problem = read_body(file, generation, tonumber(as_of))
  end
  file:close()
  if found and found.groups ~= policy.groups_id then
    return nil
  end
  return found, problem and policy.snapshot .. " " .. problem
end

-- Returns the numbers in one `use` line by key; {} if there is no such line, because then nothing is used.
local function fields_of(found, key)
  local fields = {}
  local at = found.body:find("\nuse " .. key .. " ", 1, true)
  if at then
    for name, value in found.body:match("[^\n]*", at + 1):gmatch(" ([^%s=]+)=(%S+)") do
      fields[name] = tonumber(value)
    end
  end
  return fields
end

-- Use of a group, or of the jobs in it of one user or account (`name`): {jobs, mgpu, cpus, mib, mgpu:TYPE …,
-- gpu_h_week, cpu_h_week …, last_pend = the id of the user's newest pending job}. GPUs whose type is not known yet
-- count for every type.
function snapshot.use(found, group, per, name)
  local place = per .. ":" .. name .. "@" .. group -- groups have no @ in their names
  local use = found.uses[place]
  if use == nil then
    local key = per == "group" and "group:" .. encode(group) or per .. ":" .. encode(name) .. "@" .. encode(group)
    local fields = fields_of(found, key)
    local function both(field)
      return (fields[field .. "_run"] or 0) + (fields[field .. "_pend"] or 0)
    end
    use = { jobs = both("jobs"), mgpu = both("mgpu"), cpus = both("cpus"), mib = both("mib") }
    use.last_pend = fields.last_pend
    use.pend_jobs, use.pend_mgpu = fields.jobs_pend or 0, fields.mgpu_pend or 0
    local typed, sum, typed_pending, sum_pending = {}, 0, {}, 0
    for field, value in pairs(fields) do
      local kind = field:match("^mgpu_%l+:(.+)$")
      if kind then
        kind = string.lower(decode(kind))
        typed[kind], sum = (typed[kind] or 0) + value, sum + value
        if field:find("^mgpu_pend:") then
          typed_pending[kind], sum_pending = value, sum_pending + value
        end
      elseif field:find("^%l+_h_") then
        use[field] = value
      end
    end
    for kind in pairs(lib.size.watched) do
      use["mgpu:" .. kind] = (typed[kind] or 0) + math.max(use.mgpu - sum, 0)
      use["pend_mgpu:" .. kind] = (typed_pending[kind] or 0) + math.max(use.pend_mgpu - sum_pending, 0)
    end
    found.uses[place] = use
  end
  return use
end

-- Whether a snapshot has a sum of hours, such as gpu_h_week. The line that lists the periods omits the unit of
-- GPU-hours.
function snapshot.has_hours(found, sum)
  return found.hours ~= nil and found.hours:find(" " .. sum:gsub("^gpu_h_", "") .. "=", 1, true) ~= nil
end

-- Iterates over the tokens of admissions that the snapshot counts, the latest first, each with the second in which
-- slurmctld inserted the job. The lines with tokens are contiguous, so the much longer lines of users are searched only
-- once.
function snapshot.seen(found)
  local body = found.body
  local at = body:find("\nseen ", 1, true)
  return function()
    local token, inserted
    if at then
      token, inserted, at = body:match("^\nseen (%w+) ?(%d*)[^\n]*()", at)
    end
    return token, tonumber(inserted) or 0
  end
end

-- Returns the number of shards per GPU (nil if slurm-gpuctld is not assigning jobs to shared GPUs), and the number of
-- shards that a job with this key gets (nil if unknown).
function snapshot.shares(found, key)
  local of = found and found.body:match("\ncolocation (%d+)\n")
  if of == nil then
    return nil, nil
  end
  local at = found.body:find("\nshare " .. key .. " ", 1, true)
  local shards = at and found.body:match("^%d+", at + 8 + #key)
  return tonumber(of), tonumber(shards)
end

-- Returns the name of a user; nil if the user has no jobs. The job_desc of an update does not contain the name.
function snapshot.user_name(found, uid)
  local name = found.body:match(string.format("\nuser (%%S+) %.0f\n", uid))
  return name and decode(name)
end

return snapshot
