-- requires: calendar, reserved, wording
-- Writes the message about a job that Slurm may run in a reservation that ends before the job's time limit.
local _, lib = ...

-- Formats seconds in the notation of --time: "10:00:00", or "2-00:00:00" for a day or more.
local function time_of(seconds)
  local minutes = math.floor(seconds / 60)
  local days = math.floor(minutes / 1440)
  local rest = string.format("%02.0f:%02.0f:00", math.floor(minutes % 1440 / 60), minutes % 60)
  return days > 0 and string.format("%.0f-%s", days, rest) or rest
end

-- Appends the message to `lines`; `one` is the reservation that lib.reserved.ends_before found.
return function(lines, one, job)
  local limit = job.walltime_s < math.huge and "has a time limit of " .. time_of(job.walltime_s) or "has no time limit"
  local text = "Slurm may run this job in your reservation %s, which ends %s. The job %s, so Slurm may end it when the "
    .. "reservation ends."
  lib.wording.wrap(lines, string.format(text, one.name, lib.calendar.shown(one.ends_s), limit), "")
  local left_s = one.ends_s - job.now - 60 -- allows a minute to type the option
  if left_s >= 60 then
    lines[#lines + 1] = "  To finish in time: --time=" .. time_of(left_s)
  end
  local own = job.desc.exc_nodes
  own = type(own) == "string" and own ~= "" and own .. "," or ""
  local named = type(job.desc.reservation) == "string" and job.desc.reservation ~= ""
  local rest = named and ", without --reservation" or ""
  lines[#lines + 1] = "  To run elsewhere: --exclude=" .. own .. one.nodes .. rest
end
