-- Which limits the job would go beyond. A finding is {rule, key, label, used, recent, limit, requested (as text),
-- mode}, or {rule, error} where a rule could not be evaluated. `recent` is the part of `used` that was just
-- submitted, and then `retry_s` says when it counts no more if Slurm refused it, where that would make room. Also sets job.room: what would still be accepted.
local policy, lib = ...
local amounts = lib.amounts

local function number_text(value)
  return string.format("%.0f", value)
end

-- One entry per limit: what it measures, in the job and in the sums of the rule's group.
-- `grows` says whether an update makes the job larger in this respect.
local LIMITS = {
  {
    key = "gpus",
    label = "GPUs in one job",
    text = amounts.format_mgpu,
    requested = function(job)
      return job.mgpu
    end,
    grows = function(job)
      return job.mgpu * job.tasks > job.counted.mgpu
    end,
  },
  {
    key = "gpus_total",
    label = "GPUs running + pending",
    text = amounts.format_mgpu,
    sum = "mgpu",
    requested = function(job)
      return job.mgpu * job.tasks
    end,
  },
  {
    key = "jobs_total",
    label = "jobs running + pending",
    text = number_text,
    sum = "jobs",
    requested = function(job)
      return job.tasks
    end,
  },
  {
    key = "walltime",
    label = "time limit",
    text = amounts.format_time,
    requested = function(job)
      return job.walltime_s or 0
    end,
    grows = function(job)
      local before = amounts.u32(job.record.time_limit)
      return before ~= nil and job.walltime_s ~= nil and job.walltime_s > before * 60
    end,
  },
}

-- What one user's exception puts in place of a rule's limits; nil where there is none in force.
local function exception_for(rule, job)
  local exception = rule.exceptions and rule.exceptions[job.uid]
  if exception and job.now < exception.until_s then
    return exception
  end
  return nil
end

local function lower(room, name, value)
  if room[name] == nil or value < room[name] then
    room[name] = value
  end
end

local function check(rule, limit, bound, job, state, room)
  local requested = limit.requested(job)
  local used, before = 0, 0
  if limit.sum then
    local use = state.use[rule.group]
    if rule.per == "user" then
      use = use.users[job.uid] or { jobs = 0, mgpu = 0 }
    end
    used = use[limit.sum]
  end
  if job.record then
    local same_group = job.counted.groups[rule.group]
    if limit.sum and same_group then
      before = limit.sum == "mgpu" and job.counted.mgpu or job.counted.tasks
      if requested <= before then
        return nil -- an update that does not ask for more
      end
    elseif limit.grows and same_group and not limit.grows(job) then
      return nil
    end
  end
  used = math.max(used - before, 0)
  local left = bound - used
  if rule.mode == "enforce" then
    lower(room, limit.key, left)
  end
  if requested == 0 or requested <= left then
    return nil, bound > 0 and left / bound or 0
  end
  local recent, retry_s
  if limit.sum then
    local just = lib.state.just_submitted(state, rule.group, rule.per == "user" and job.uid or nil, job.now)
    local part = math.min(just[limit.sum], used)
    if part > 0 then
      recent = limit.text(part)
      retry_s = used - part < bound and just.left_s or nil
    end
  end
  return {
    rule = rule,
    key = limit.key,
    label = limit.label,
    recent = recent,
    retry_s = retry_s,
    used = limit.sum and limit.text(used) or nil,
    limit = limit.text(bound),
    requested = limit.text(requested),
    mode = rule.mode,
  }
end

-- Shards of one job and node come from one GPU: what exceeds it would wait for ever.
local SHARDS = {
  id = "one-gpu",
  mode = "enforce",
  per = "job",
  why = "All shards of a job on a node come from one GPU; a job that asks for more could never start.",
}

local function check_shards(job, room)
  local per_gpu = policy.shards_per_gpu
  if per_gpu == nil or policy.shards_span_gpus or job.request.per_node == nil then
    return nil
  end
  room.shards = per_gpu
  for _, item in ipairs(amounts.parse_tres(job.request.per_node)) do
    if item.name == "shard" and item.count > per_gpu then
      return {
        rule = SHARDS,
        key = "shards",
        label = "shards per node",
        limit = number_text(per_gpu),
        requested = number_text(item.count),
        mode = "enforce",
      }
    end
  end
  return nil
end

-- What cannot be counted cannot be held to a limit, and Slurm reads more spellings than anyone writes.
local PLAIN = {
  id = "plain-numbers",
  mode = "enforce",
  per = "job",
  why = "A limit can only be checked where the request is written in plain numbers.",
}

local function check_readable(job)
  local text = amounts.unreadable(job.request, job.array)
  if text == nil then
    return nil
  end
  return {
    rule = PLAIN,
    key = "spelling",
    label = "request",
    limit = "a spelling such as gpu:2 or --array=0-15%4",
    requested = text,
    mode = "enforce",
  }
end

return function(job, state)
  local findings, room = {}, {}
  local member = {}
  for _, index in ipairs(job.class.groups) do
    member[index] = true
  end
  local least_left
  local bound_by_rules = false
  for _, rule in ipairs(policy.rules) do
    local group = policy.groups[rule.group]
    if member[rule.group] and (group.until_s == nil or job.now < group.until_s) then
      bound_by_rules = bound_by_rules or rule.mode == "enforce"
      local exception = exception_for(rule, job)
      for _, limit in ipairs(LIMITS) do
        local bound = rule.limits[limit.key]
        if exception and exception.limits[limit.key] then
          bound = exception.limits[limit.key]
        end
        if bound then
          local fine, finding, left = pcall(check, rule, limit, bound, job, state, room)
          if not fine then
            findings[#findings + 1] = { rule = rule, key = limit.key, error = tostring(finding) }
          elseif finding then
            findings[#findings + 1] = finding
          end
          if fine and left and (least_left == nil or left < least_left) then
            least_left, job.nearest_rule = left, rule.id
          end
        end
      end
    end
  end
  if bound_by_rules then
    findings[#findings + 1] = check_readable(job)
  end
  findings[#findings + 1] = check_shards(job, room)
  job.room = room
  return findings
end
