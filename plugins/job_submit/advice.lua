-- requires: judge, remedy, state, wording
-- What stands below the numbers of a refusal: a command that would be accepted, or how to make room for one.
local _, lib = ...
local wrap, width, WIDTH = lib.wording.wrap, lib.wording.width, lib.wording.WIDTH

-- What lib.remedy finds; nil where it fails, so that the refusal itself is still told.
local function remedy_for(job, judge)
  local fine, command, without = pcall(lib.remedy, job, judge)
  if fine then
    return command, without
  end
  return nil
end

-- A command is to be copied: it is never wrapped.
local function tell_command(lines, opening, command)
  if width(opening) + 1 + width(command) > WIDTH then
    lines[#lines + 1] = opening
    opening = "   "
  end
  lines[#lines + 1] = opening .. " " .. command
end

-- GPU-hours that have run come back with the calendar alone. Whether there is anything to say about them.
local function tell_period(lines, findings)
  for _, finding in ipairs(findings) do
    local period = finding.key:match("^gpu_hours:(.+)$")
    if period then
      wrap(lines, "Nothing fits before the next " .. period .. " begins.", "  ")
      return true
    end
  end
  return false
end

-- For a request that fits once there is room.
local function tell_room(lines, job, state, findings)
  for _, finding in ipairs(findings) do
    if finding.retry_s then
      -- Slurm may have refused what the script let pass, and has not said so yet.
      local text = "What was just submitted is not seen in the queue yet. If Slurm refused it, try again in "
      wrap(lines, string.format("%s%.0f s; otherwise wait for a job to end.", text, finding.retry_s), "  ")
      return
    elseif finding.used then
      local id = lib.state.youngest_pending(state, finding.rule, job.uid, job.user)
      if id then
        wrap(lines, "Nothing fits now. Wait for a job to end, or make room with: ", "  ")
        lines[#lines + 1] = string.format("    scancel %.0f", id)
      else
        local whose = finding.rule.per == "group" and "squeue" or "squeue --me"
        wrap(lines, "Nothing fits now. Submit again when a job has ended; see: " .. whose, "  ")
      end
      return
    end
  end
end

return function(lines, job, state, findings)
  if job.record then
    return
  end
  local command, without = remedy_for(job, function(fields)
    return lib.judge.instead(job, state, fields)
  end)
  if command then
    local opening = "  Would be accepted" .. (without and " without " .. without or "")
    tell_command(lines, opening .. ", in place of your options:", command)
    return
  end
  if tell_period(lines, findings) then
    return
  end
  local function without_others(fields)
    return lib.judge.instead(job, state, fields, true)
  end
  local fine, alone = pcall(without_others, {})
  if not fine then
    return
  elseif lib.judge.objections(alone) == nil then
    tell_room(lines, job, state, findings)
    return
  end
  command, without = remedy_for(alone, without_others)
  if command then
    local opening = "  Nothing fits now. With no other job running or pending this would do"
    tell_command(lines, opening .. (without and ", without " .. without or "") .. ":", command)
  end
end
