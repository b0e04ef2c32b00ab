-- Shows fields of the default partition; slurmctld keeps memory per CPU and per node in one number.
local NAMES = { "def_mem_per_cpu", "def_mem_per_node", "max_mem_per_cpu", "max_mem_per_node" }
for name in string.gmatch("min_nodes max_nodes max_share state_up", "%S+") do
  table.insert(NAMES, name)
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local found = {}
  for _, part in pairs(part_list) do
    for index, name in ipairs(part.flag_default == 1 and NAMES or {}) do
      found[index] = part[name] and string.format("%d", part[name]) or "nil"
    end
  end
  job_desc.comment = table.concat(found, " ")
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return #job_rec.argv == 0 and slurm.SUCCESS or slurm.ERROR
end

return slurm.SUCCESS
