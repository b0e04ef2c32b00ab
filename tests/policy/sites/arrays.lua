-- Counts the tasks of arrays while the partition gpu is up, and increases the nice value of large arrays.
function slurm_job_submit(job_desc, part_list, submit_uid)
  if not job_desc.array_inx then
    return slurm.SUCCESS
  end
  local n_tasks = 0
  for first, last in string.gmatch(job_desc.array_inx:gsub("%%.*", ""), "(%d+)%-?(%d*)") do
    n_tasks = n_tasks + (tonumber(last) or tonumber(first)) - tonumber(first) + 1
  end
  if n_tasks > 100 or part_list.gpu.state_up == 0 then
    slurm.log_user(string.format("%d array tasks", n_tasks))
    return slurm.FAILURE
  elseif n_tasks > 10 then
    local nice = job_desc.nice == slurm.NO_VAL and 0 or job_desc.nice - slurm.NICE_OFFSET
    job_desc.nice = slurm.NICE_OFFSET + nice + 100
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  if (job_rec.array_task_cnt or 1) > 100 then
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
