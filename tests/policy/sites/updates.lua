-- Lets owners only lower their time limit, and counts the other jobs of the user.
function slurm_job_submit(job_desc, part_list, submit_uid)
  local others = 0
  for _, job in pairs(slurm.jobs) do
    if job.user_name == job_desc.user_name and job.job_state == 0 and job.priority > 0 and job.restart_cnt == 0 then
      others = others + 1
    end
  end
  job_desc.comment = others .. " waiting"
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  if modify_uid == 0 then
    return slurm.SUCCESS
  end
  if job_desc.time_limit ~= slurm.NO_VAL and job_desc.time_limit > job_rec.time_limit then
    slurm.log_user("%s: only operators extend %s", job_rec.name, job_rec.user_name)
    return slurm.ESLURM_ACCESS_DENIED
  end
  if job_rec.nice > slurm.NICE_OFFSET or job_desc.min_cpus ~= slurm.NO_VAL or job_rec.min_mem_per_node then
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
