-- requires: amounts, reserved, size, zones
-- Keeps all nodes of a distributed job in one zone, and sets the order of node types for a job on one node. Handles
-- only jobs with GPUs that certainly need several nodes, or certainly need only one node. Adds to job: place_key (the
-- lines about placement in the snapshot) and place. `place` is {mode, zones = list of {name, score}, best first,
-- features = the constraint with these zones}, or {mode, why} if the job is left unchanged. In both cases, `place` also
-- has `text` for the log. A job on one node gets `order` instead: the features written to its constraint, in the order
-- in which they are tried.
--
-- Placement must never cause a refusal. Slurm refuses a constraint that it cannot parse, and a job that can never run
-- in any of the zones named. Jobs with options that are not modelled here are therefore left unchanged.
local policy, lib = ...
local amounts = lib.amounts

-- Fields that select nodes or require properties of nodes that are not modelled here, with the name of each in the log.
local TEXTS = {
  { "req_nodes", "nodelist" },
  { "exc_nodes", "exclude" },
  { "prefer", "prefer" }, -- Slurm uses --prefer instead of the constraint
  { "reservation", "reservation" },
  { "batch_features", "batch" },
  { "tres_per_socket", "sockets" },
}
local NUMBERS = {
  { "het_job_offset", "het", amounts.u32 },
  { "req_switch", "switches", amounts.u32 },
  { "sockets_per_node", "sockets", amounts.u16 },
  { "cores_per_socket", "sockets", amounts.u16 },
  { "threads_per_core", "threads", amounts.u16 },
  { "ntasks_per_socket", "sockets", amounts.u16 },
  { "pn_min_tmp_disk", "tmp", amounts.u32 },
  { "contiguous", "contiguous", amounts.u16 },
}
-- Numeric fields that count as set even if they are 0: the first component of a het job has the number 0.
local AT_ZERO = { het_job_offset = true }

-- Returns why a job is left unchanged; nil if it is placed.
local function peculiar(desc)
  for _, field in ipairs(TEXTS) do
    local value = desc[field[1]]
    if type(value) == "string" and value ~= "" then
      return field[2]
    end
  end
  for _, field in ipairs(NUMBERS) do
    local value = field[3](desc[field[1]])
    if value and (value > 0 or AT_ZERO[field[1]]) then
      return field[2]
    end
  end
  return nil
end

-- Returns the job's size on the fewest nodes that it may get, where each node has the largest share.
local function size_on(job, nodes)
  local request = job.request
  if (request.most_nodes or 1) <= nodes then
    return job.size
  end
  local fewest = {}
  for name, value in pairs(request) do
    fewest[name] = value
  end
  fewest.nodes, fewest.most_nodes = nodes, nodes
  return lib.size.of_request(fewest, job.partition, job.parts)
end

-- Adds to `share` the amounts that one form of a request needs on a node; returns false for GRES other than GPUs.
local function add_form(share, text, times)
  local items, n_pieces = amounts.parse_tres(text), 0
  for _, item in ipairs(items) do
    if item.unreadable or item.name ~= "gpu" then
      return false
    end
    local count = math.ceil(item.count * times - 1e-9)
    share.gpus = math.max(share.gpus, count)
    if item.type then
      local kind = string.lower(item.type)
      share.types[kind] = math.max(share.types[kind] or 0, count)
    end
  end
  for piece in text:gmatch("[^,]+") do
    n_pieces = n_pieces + (piece:find("^%s*cpu[=:]") and 0 or 1)
  end
  return n_pieces == #items
end

-- Returns the amounts that a job on `nodes` nodes needs on one of them: {gpus, types, cpus, mib}; nil if the job
-- requests GRES other than GPUs.
local function share_of(job, nodes)
  local request, size = job.request, size_on(job, nodes)
  local function each(amount)
    return math.ceil(amount / nodes - 1e-9)
  end
  local tasks = each(size.tasks)
  local share = { gpus = each(size.mgpu / 1000), types = {}, cpus = each(size.cpus), mib = each(size.mib) }
  local times = { per_job = 1 / nodes, per_node = 1, per_task = tasks }
  for _, form in ipairs({ "per_job", "per_node", "per_task" }) do
    if request[form] and not add_form(share, request[form], times[form]) then
      return nil
    end
  end
  share.cpus = math.max(share.cpus, tasks * math.max(request.cpus_per_task or 1, 1), request.node_cpus or 1)
  share.cpus = math.max(share.cpus, share.gpus * (request.cpus_per_gpu or 0))
  share.mib = math.max(share.mib, share.cpus * (request.mib_per_cpu or 0), share.gpus * (request.mib_per_gpu or 0))
  return share
end

-- Returns the number of nodes that a job certainly needs, and the number that counts for limits, which may be larger.
local function nodes_of(job, found)
  local least, most_gpus = amounts.least_nodes(job.request), 0
  for partition in job.partition:gmatch("[^,]+") do
    most_gpus = math.max(most_gpus, found.most_gpus[partition] or 0)
  end
  if most_gpus > 0 and (job.form == "per_job" or job.form == "per_task" or job.form == "tasks_per_gpu") then
    least = math.max(least, math.ceil(job.size.mgpu / 1000 / most_gpus))
  end
  return least, math.max(amounts.counted_nodes(job.request), least)
end

-- Returns whether a job may need several nodes; this check does not read the zones.
local function may_be_distributed(job)
  if job.mgpu <= 1000 or job.record or job.quiet then
    return false
  elseif amounts.counted_nodes(job.request) >= 2 then
    return true
  end
  for partition in job.partition:gmatch("[^,]+") do
    local gpus = policy.partition_gpus and policy.partition_gpus[partition]
    if gpus == nil or job.mgpu > gpus * 1000 then
      return true
    end
  end
  return false
end

-- Returns whether the snapshot lists nodes with GPUs in each of the job's partitions; other jobs are not placed.
local function is_managed(job, found)
  for partition in job.partition:gmatch("[^,]+") do
    if found.pools[partition] == nil then
      return false
    end
  end
  return job.partition ~= ""
end

-- Returns whether a new job certainly runs on one node and shares it with others.
local function is_on_one_node(job)
  local request = job.request
  if job.mgpu == 0 or job.record or job.quiet or request.whole_nodes or amounts.counted_nodes(request) > 1 then
    return false
  elseif request.most_nodes == 1 then
    return true
  end
  local tasks = math.max(request.tasks or 1, request.tasks_per_node or 1)
  return tasks <= 1 and (job.form == "per_node" or job.form == "per_job" and job.mgpu <= 1000)
end

-- Returns the features that a job on one node tries, in order; nil if the job is left unchanged. Every node with GPUs
-- has one of them, so the constraint excludes no node. A job with its own constraint is left unchanged, because Slurm's
-- backfill would ignore the constraint if it were combined with these features.
local function order_of(job, found)
  local desc, request = job.desc, job.request
  if (type(desc.features) == "string" and desc.features ~= "") or peculiar(desc) then
    return nil
  end
  for _, form in ipairs({ "per_job", "per_node", "per_task" }) do
    for _, item in ipairs(amounts.parse_tres(request[form] or "")) do
      if item.type then
        return nil
      end
    end
  end
  return lib.zones.ordered(found, job.partition, job.mgpu, job.size.cpus, job.size.mib)
end

local function place_of(job, found, state)
  if next(found.scores) == nil or not is_managed(job, found) then
    return nil
  end
  local least, most = nodes_of(job, found)
  if least < 2 then
    return nil
  end
  local desc, place = job.desc, { mode = found.mode }
  -- Even without --reservation, Slurm may run a job in its user's reservation, which may span several zones.
  local _, promised = lib.reserved.table_of(state.snapshot)
  place.why = peculiar(desc) or (promised and lib.reserved.holds(promised, job, job.user) and "reservation") or nil
  if place.why then
    return place
  end
  local share = share_of(job, least)
  if share == nil then
    place.why = "gres"
    return place
  end
  local text = desc.features
  local own = lib.zones.read_own(text)
  if own == nil then
    place.why = "constraint"
    return place
  end
  for _, name in ipairs(own.names) do
    if found.scores[name] then
      place.why = "zone"
      return place
    end
  end
  place.zones = lib.zones.fitting(found, job.partition, most, function(pool)
    for kind, count in pairs(share.types) do
      if (pool.types[kind] or 0) < count then
        return false
      end
    end
    return (pool.gpus or 0) >= share.gpus
      and (pool.cpus or 0) >= share.cpus
      and (pool.mib or 0) >= share.mib
      and lib.zones.holds(own, pool.features)
  end)
  if #place.zones == 0 then
    place.why, place.zones = "room", nil
    return place
  end
  local names = {}
  for index, zone in ipairs(place.zones) do
    names[index] = zone.name
  end
  place.features = lib.zones.joined(text, names)
  return place
end

-- Formats zones as "zone1:812,zone2:350" for the log and the job's AdminComment.
local function text_of(place)
  if place.why then
    return "-:" .. place.why
  end
  local parts = {}
  for index, zone in ipairs(place.zones) do
    parts[index] = string.format("%s:%.0f", zone.name, zone.score)
  end
  return table.concat(parts, ",")
end

local function run(job, state)
  local one = is_on_one_node(job)
  if not one and not may_be_distributed(job) then
    return {}
  end
  local key, found = lib.zones.table_of(state.snapshot)
  job.place_key = key
  if one then
    job.order = found and found.mode == "enforce" and order_of(job, found) or nil
    if job.order then
      job.writes.features = lib.zones.joined(nil, job.order)
    end
    return {}
  end
  job.place = found and place_of(job, found, state) or nil
  if job.place then
    job.place.text = text_of(job.place)
    if slurm_gpu_placed then -- only `slurm-gpu explain` sets this function
      slurm_gpu_placed(found.mode .. ":" .. job.place.text, job.place.features or "")
    end
    if job.place.features and found.mode == "enforce" then
      job.writes.features = job.place.features
    end
  end
  return {}
end

-- Returns whether an equal job would get the same placement: true if the lines about placement in the snapshot are
-- unchanged.
local function again(job, state)
  return job.place_key == nil or job.place_key == (lib.zones.table_of(state.snapshot))
end

return { run = run, again = again }
