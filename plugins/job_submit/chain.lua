-- Loads a site's own job_submit.lua, and calls it before or after the policy. The site's script has its own globals, so
-- its two functions do not replace those of slurm-gpu, but it shares `slurm` and the Lua library. The script is loaded
-- under the same conditions as in slurmctld.
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
  -- Keep the functions now: a file that the script runs may define them in _G, where slurm-gpu's functions replace them
  -- later.
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
  -- Omit Lua's list of the directories that were searched for a missing module.
  local problem = not fine and tostring(script):match("^[^\n]*"):gsub("not found:$", "not found") or nil
  return { path = path, script = fine and script or nil, problem = problem }
end

local sites = { before = loaded(policy.chain_before), after = loaded(policy.chain_after) }

-- Whether the site has a script of its own.
chain.present = sites.before ~= nil or sites.after ~= nil

-- Calls a function of the site's script for `place` ("before" or "after"), and returns its code; SUCCESS if there is
-- no script. Raises an error if the script could not be loaded.
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
