-- Refuses more than 64 GiB per node or 8 GiB per CPU, and fills in the memory if none is given.
local function mib_and_unit(job_desc)
  local memory = job_desc.pn_min_memory
  if memory == slurm.NO_VAL64 then
    return nil
  elseif memory >= slurm.MEM_PER_CPU then
    return memory - slurm.MEM_PER_CPU, "CPU"
  end
  return memory, "node"
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local mib, unit = mib_and_unit(job_desc)
  if mib == nil then
    job_desc.pn_min_memory = slurm.MEM_PER_CPU + 2048
    mib, unit = mib_and_unit(job_desc)
  end
  local most = unit == "CPU" and 8192 or 65536
  if mib > most or (mib == 0 and unit == "node") then
    slurm.log_user("%d MiB per %s: at most %d", mib, unit, most)
    return slurm.ERROR
  end
  if job_desc.time_min ~= slurm.NO_VAL and job_desc.time_min > job_desc.time_limit then
    return 2051
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return mib_and_unit(job_desc) == nil and slurm.SUCCESS or slurm.ERROR
end

return slurm.SUCCESS
