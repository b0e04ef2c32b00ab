-- Parses and formats Slurm's amounts: numbers that may be unset, GPUs in TRES strings, tasks in array expressions. All
-- functions are pure, and work in Lua 5.1 to 5.4.
local policy = ...
local amounts = {}

-- Slurm represents an unset number by the second largest value of its integer type, and "no limit" by the largest.
local UNSET_32, UNLIMITED_32, UNSET_16 = 4294967294, 4294967295, 65534

-- Returns a 32-bit field as a number; nil if it is unset, math.huge if it is unlimited.
function amounts.u32(value)
  if type(value) ~= "number" or value == UNSET_32 or value > UNLIMITED_32 then
    return nil
  end
  return value == UNLIMITED_32 and math.huge or value + 0.0 -- from Lua 5.3 on, integers wrap around
end

-- Returns a 16-bit field as a number; nil if it is unset or unlimited.
function amounts.u16(value)
  if type(value) ~= "number" or value >= UNSET_16 then
    return nil
  end
  return value + 0.0
end

local SUFFIX = { [""] = 1, k = 1024, m = 1024 ^ 2, g = 1024 ^ 3 }

-- Parses a TRES string into a list of {name = gpu|shard|mps, type = a100|nil, count = n}.
-- Accepts gres:gpu:2 (Slurm 23.02 and earlier), gres/gpu:2, gres/gpu:a100=2, gpu:a100 and gpu.
local function parse_tres(text)
  local items = {}
  for item in string.gmatch(text, "[^,]+") do
    item = item:gsub("%s+", ""):gsub("%b()", ""):gsub("^gres[:/]", "")
    local name, rest = item:match("^(%a+)(.*)$")
    if (name == "gpu" or name == "shard" or name == "mps") and (rest == "" or rest:find("^[:=]")) then
      local kind, digits, suffix = rest:match("^(.-)[:=](%d+)([kmgKMG]?)$")
      local unreadable = false
      if digits == nil then
        kind, digits, suffix = rest, "1", ""
        -- Slurm also accepts "+8" and "1kb" as counts; a MIG profile such as "3g.20gb" is a type.
        local name_of_type = rest:sub(2)
        unreadable = rest ~= ""
          and (name_of_type:find("[^%w_.-]") or name_of_type:find("^%-") or name_of_type:find("^%d%w*$")) ~= nil
      end
      kind = kind:gsub("^[:=]", "")
      items[#items + 1] = {
        unreadable = unreadable,
        name = name,
        type = kind ~= "" and kind or nil,
        count = tonumber(digits) * SUFFIX[string.lower(suffix)] + 0.0, -- from Lua 5.3 on, integers wrap around
      }
    end
  end
  return items
end

-- Results are cached, because jobs repeat the same requests. Callers must not change a result.
local MOST_PARSED = 1000
local parsed, n_parsed = {}, 0

-- Maximum lengths of texts in bytes; parsing longer texts would delay slurmctld and fill its memory. An array
-- expression may be as long as one argument of a command line.
local LONGEST_TRES, LONGEST_ARRAY = 1000, 131072
local TOO_LONG = { { unreadable = true, name = "gpu", count = 0.0 } }

function amounts.parse_tres(text)
  if #text > LONGEST_TRES then
    return TOO_LONG
  end
  local items = parsed[text]
  if items == nil then
    if n_parsed >= MOST_PARSED then
      parsed, n_parsed = {}, 0
    end
    items = parse_tres(text)
    parsed[text], n_parsed = items, n_parsed + 1
  end
  return items
end

-- Converts counts of GPUs, shards and MPS to thousandths of a GPU. A GPU has 100 MPS unless the
-- cluster's nodes define another number.
local function mgpu(gpus, shards, mps)
  -- Multiply floats: from Lua 5.3 on, math.floor returns integers, and products of integers wrap around.
  local sum = gpus * 1000.0 + math.floor(mps * 1000 / (policy.mps_per_gpu or 100) + 0.5)
  if policy.shards_per_gpu then
    sum = sum + math.floor(shards * 1000 / policy.shards_per_gpu + 0.5)
  end
  return sum
end

-- Returns whether an item counts. If `only` is nil, all items count. Otherwise, `only` is {type = a100, untyped =
-- whether items without a type may be of that type}.
local function counts(item, only)
  if only == nil then
    return true
  elseif item.type == nil then
    return only.untyped
  end
  return string.lower(item.type) == only.type
end

-- Returns the count of an item multiplied by `times`, but at least `least` unless the count is 0.
local function multiplied(item, times, least)
  return item.count > 0 and math.max(item.count * times, least or 0) or 0
end

-- Returns the sum of a request such as "gres:gpu:a100:2,gres:shard:4", multiplied by `times`, in thousandths of a GPU.
function amounts.requested_mgpu(text, times, only, least)
  local sum = { gpu = 0, shard = 0, mps = 0 }
  for _, item in ipairs(amounts.parse_tres(text)) do
    if counts(item, only) then
      sum[item.name] = sum[item.name] + multiplied(item, times, least)
    end
  end
  return mgpu(sum.gpu, sum.shard, sum.mps)
end

-- Returns the GPUs, in thousandths, in a total that Slurm printed ("cpu=4,gres/gpu=2,gres/gpu:a100=2"); nil if the
-- total lists no GPUs. The untyped count includes the typed counts.
function amounts.total_mgpu(text, only)
  local plain, typed, wanted, any = {}, {}, {}, false
  for _, item in ipairs(amounts.parse_tres(text)) do
    local sums = item.type and typed or plain
    sums[item.name] = (sums[item.name] or 0) + item.count
    if item.type and counts(item, only) then
      wanted[item.name] = (wanted[item.name] or 0) + item.count
    end
    any = true
  end
  if not any then
    return nil
  end
  local function count(name)
    local untyped = math.max((plain[name] or 0) - (typed[name] or 0), 0)
    return (wanted[name] or 0) + ((only == nil or only.untyped) and untyped or 0)
  end
  return mgpu(count("gpu"), count("shard"), count("mps"))
end

local TO_MIB = { [""] = 1, K = 1 / 1024, M = 1, G = 1024, T = 1024 ^ 2, P = 1024 ^ 3 }

-- Returns the CPUs and MiB in a total that Slurm printed; nil for an amount that the total does not list.
function amounts.total_host(text)
  local cpus = text:match("^cpu=(%d+)") or text:match(",cpu=(%d+)")
  local memory, unit = text:match("mem=([%d.]+)([KMGTP]?)")
  return tonumber(cpus), tonumber(memory) and tonumber(memory) * TO_MIB[unit]
end

-- Returns the MiB in a field of job_desc or of a record; nil if the field is unset (in Slurm, a value near 2^64).
function amounts.mib(value)
  return type(value) == "number" and value < 1e12 and value + 0.0 or nil
end

-- Returns the amount per GPU in "gres:gpu:8" or "gpu:16384"; nil if the text has no amount.
function amounts.per_gpu(text)
  local most
  for _, item in ipairs(type(text) == "string" and amounts.parse_tres(text) or {}) do
    if item.name == "gpu" and (most == nil or item.count > most) then
      most = item.count
    end
  end
  return most
end

-- Returns the smallest number of nodes that satisfies a request.
function amounts.least_nodes(request)
  local nodes = math.max(request.nodes or 1, 1)
  if request.tasks and request.tasks_per_node and request.tasks_per_node > 0 then
    nodes = math.max(nodes, math.ceil(request.tasks / request.tasks_per_node))
  end
  return nodes
end

-- Returns the maximum number of nodes that a request sets; nil if it sets no maximum.
function amounts.most_nodes(request)
  local most = request.most_nodes or 0 -- 0 in records
  return most > 0 and math.min(most, UNLIMITED_32) or nil
end

-- Returns the number of nodes for which a request is counted. For a range such as 1-3, the maximum counts, because
-- Slurm allocates as many nodes as it can. Without a maximum, the number of nodes that the tasks need counts
-- (nodes.lua).
function amounts.counted_nodes(request)
  local most = amounts.most_nodes(request) or request.needed_nodes or 1
  return math.max(amounts.least_nodes(request), most) + 0.0
end

-- Returns the number of CPUs of one task; all CPUs of a task are on one node.
function amounts.cpus_of_task(request)
  return math.max(request.cpus_per_task or 1, 1)
end

-- Returns the number of tasks of a request. By default, Slurm starts one task on each node. From 24.11 on, Slurm also
-- derives the tasks from the CPUs if the number of GPUs depends on the tasks.
function amounts.counted_tasks(request)
  if request.tasks then
    return math.max(request.tasks, 1)
  end
  local tasks = amounts.counted_nodes(request) * math.max(request.tasks_per_node or 1, 1)
  if request.per_task or request.tasks_per_gpu then
    tasks = math.max(tasks, math.ceil((request.cpus or 0) / amounts.cpus_of_task(request)))
  end
  return tasks
end

-- Returns the typed GPUs, in thousandths, of a request whose forms name different types. For each type, Slurm
-- allocates the largest number that any form requests.
local function typed_mgpu(request, times, only)
  local most, sum = {}, 0
  for _, pair in ipairs(times) do
    local here = {}
    for _, item in ipairs(amounts.parse_tres(request[pair[1]] or "")) do
      if item.name == "gpu" and item.type and counts(item, only) then
        local kind = string.lower(item.type)
        here[kind] = (here[kind] or 0) + multiplied(item, pair[2], pair[4])
      end
    end
    for kind, count in pairs(here) do
      sum = sum + math.max(count - (most[kind] or 0), 0)
      most[kind] = math.max(most[kind] or 0, count)
    end
  end
  return sum * 1000
end

-- Returns the GPUs, in thousandths, for which a request is counted: on the maximum number of nodes or, without a
-- maximum, on the fewest nodes that satisfy the request. The TRES strings (per_job, per_node, per_socket, per_task) and
-- numbers (nodes, most_nodes, needed_nodes, tasks, tasks_per_node, tasks_per_gpu, sockets) of the request may be nil.
-- The second result is the form of the request that determines the count ("per_job" …), or nil. The third result is the
-- maximum number of GPUs on one node, if the request limits it. `only` restricts the count to one GPU type.
function amounts.counted_mgpu(request, only)
  local nodes = amounts.counted_nodes(request)
  local tasks = amounts.counted_tasks(request)
  local times = { -- form, factor for all nodes, factor for one node, minimum
    { "per_job", 1, nil, nodes }, -- from 24.11 on, each node gets at least one GPU
    { "per_node", nodes, 1 },
    { "per_task", tasks, (request.tasks_per_node or 0) > 0 and request.tasks_per_node },
    { "per_socket", nodes * math.max(request.sockets or 1, 1), math.max(request.sockets or 1, 1) },
  }
  local most, form, named, forms, on_node = 0, nil, false, 0, nil
  for _, pair in ipairs(times) do
    local text = request[pair[1]]
    if text and text ~= "" then
      forms = forms + 1
      named = named or (only ~= nil and #amounts.parse_tres(text) > 0)
      local sum = amounts.requested_mgpu(text, pair[2], only, pair[4])
      if sum > most then
        most, form = sum, pair[1]
      end
      if pair[3] then
        on_node = math.min(on_node or math.huge, amounts.requested_mgpu(text, pair[3], only))
      end
    end
  end
  if forms > 1 and most > 0 then
    local added = typed_mgpu(request, times, only)
    if added > most then
      most, on_node = added, nil
    end
  end
  local untyped = only == nil or (only.untyped and not named)
  if form == nil and untyped and request.tasks_per_gpu and request.tasks_per_gpu > 0 then
    most, form = math.ceil(tasks / request.tasks_per_gpu) * 1000.0, "tasks_per_gpu"
  end
  return most, form, on_node
end

-- Parses "0-9:3%2" into a list of {first, last, step} and the throttle. Returns nil for other spellings that Slurm
-- accepts, such as "+0-15".
local function parse_array(text)
  local body, throttle
  if #text <= LONGEST_ARRAY then
    body, throttle = text:gsub("[%[%]%s]", ""):match("^([^%%]*)(%%?%d*)$")
  end
  if body == nil or body == "" then
    return nil
  end
  local ranges = {}
  for part in string.gmatch(body, "[^,]+") do
    local first, last, step = part:match("^%d+$"), nil, nil
    if first == nil then
      first, last, step = part:match("^(%d+)%-(%d+):?(%d*)$")
      step = step ~= "" and step or nil
    end
    if first == nil or step == nil and part:find(":", 1, true) then
      return nil
    end
    first, last, step = tonumber(first), tonumber(last or first), tonumber(step or 1)
    if last < first or step < 1 then
      return nil
    end
    ranges[#ranges + 1] = { first, last, step }
  end
  return ranges, throttle
end

local function range_size(range)
  return math.floor((range[2] - range[1]) / range[3]) + 1.0
end

-- Returns the first TRES string of a request that cannot be parsed; nil if all can be parsed.
function amounts.unreadable(request)
  local forms = { "per_job", "per_node", "per_task", "per_socket", "cpus_per_tres", "mem_per_tres" }
  for _, form in ipairs(forms) do
    for _, item in ipairs(amounts.parse_tres(request[form] or "")) do
      if item.unreadable then
        return request[form]
      end
    end
  end
  return nil
end

-- Returns the number of tasks of an array expression; nil if it cannot be parsed. A repeated index counts once.
function amounts.array_tasks(text)
  local ranges = parse_array(text)
  if ranges == nil then
    return nil
  end
  local sum = 0
  for _, range in ipairs(ranges) do
    sum = sum + range_size(range) -- a float, because sums of integers could wrap around
  end
  if #ranges == 1 or sum > 10000 then
    return sum -- counting the indexes of more tasks one by one would delay slurmctld
  end
  local seen, distinct = {}, 0
  for _, range in ipairs(ranges) do
    for index = range[1], range[2], range[3] do
      if not seen[index] then
        seen[index], distinct = true, distinct + 1
      end
    end
  end
  return distinct
end

-- Returns an expression for the first `count` tasks of an array expression. If that expression is too long for a line,
-- returns an expression for the same number of tasks from index 0 on.
function amounts.first_tasks(text, count)
  local ranges, throttle = parse_array(text)
  if ranges == nil then
    return nil
  end
  local parts, left = {}, count
  for _, range in ipairs(ranges) do
    if left <= 0 then
      break
    end
    local size = math.min(range_size(range), left)
    local last = range[1] + (size - 1) * range[3]
    local part = string.format("%.0f", range[1])
    if size > 1 then
      part = part .. string.format("-%.0f", last) .. (range[3] > 1 and string.format(":%.0f", range[3]) or "")
    end
    parts[#parts + 1] = part
    left = left - size
  end
  local expression = table.concat(parts, ",") .. throttle
  return #expression <= 60 and expression or string.format("0-%.0f", count - 1) .. throttle
end

-- Formats thousandths of a GPU for users: 2000 → "2", 250 → "0.25".
function amounts.format_mgpu(value)
  return (string.format("%.3f", value / 1000):gsub("0+$", ""):gsub("%.$", ""))
end

-- Formats MiB in the notation of sbatch: "64G", "1500M".
function amounts.format_mib(value)
  if value == math.huge then
    return "UNLIMITED"
  elseif value >= 1024 and value % 1024 == 0 then
    return string.format("%.0fG", value / 1024)
  end
  return string.format("%.0fM", value)
end

-- Formats a number for users, with up to three decimals as needed: 8, 0.5.
function amounts.format_number(value)
  if value == math.huge then
    return "UNLIMITED"
  end
  return (string.format("%.3f", value):gsub("0+$", ""):gsub("%.$", ""))
end

-- Formats seconds in the notation of sbatch: "7-00:00:00", "04:00:00".
function amounts.format_time(seconds)
  if seconds == math.huge then
    return "UNLIMITED"
  end
  local days = math.floor(seconds / 86400)
  local rest = seconds % 86400
  local clock = string.format(
    "%02.0f:%02.0f:%02.0f",
    math.floor(rest / 3600),
    math.floor(rest % 3600 / 60),
    math.floor(rest % 60)
  )
  return days > 0 and string.format("%.0f-%s", days, clock) or clock
end

return amounts
