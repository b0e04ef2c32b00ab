-- Uses the libraries os, io, string, math and table, a file next to it, and a log of its own.
local here = debug.getinfo(1, "S").source:match("^@(.*/)")
local allowed = {}
for name in io.lines(here .. "partitions.txt") do
  table.insert(allowed, name)
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local log = assert(io.open("/dev/null", "a"))
  log:write(os.date("%F"), " ", string.rep("-", 3), " ", math.floor(os.time() / 60), "\n")
  log:close()
  print("a line for the standard output of slurmctld, which is /dev/null")
  io.write("and ", "another")
  io.stderr:write("and one for its standard error")
  for _, name in ipairs(allowed) do
    if job_desc.partition == name then
      return slurm.SUCCESS
    end
  end
  slurm.log_user("%s", "choose one of " .. table.concat(allowed, ", ") .. " (" .. (os.getenv("NO_SUCH") or "none") .. ")")
  return slurm.ERROR
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  os.remove("/dev/null")
  return slurm.SUCCESS
end

return slurm.SUCCESS
