-- Keeps globals, defines its functions through _G, checks partitions, and has no final return.
calls, seen = 0, setmetatable({}, { __index = function() return 0 end })
local G = _G

function G.slurm_job_submit(job_desc, part_list, submit_uid)
  calls = calls + 1
  seen[job_desc.user_id] = seen[job_desc.user_id] + 1
  local best
  for name, part in pairs(part_list) do
    if part.state_up == 3 and part.max_nodes >= 1 and part.max_cpus_per_node > 0 and part.total_nodes >= 0 then
      if best == nil or part.priority_tier > part_list[best].priority_tier or name < best then
        best = name
      end
    end
    if part.allow_qos == "none" or part.def_mem_per_cpu == 0 then
      return slurm.ERROR
    end
  end
  job_desc.comment = best .. " " .. string.format("%d %d", calls, seen[job_desc.user_id])
  job_desc.no_such_field = "logged as an error, and ignored"
  return job_desc.no_such_field
end

rawset(G, "slurm_job_modify", function() return true end)
