-- requires: scopes, size
-- Reads earlier admissions from files: the lines of decisions.log, and the state that slurmctld saved.
local policy, lib = ...
local remembered = {}

-- Maximum number of bytes read from decisions.log, and maximum size of a saved state in bytes.
local LOG_BYTES, SAVED_BYTES = 1048576, 67108864

local function decode(value)
  return (value:gsub("%%(%x%x)", function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

-- Adds the GPUs of each counted type. A line without `types` was written by a script that counted no types, so its GPUs
-- may be of any type.
local function add_types(sum, text)
  for kind in pairs(lib.size.watched) do
    sum["mgpu:" .. kind] = text and 0 or sum.mgpu
  end
  for kind, mgpu in string.gmatch(text or "", "([^,:]+):(%d+)") do
    sum["mgpu:" .. kind] = tonumber(mgpu)
  end
end

-- Returns the admissions of the last `seconds`: token → {at, uid, account, qos, partition, kind,
-- selection, sum}.
function remembered.admissions(now, seconds)
  local found = {}
  local log = io.open(policy.decisions_log, "r")
  if log == nil then
    return found
  end
  local size = log:seek("end") or 0
  log:seek("set", math.max(0, size - LOG_BYTES))
  for line in log:lines() do
    local at, token, rest = line:match("^slurm%-gpu/1 (%d+) %l+ allow (%w+) (.*)$")
    at = tonumber(at)
    if at and at <= now and now - at < seconds then
      local field = {}
      for key, value in rest:gmatch("(%l+)=(%S*)") do
        field[key] = decode(value)
      end
      local uid, tasks, mgpu = tonumber(field.uid), tonumber(field.tasks), tonumber(field.mgpu)
      if uid and tasks and mgpu then
        local sum = { jobs = tasks, mgpu = mgpu, cpus = tonumber(field.cpus), mib = tonumber(field.mib) }
        for unit, hours in string.gmatch(field.committed or "", "([^,]+):([%d.]+)") do
          sum[unit] = tonumber(hours)
        end
        add_types(sum, field.types)
        lib.size.add_pending(sum)
        found[token] = {
          at = at,
          uid = uid,
          account = field.account or "",
          qos = field.qos or "",
          partition = field.partition or "",
          kind = field.kind or "batch",
          selection = lib.scopes.selection_of(field.selected),
          sum = sum,
        }
      end
    end
  end
  log:close()
  return found
end

-- Returns, for a missing job_state, whether slurmctld uses the directory but has not saved a job yet. slurmctld writes
-- the cluster's name to the directory at its first start.
local function never_had_a_job()
  local name = io.open((policy.job_state:gsub("[^/]+$", "clustername")), "r")
  if name then
    name:close()
  end
  return name ~= nil
end

-- Returns the text of slurmctld's saved jobs; nil if it cannot be read or is too long.
function remembered.saved_jobs()
  if not policy.job_state then
    return nil
  end
  local file, _, code = io.open(policy.job_state, "rb")
  if not file then
    return code == 2 and never_had_a_job() and "" or nil -- 2 is ENOENT
  end
  local size = file:seek("end")
  local text
  if size and size <= SAVED_BYTES then
    file:seek("set", 0)
    text = file:read(size)
  end
  file:close()
  return text
end

return remembered
