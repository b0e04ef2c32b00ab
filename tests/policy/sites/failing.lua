-- Compares nil with a number, since min_mem_per_node is nil without --mem. slurmctld accepts such jobs up to 25.11,
-- and refuses them from 26.05 on.
function slurm_job_submit(job_desc, part_list, submit_uid)
  if job_desc.min_mem_per_node > 65536 then
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
