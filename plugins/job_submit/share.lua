-- requires: amounts, scopes, snapshot
-- Decides which jobs share a GPU, and how many shards each job gets. The snapshot lists the number of shards by job key
-- (snapshot.lua). slurm-gpuctld chooses a job's co-runners and its start time; the job starts at its begin time at the
-- latest. Adds to job: share = {mode, key, text = the text for the log, why = the reason if the job does not share}. If
-- the job shares a GPU, `share` also has {shards, of, max_wait_s, environment = names of variables to empty}.
local policy, lib = ...
local amounts = lib.amounts
local sharing = policy.colocation

-- Variables from which srun inside the job reads its GPU request. These variables are emptied because srun would
-- otherwise request whole GPUs. The variables for CPUs and memory per GPU cannot be empty, so jobs with these options
-- do not share a GPU.
local GPU_VARIABLES = { "SLURM_GPUS", "SLURM_GPUS_PER_NODE" }
local LONGEST_KEY = 80

local function of_groups(indexes, job)
  for _, index in ipairs(indexes) do
    local group = policy.groups[index]
    if lib.scopes.is_current(group, job.now) and lib.scopes.holds_all(group, job) then
      return true
    end
  end
  return false
end

-- Returns whether the comment requests sharing, and the NAME in `share=NAME`, if any. The comment `share=` is the same
-- as `share`.
local function asked_for(desc)
  local comment = desc.comment
  if type(comment) ~= "string" then
    return false, nil
  end
  local word = comment:match("^%s*(%S+)") or ""
  if word == "share" then
    return true, nil
  end
  local name = word:match("^share=(.*)$")
  return name ~= nil, name ~= "" and name or nil
end

local function encode(name)
  return lib.snapshot.encode(name:sub(1, LONGEST_KEY))
end

local function key_of(job, name)
  if name then
    return encode(name)
  end
  local job_name = job.desc.name
  return encode(job.user or "") .. "/" .. encode(type(job_name) == "string" and job_name or "")
end

local function set(value)
  return type(value) == "string" and value ~= ""
end

-- Returns whether a time is set and in the future.
local function later(value, now)
  return type(value) == "number" and value < 2 ^ 32 - 2 and value > now
end

-- Returns whether a job requests exactly one whole GPU, per job or per node. The second result is the type.
local function asks_one_gpu(request)
  if request.per_task or request.per_socket or (request.per_job and request.per_node) then
    return false
  end
  local text = request.per_job or request.per_node or ""
  local items = amounts.parse_tres(text)
  return #items == 1 and not text:find(",", 1, true) and not items[1].unreadable and items[1].name == "gpu" and items[1].count == 1, items[1] and items[1].type
end

-- Returns whether these partitions have only GPUs of this type. A request for shards cannot name a type.
local function is_only_type(kind, partitions)
  for name in string.gmatch(partitions, "[^,]+") do
    for other in pairs(policy.partition_gpu_types and policy.partition_gpu_types[name] or {}) do
      if other ~= string.lower(kind) then
        return false
      end
    end
  end
  return true
end

-- Returns whether a job can be requeued if it slows down a co-runner, or if it runs out of memory because of a
-- co-runner.
local function may_be_requeued(desc)
  local requeue = amounts.u16(desc.requeue)
  if requeue == nil then
    return sharing.requeues ~= false
  end
  return requeue ~= 0
end

-- Returns why a job cannot share a GPU, even if it needs only a small part; nil if it can.
local function unfit(job)
  local desc, request = job.desc, job.request
  local one, kind = asks_one_gpu(request)
  if job.is_array then
    return "array"
  elseif amounts.u32(desc.het_job_offset) then
    return "het"
  elseif not set(desc.script) then
    return "interactive"
  elseif amounts.counted_nodes(request) ~= 1 or (request.most_nodes and request.most_nodes ~= 1) then
    return "nodes"
  elseif job.mgpu ~= 1000 or request.whole_nodes or not one then
    return "gpus"
  elseif kind and not is_only_type(kind, job.partition) then
    return "type"
  elseif set(desc.cpus_per_tres) or set(desc.mem_per_tres) or request.tasks_per_gpu then
    return "per-gpu"
  elseif set(desc.tres_bind) or set(desc.tres_freq) then
    return "bind"
  elseif set(desc.req_nodes) or set(desc.exc_nodes) or set(desc.features) or set(desc.reservation) then
    return "place"
  elseif later(desc.begin_time, job.now) then
    return "begin"
  elseif set(desc.dependency) then
    return "dependency"
  elseif not may_be_requeued(desc) then
    return "requeue"
  elseif job.loan then
    return "loan"
  elseif job.urgent then
    return "urgent"
  end
  return nil
end

-- Sets the fields to write into a job that shares a GPU: shards instead of its GPU. CPUs and memory that Slurm or a
-- bundle would add per GPU are requested per node or task.
local function writes_of(job, shards)
  local request, writes = job.request, job.writes
  local prefix = (request.per_job or request.per_node):match("gres[:/]") or "gres:"
  writes.tres_per_node = string.format("%sshard:%.0f", prefix, shards)
  if request.per_job then
    writes.tres_per_job = ""
  end
  if writes.cpus_per_tres then
    writes.cpus_per_tres = nil
    if not request.tasks or request.tasks == 1 then
      writes.cpus_per_task, writes.min_cpus = request.cpus_per_gpu, request.cpus_per_gpu
    else
      writes.min_cpus = math.max(request.cpus or 0, request.cpus_per_gpu)
    end
  end
  local default = (policy.default_mib or {}).per_gpu
  if writes.mem_per_tres then
    writes.mem_per_tres = nil
    writes.min_mem_per_node = request.mib_per_gpu
  elseif default and not (request.mib_per_node or request.mib_per_cpu or writes.min_mem_per_node) then
    writes.min_mem_per_node = default
  end
  writes.begin_time = job.now + sharing.max_wait_s
end

local function keeps(job, key, why)
  job.share = { mode = sharing.mode, key = key, text = "-:" .. why, why = why }
end

local function run(job, state)
  if sharing == nil or job.record or job.mgpu <= 0 then
    return {} -- only slurm-gpuctld changes the request of an accepted job
  end
  local asked, name = asked_for(job.desc)
  local required = of_groups(sharing.required_groups, job)
  if not asked and not required then
    return {}
  end
  local key = key_of(job, name)
  if not required and sharing.allowed_groups and not of_groups(sharing.allowed_groups, job) then
    keeps(job, nil, "may")
    return {}
  end
  local why = unfit(job)
  if why then
    keeps(job, nil, why)
    return {}
  end
  local of, shards
  of, shards = lib.snapshot.shares(state.snapshot, key)
  if of == nil or policy.shards_span_gpus then
    keeps(job, nil, "off")
  elseif shards == nil then
    keeps(job, key, "unknown")
  elseif shards > sharing.max_gpu_fraction * of or shards >= of then
    keeps(job, key, "large")
  else
    job.share = {
      mode = sharing.mode,
      key = key,
      shards = shards,
      of = of,
      max_wait_s = sharing.max_wait_s,
      text = string.format("%.0f/%.0f:%s", shards, of, key),
    }
    if sharing.mode == "enforce" and not job.quiet then
      writes_of(job, shards)
      job.share.environment = GPU_VARIABLES
    end
  end
  return {}
end

-- Jobs that share a GPU, or that were considered for sharing, are never cached: each gets its own begin time.
local function again(job)
  return job.share == nil
end

return { run = run, again = again }
