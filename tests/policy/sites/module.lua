-- Requires a module in C, as Slurm's own example does. slurmctld loads this script if the module is installed.
local posix = require("posix")

function slurm_job_submit(job_desc, part_list, submit_uid)
  local user = posix.getpwuid(submit_uid)
  if user and user.gecos == "guest" then
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
