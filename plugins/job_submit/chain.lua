-- A site's own job_submit.lua, called before or after ours. It has its own globals, so that its two functions do not
-- replace ours; `slurm` and the Lua library are those of slurmctld.
local policy = ...
local chain = {}

local function load_file(path)
  local own = setmetatable({}, { __index = _G })
  local chunk, reason
  if setfenv then -- Lua 5.1
    chunk, reason = loadfile(path)
    chunk = chunk and setfenv(chunk, own)
  else
    chunk, reason = loadfile(path, "t", own)
  end
  if chunk == nil then
    error(reason, 0)
  end
  local code = chunk()
  if code ~= slurm.SUCCESS then
    error(path .. " must end with `return slurm.SUCCESS`", 0)
  end
  return own
end

local function loaded(path)
  if path == nil then
    return nil
  end
  local fine, script = pcall(load_file, path)
  return { path = path, script = fine and script or nil, problem = not fine and tostring(script) or nil }
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
  local ask = rawget(site.script, name)
  if ask == nil then
    error(site.path .. " has no " .. name, 0)
  end
  local code = ask(...)
  if type(code) ~= "number" then
    error(site.path .. ": " .. name .. " returned no number", 0)
  end
  return code
end

return chain
