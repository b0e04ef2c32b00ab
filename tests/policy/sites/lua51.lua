-- Runs only in Lua 5.1, with which Debian links slurmctld.
local settings = setmetatable({}, { __index = _G })
setfenv(function() end, settings)

function slurm_job_submit(...)
  local job_desc = unpack({ ... }, 1, 1)
  job_desc.comment = table.getn({ ... }) .. " arguments"
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
