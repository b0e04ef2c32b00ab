-- Reads and writes `gres`, the name of tres_per_node before Slurm 18.08, and other old names.
function slurm_job_submit(job_desc, part_list, submit_uid)
  if job_desc.gres == nil then
    return slurm.SUCCESS
  end
  local mark = job_desc.gres:match("^gres([:/])gpu")
  if job_desc.gres:find("v100") then
    job_desc.gres = "gres" .. mark .. "gpu:a100:1"
  end
  if job_desc.oversubscribe == 0 then
    job_desc.gres = ""
  end
  job_desc.comment = "mark " .. mark .. " tasks " .. (job_desc.ntasks_per_gpu == 65534 and "unset" or "set")
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  if job_rec.gres ~= nil and job_desc.gres ~= nil then
    return slurm.ESLURM_ACCESS_DENIED
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
