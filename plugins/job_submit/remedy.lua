-- requires: judge, shapes, smaller
-- One command that would be accepted, in the form that the job used. Each step makes one thing smaller and judges the
-- smaller job again; only a command that is then accepted is suggested.
local _, lib = ...

local function whole(value)
  return string.format("%.0f", value)
end

-- Fields of job_desc by the options that the steps give, as sbatch would fill them in.
local FIELDS = {
  ["--partition"] = function(value)
    return { partition = value }
  end,
  ["--qos"] = function(value)
    return { qos = value }
  end,
  ["--gpus"] = function(value)
    return { tres_per_job = "gres:gpu:" .. value }
  end,
  ["--gres"] = function(value)
    return { tres_per_node = "gres:" .. value }
  end,
  ["--gpus-per-node"] = function(value)
    return { tres_per_node = "gres:gpu:" .. value }
  end,
  ["--gpus-per-task"] = function(value)
    return { tres_per_task = "gres:gpu:" .. value }
  end,
  ["--gpus-per-socket"] = function(value)
    return { tres_per_socket = "gres:gpu:" .. value }
  end,
  ["--sockets-per-node"] = function(value)
    return { sockets_per_node = tonumber(value) }
  end,
  ["--nodes"] = function(value)
    return { min_nodes = tonumber(value), max_nodes = tonumber(value) }
  end,
  ["--ntasks"] = function(value)
    return { num_tasks = tonumber(value) }
  end,
  ["--ntasks-per-node"] = function(value)
    return { ntasks_per_node = tonumber(value) }
  end,
  ["--cpus-per-task"] = function(value)
    return { cpus_per_task = tonumber(value), pn_min_cpus = tonumber(value) }
  end,
  ["--cpus-per-gpu"] = function(value)
    return { cpus_per_tres = "gres:gpu:" .. value }
  end,
  ["--array"] = function(value)
    return { array_inx = value }
  end,
}
local MEMORY = {
  ["--mem"] = "min_mem_per_node",
  ["--mem-per-cpu"] = "min_mem_per_cpu",
  ["--mem-per-gpu"] = "mem_per_tres",
}

local function mib_of(text)
  local number, unit = text:match("^(%d+)([MG])$")
  return tonumber(number) * (unit == "G" and 1024 or 1)
end

local function seconds_of(text)
  local days, hours, minutes, seconds = text:match("^(%d*)%-?(%d%d):(%d%d):(%d%d)$")
  return (tonumber(days) or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
end

-- Adds the fields of an option to `fields`, with the tasks and CPUs that sbatch derives from it.
local function apply(fields, options, name, job)
  local value = options[name]
  if name == "--time" then
    fields.time_limit = seconds_of(value) / 60
  elseif MEMORY[name] then
    local mib = mib_of(value)
    fields[MEMORY[name]] = name == "--mem-per-gpu" and "gres:gpu:" .. whole(mib) or mib
  else
    for field, filled in pairs(FIELDS[name](value)) do
      fields[field] = filled
    end
  end
  if not options["--ntasks"] and (name == "--ntasks-per-node" or name == "--nodes" and job.request.tasks) then
    -- As sbatch does without --ntasks; job_desc does not show whether it was given.
    local nodes = fields.min_nodes or job.request.nodes or 1
    local on_each = fields.ntasks_per_node or job.request.tasks_per_node or 1
    fields.num_tasks = math.max(job.request.tasks or 0, nodes * on_each)
  end
  if fields.num_tasks or fields.cpus_per_task or fields.min_nodes then
    local tasks = fields.num_tasks or job.request.tasks or fields.min_nodes or job.size.nodes
    fields.min_cpus = tasks * (fields.cpus_per_task or job.request.cpus_per_task or 1)
  end
end

-- Fields of job_desc without an option that may be left out: 65534 is an unset number of 16 bits.
local WITHOUT = { ["--exclusive"] = { shared = 65534 } }

-- Returns the command, or nil if no smaller job of the same kind would be accepted now, and an option that it must
-- not have. `judge` judges the job with other fields in its job_desc.
return function(job, judge)
  local order, options, fields = {}, {}, {}
  local current, wrong, without = job, lib.judge.objections(job), nil
  local used = 0
  while wrong do
    local step, left_out
    repeat
      used = used + 1
      step, left_out = lib.smaller[(used - 1) % #lib.smaller + 1](current, wrong)
      if step == false or used > 4 * #lib.smaller then
        return nil -- no job of this kind fits
      end
    until step and #step > 0 or left_out
    for field, value in pairs(WITHOUT[left_out] or {}) do
      without, fields[field] = left_out, value
    end
    for _, option in ipairs(step) do
      local name, value = option:match("^(%-%-[%l-]+)=(.*)$")
      if options[name] == nil then
        order[#order + 1] = name
      end
      options[name] = value
      apply(fields, options, name, job)
    end
    current = judge(fields)
    wrong = lib.judge.objections(current)
  end
  if #order == 0 and without == nil then
    return nil
  elseif lib.shapes.even(job.request) and not lib.shapes.even(current.request) then
    return nil -- the limits allow it, but Slurm does not
  end
  local words = {}
  for _, name in ipairs(order) do
    words[#words + 1] = name .. "=" .. options[name]
  end
  words[#words + 1] = "..."
  local command = job.command()
  return (command and command .. " " or "") .. table.concat(words, " "), without
end
