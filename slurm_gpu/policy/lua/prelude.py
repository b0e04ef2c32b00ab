"""Define the Lua environment of a job_submit.lua outside slurmctld."""

# The prelude defines the globals of slurmctld, and functions that PolicyScript uses to pass jobs. As in
# slurmctld, log_user passes its text through string.format, and a metatable provides the fields of job_desc.
PRELUDE = r"""
local host = ...
host.setmetatable = setmetatable
local log, writes, now, read, uptime = host.log, host.writes, host.now, host.read, host.uptime
local function logger(level)
  return function(format, ...) log(level, string.format(format, ...)) end
end
slurm = {
  log_user = function(format, ...) host.say(string.format(format, ...)) end,
  user_msg = host.say,
  log_error = logger("error"), log_info = logger("info"),
  log_verbose = logger("verbose"), log_debug = logger("debug"),
  error = function(text) log("error", text) end,
  log = function(level, text) log(level == 0 and "info" or level == 1 and "verbose" or "debug", text) end,
  time_str2mins = host.minutes,
  get_qos_priority = function() return 0 end,
  CLUSTER_NAME = host.cluster,
  ESLURM_ACCOUNTING_POLICY = 2050,
  jobs = {}, reservations = {},
}
for level = 2, 4 do slurm["log_debug" .. level] = logger("debug") end
for name, value in pairs(host.constants) do slurm[name] = value end
-- A site's own script may use any of Slurm's many error codes.
setmetatable(slurm, {
  __index = function(_, name)
    local is_code = type(name) == "string" and name:find("^E?SLURM_")
    return is_code and (host.codes == nil or host.codes:find(name, 1, true)) and 2000 or nil
  end,
})

-- slurmctld stores either the memory per node or the memory per CPU, in one number.
local cpu_fields = { def_mem_per_node = "def_mem_per_cpu", max_mem_per_node = "max_mem_per_cpu" }

-- Returns a metatable that makes a table of fields return unset fields and accept aliases.
function host.complete(unset, aliases)
  return {
    __index = function(row, name)
      local field = aliases[name] or name
      local value = rawget(row, field)
      if value == nil and rawget(row, cpu_fields[field]) == nil then return unset[field] end
      return value
    end,
  }
end

-- Returns job_desc with these fields set.
function host.describe(given, unset)
  local environment = given.environment or {}
  given.environment = nil
  return setmetatable({}, {
    __index = function(_, name)
      local field = host.aliases[name] or name
      local value = given[field]
      if field == "environment" then
        return environment
      elseif field == "pn_min_memory" and value == nil then
        local per_cpu = given.min_mem_per_cpu
        value = given.min_mem_per_node or per_cpu and per_cpu + slurm.MEM_PER_CPU
      end
      if value == nil then return unset[field] end
      return value
    end,
    __newindex = function(_, name, value)
      local field = host.aliases[name] or name
      local kind, is = host.writable[field], type(value)
      if kind == nil then
        log("error", "_set_job_field: unrecognized field: " .. tostring(name))
        return
      elseif is ~= kind and is ~= "number" and not (is == "string" and tonumber(value)) then
        error("bad argument to job_desc." .. name .. " (" .. kind .. " expected, got " .. is .. ")", 2)
      elseif field:find("_mem") then -- in slurmctld, these three fields are one number
        given.min_mem_per_node, given.min_mem_per_cpu, given.pn_min_memory = nil, nil, nil
      end
      if field == "pn_min_memory" and tonumber(value) < slurm.NO_VAL64 then
        field = tonumber(value) < slurm.MEM_PER_CPU and "min_mem_per_node" or "min_mem_per_cpu"
        given[field] = tonumber(value) % slurm.MEM_PER_CPU
      elseif kind == "number" then
        given[field] = tonumber(value)
      else
        given[field] = value ~= "" and tostring(value) or nil
      end
    end,
  })
end

local function not_here(what)
  local level, caller = 3, debug.getinfo(3, "S")
  while caller and caller.source:sub(1, 1) ~= "@" do
    level = level + 1
    caller = debug.getinfo(level, "S")
  end
  host.not_here((caller and caller.source:sub(2) .. ": " or "") .. what)
  return true
end

-- C modules, and modules in the working directory, are not loaded into this process.
local version = _VERSION:match("[%d.]+$")
local searchers = package.searchers or package.loaders
searchers[3], searchers[4] = nil, nil
package.loadlib, package.path = nil, ""
for _, root in ipairs({ "/usr/local/share/lua/", "/usr/share/lua/" }) do
  package.path = package.path .. root .. version .. "/?.lua;" .. root .. version .. "/?/init.lua;"
end
local load_module = require
local absent = {}
setmetatable(absent, { __index = function() return absent end, __call = function() return absent end })
function require(name)
  local fine, module = pcall(load_module, name)
  if not fine and tostring(module):find("module '" .. tostring(name) .. "' not found", 1, true) then
    not_here("the Lua module " .. name .. " cannot be loaded here; slurmctld needs it")
    return absent
  end
  return fine and module or error(module, 0)
end
if read then
  local open = io.open
  io.open = function(path, mode)
    local text = read(path)
    if text == nil then return open(path, mode) end
    if text == false then return nil end
    local file = io.tmpfile()
    file:write(text)
    file:seek("set", 0)
    return file
  end
end
if not writes then
  local open = io.open
  local function nothing() return true end
  local sink = {
    write = function(self) return self end,
    read = function(_, what) return tostring(what):find("a") and "" or nil end,
    lines = function() return function() end end,
    seek = function() return 0 end,
    flush = nothing, setvbuf = nothing, close = nothing,
  }
  io.open = function(path, mode)
    if mode and mode:find("[wa+]") then return sink end
    return open(path, mode)
  end
  os.rename, os.remove, print, io.write = nothing, nothing, nothing, nothing
  io.stdout, io.stderr = sink, sink
  io.popen = function() return not_here("io.popen runs no command here") and sink end
  os.execute = function() return not_here("os.execute runs no command here") and (setfenv and 0 or true) end
  os.exit = function() error("os.exit stops slurmctld", 0) end
end
if now then
  local date, time = os.date, os.time
  os.time = function(of) return of and time(of) or now() end
  os.date = function(format, at) return date(format, at or now()) end
  local open = io.open
  io.open = function(path, mode)
    local text
    if path == "/proc/uptime" then
      text = function() return string.format("%.2f 0.00\n", uptime()) end
    elseif path == "/proc/sys/kernel/random/boot_id" then
      text = function() return "boot" end
    else
      return open(path, mode)
    end
    return uptime and {
      seek = function() return 0 end,
      setvbuf = function() return true end,
      read = function(_, what) return type(what) == "number" and text():sub(1, what) or text() end,
      close = function() return true end,
    }
  end
end
"""
