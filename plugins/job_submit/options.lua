-- requires: amounts, fit
-- Lists the options that rules can require or forbid, in the order of messages. An option is listed only if commands
-- without the option leave its fields unset. `named` returns true if a job_desc has the option, false if it clears the
-- option, and nil if the fields are unset. `value` returns the value that applies to a job without the option (true if
-- the option takes no value). `unset` has the fields of a job_desc without the option. Options with `is_new_only` are
-- not checked in updates.
local _, lib = ...
local amounts = lib.amounts
local UNSET_32, UNSET_16 = 4294967294, 65534

local function text(key, field, value, is_new_only)
  return {
    key = key,
    named = function(desc)
      if type(desc[field]) == "string" then
        return desc[field] ~= ""
      end
    end,
    value = value,
    unset = { [field] = false },
    is_new_only = is_new_only,
  }
end

-- Returns a function that reads this text field of a job; the function returns nil if the text is empty.
local function current(field)
  return function(job)
    return job[field] ~= "" and job[field] or nil
  end
end

-- Returns whether the GPUs of a job_desc have a type: all of them if a rule requires types, any of them if it forbids
-- types. Returns nil for a job_desc without GPUs.
local function gpu_type(desc, need)
  local _, items = lib.fit.named_types({
    per_job = desc.tres_per_job,
    per_node = desc.tres_per_node,
    per_socket = desc.tres_per_socket,
    per_task = desc.tres_per_task,
  })
  local typed, untyped = false, false
  for _, item in ipairs(items) do
    typed = typed or (item.name == "gpu" and item.type ~= nil)
    untyped = untyped or (item.name == "gpu" and item.type == nil)
  end
  if not typed and not untyped and amounts.u16(desc.ntasks_per_tres) == nil then
    return nil
  end
  return typed and not (need == "required" and untyped)
end

return {
  text("account", "account", current("account")),
  text("array", "array_inx", nil, true), -- an update of ArrayTaskThrottle also sets this field
  text("comment", "comment"),
  text("constraint", "features"),
  text("dependency", "dependency"),
  text("exclude", "exc_nodes"),
  {
    key = "exclusive",
    named = function(desc)
      local shared = amounts.u16(desc.shared)
      return shared and shared == 0
    end,
    value = function()
      return true
    end,
    unset = { shared = UNSET_16 },
  },
  {
    key = "gpu_type",
    required = "the type of each GPU, such as --gpus=TYPE:2",
    forbidden = "the type of GPUs",
    named = gpu_type,
    of_gpus = true,
  },
  text("licenses", "licenses"),
  {
    key = "mem",
    required = "--mem, --mem-per-cpu or --mem-per-gpu",
    forbidden = "--mem, --mem-per-cpu and --mem-per-gpu",
    named = function(desc)
      local each = amounts.mib(desc.min_mem_per_node) or amounts.mib(desc.min_mem_per_cpu)
      return (each or amounts.per_gpu(desc.mem_per_tres)) ~= nil or nil
    end,
    value = function(job)
      local each = math.floor(job.size.mib / job.size.nodes)
      return each >= 1 and amounts.format_mib(each) or nil
    end,
  },
  text("nodelist", "req_nodes"),
  text("partition", "partition", current("partition")),
  text("qos", "qos", current("qos")),
  text("reservation", "reservation"),
  {
    key = "time",
    named = function(desc)
      return amounts.u32(desc.time_limit) ~= nil or nil
    end,
    value = function(job)
      local seconds = job.walltime_s or math.huge
      return seconds < math.huge and amounts.format_time(seconds) or nil
    end,
    unset = { time_limit = UNSET_32 },
  },
}
