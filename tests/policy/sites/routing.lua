-- Sends GPU jobs to the partition gpu, long ones to long, and gives jobs without --time an hour.
local function asks_for_gpus(job_desc)
  for _, field in ipairs({ "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }) do
    if string.find(job_desc[field] or "", "gpu") then
      return true
    end
  end
  return false
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  if job_desc.time_limit == slurm.NO_VAL then
    job_desc.time_limit = 60
  end
  if job_desc.partition == nil then
    local target = asks_for_gpus(job_desc) and "gpu" or "cpu"
    if job_desc.time_limit > slurm.time_str2mins("1-00:00:00") then
      target = "long"
    end
    if part_list[target] == nil then
      slurm.log_user("There is no partition %s.", target)
      return slurm.ESLURM_INVALID_PARTITION_NAME
    end
    job_desc.partition = target
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
