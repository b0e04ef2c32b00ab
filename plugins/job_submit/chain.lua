-- A site's own job_submit.lua, called before or after ours. It has its own globals, so that its two functions do not
-- replace ours; `slurm` and the Lua library are those of slurmctld. It is accepted if slurmctld would accept it alone.
local policy = ...
local chain = {}

local function load_file(path)
  local own = setmetatable({}, { __index = _G })
  for name, value in pairs(_G) do
    own[name] = value
  end
  own._G = own
  local chunk, reason
  if setfenv then -- Lua 5.1
    chunk, reason = loadfile(path)
    chunk = chunk and setfenv(chunk, own)
  else
    chunk, reason = loadfile(path, nil, own)
  end
  if chunk == nil then
    error(reason, 0)
  end
  local code = tonumber((chunk())) or slurm.SUCCESS
  if code ~= slurm.SUCCESS then
    error(string.format("%s returned %g, not slurm.SUCCESS, when it was loaded", path, code), 0)
  end
  -- Kept now: a file that the script runs defines them in _G, where ours replace them.
  local functions = {}
  for _, name in ipairs({ "slurm_job_submit", "slurm_job_modify" }) do
    functions[name] = own[name]
    if type(own[name]) ~= "function" then
      error(path .. " has no " .. name, 0)
    end
  end
  return functions
end

local function loaded(path)
  if path == nil then
    return nil
  end
  local fine, script = pcall(load_file, path)
  -- Without the list of directories in which a module was not found.
  local problem = not fine and tostring(script):match("^[^\n]*"):gsub("not found:$", "not found") or nil
  return { path = path, script = fine and script or nil, problem = problem }
end

local sites = { before = loaded(policy.chain_before), after = loaded(policy.chain_after) }

-- Whether the site has a script.
chain.present = sites.before ~= nil or sites.after ~= nil

-- Calls a function of the site's script at "before" or "after", and returns its code; SUCCESS without a script. Raises
-- an error if it cannot be called.
function chain.ask(place, name, ...)
  local site = sites[place]
  if site == nil then
    return slurm.SUCCESS
  end
  if site.problem then
    error("the site's script cannot be loaded: " .. site.problem, 0)
  end
  local result = site.script[name](...)
  local code = tonumber(result)
  if code == nil and not site[name] then
    site[name] = true
    local returned = site.path .. ": " .. name .. " returned " .. tostring(result) .. " instead of a number"
    slurm.log_info("%s", "slurm-gpu: " .. returned .. "; such jobs are accepted, as by slurmctld (logged once)")
  end
  return code or slurm.SUCCESS
end

return chain
