-- requires: judge, larger, options, shapes, smaller
-- Finds one command that would be accepted, in the form that the job used. Each step changes one aspect of the job, and
-- the job is judged again. Only a command whose job is accepted in the end is suggested.
local policy, lib = ...

local function whole(value)
  return string.format("%.0f", value)
end

-- Maps each option that a step may return to the fields of job_desc that sbatch would set.
local FIELDS = {
  ["--partition"] = function(value)
    return { partition = value }
  end,
  ["--qos"] = function(value)
    return { qos = value }
  end,
  ["--account"] = function(value)
    return { account = value }
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
  ["--exclusive"] = function()
    return { shared = 0 }
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
    -- sbatch does this without --ntasks; job_desc does not show whether the user set that option.
    local nodes = fields.min_nodes or job.request.nodes or 1
    local on_each = fields.ntasks_per_node or job.request.tasks_per_node or 1
    fields.num_tasks = math.max(job.request.tasks or 0, nodes * on_each)
  end
  if fields.num_tasks or fields.cpus_per_task or fields.min_nodes then
    local tasks = fields.num_tasks or job.request.tasks or fields.min_nodes or job.size.nodes
    fields.min_cpus = tasks * (fields.cpus_per_task or job.request.cpus_per_task or 1)
  end
end

-- Maps each option that may be left out to the fields of job_desc without the option.
local WITHOUT = {}
-- Combinations of options to leave out if a job names too many nodes, in the order in which they are tried.
local NAMING_NODES = { { "--nodelist" }, { "--constraint" }, { "--nodelist", "--constraint" } }

local STEPS = {}
for _, steps in ipairs({ lib.smaller, lib.larger }) do
  for _, step in ipairs(steps) do
    STEPS[#STEPS + 1] = step
  end
end
for _, option in ipairs(lib.options) do
  local name = "--" .. option.key
  WITHOUT[name] = option.unset
  STEPS[#STEPS + 1] = function(job, wrong)
    local finding = wrong["option:" .. option.key]
    if finding == nil then
      return nil
    elseif finding.limit == "forbidden" then
      return option.unset and {} or false, option.unset and name
    end
    local value = option.value and option.value(job)
    return value and { value == true and name or name .. "=" .. value } or false
  end
end

-- Returns another job of the same kind, without the options `left_out`, that would be accepted now; nil if there is no
-- such job. With `own_mgpu`, the job must not borrow GPUs; a job that would borrow GPUs is reduced to this number.
local function changed_job(job, judge, left_out, own_mgpu)
  local order, options, fields, without = {}, {}, {}, {}
  local function leave_out(name)
    without[#without + 1] = name
    for field, value in pairs(WITHOUT[name]) do
      fields[field] = value
    end
  end
  for _, name in ipairs(left_out) do
    leave_out(name)
  end
  local current = #left_out > 0 and judge(fields) or job
  local used = 0
  while true do
    local wrong = lib.judge.objections(current)
    if own_mgpu and current.loan then
      -- The findings do not matter: a job that does not borrow has other limits.
      wrong, current = {}, setmetatable({ room = { gpus = own_mgpu } }, { __index = current })
    elseif wrong == nil then
      break
    end
    local step, dropped
    repeat
      used = used + 1
      step, dropped = STEPS[(used - 1) % #STEPS + 1](current, wrong)
      if step == false or used > 4 * #STEPS then
        return nil -- no job of this kind fits
      end
    until step and #step > 0 or dropped
    if dropped then
      leave_out(dropped)
    end
    for _, option in ipairs(step) do
      local name, value = option:match("^(%-%-[%l-]+)=?(.*)$")
      if (name == "--nodes" or name == "--ntasks") and tonumber(value) < current.request.named_nodes then
        return nil -- Slurm requires all nodes that the job names
      end
      if options[name] == nil then
        order[#order + 1] = name
      end
      options[name] = value
      apply(fields, options, name, job)
    end
    current = judge(fields)
  end
  if #order == 0 and #without == 0 then
    return nil
  elseif lib.shapes.even(job.request) and not lib.shapes.even(current.request) then
    return nil -- the limits allow it, but Slurm does not
  end
  local words = {}
  for _, name in ipairs(order) do
    words[#words + 1] = name .. (options[name] ~= "" and "=" .. options[name] or "")
  end
  words[#words + 1] = "..."
  local command = job.command()
  local text = (command and command .. " " or "") .. table.concat(words, " ")
  return { command = text, without = without, loan = current.loan }
end

-- Calls `changed_job`, and keeps the job's node list and constraint if possible.
local function with_its_nodes(job, judge, own_mgpu)
  local found = changed_job(job, judge, {}, own_mgpu)
  for _, names in ipairs(job.request.named_nodes > 1 and NAMING_NODES or {}) do
    found = found or changed_job(job, judge, names, own_mgpu)
  end
  return found
end

-- Returns another job that would be accepted now: {command, without = options that the command must not have, loan};
-- nil if there is no such job. If that job would borrow GPUs, its `own` is a third job, which borrows no GPUs. `judge`
-- judges the job with changed fields of job_desc.
return function(job, judge)
  local found = with_its_nodes(job, judge)
  local loan = (found or job).loan
  if loan and loan.own_mgpu then
    local own = with_its_nodes(job, judge, math.max(loan.own_mgpu, policy.lending.unowned_mgpu))
    if found == nil then
      return own
    end
    found.own = own
  end
  return found
end
