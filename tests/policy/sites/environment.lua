-- Reads and writes the environment, which only jobs with a script have, and the arguments.
function slurm_job_submit(job_desc, part_list, submit_uid)
  if job_desc.script == nil then
    if job_desc.environment["DISPLAY"] ~= nil then
      return slurm.ERROR
    end
    local program = job_desc.argc > 0 and job_desc.argv[0] or "nothing"
    job_desc.comment = program .. " in " .. job_desc.name
    return slurm.SUCCESS
  end
  if job_desc.environment.FORBIDDEN then
    slurm.log_user("FORBIDDEN=%s is set", job_desc.environment["FORBIDDEN"])
    return slurm.ERROR
  end
  job_desc.environment["SITE"] = "here"
  job_desc.comment = job_desc.environment.SITE .. ":" .. job_desc.work_dir .. ":" .. job_desc.std_in
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return job_desc.environment.SITE == nil and slurm.SUCCESS or slurm.ERROR
end

return slurm.SUCCESS
