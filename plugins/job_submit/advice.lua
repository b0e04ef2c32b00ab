-- requires: amounts, calendar, judge, measures, remedy, state, wording
-- Writes the last lines of a refusal: a command that would be accepted, or a way to make the job fit.
local _, lib = ...
local wrap, width, WIDTH = lib.wording.wrap, lib.wording.width, lib.wording.WIDTH

-- Returns the suggestion of lib.remedy; nil if it raises an error, since the refusal must still be shown.
local function remedy_for(job, judge)
  local fine, found = pcall(lib.remedy, job, judge)
  return fine and found or nil
end

-- Commands are never wrapped, because users copy them.
local function add_command(lines, opening, command)
  if width(opening) + 1 + width(command) > WIDTH then
    lines[#lines + 1] = opening
    opening = "   "
  end
  lines[#lines + 1] = opening .. " " .. command
end

-- Adds the suggested command. If the suggested job would borrow GPUs, also adds a command that borrows no GPUs, or a
-- note.
local function add_remedy(lines, opening, found)
  local without = #found.without > 0 and " without " .. table.concat(found.without, " and ") or ""
  add_command(lines, opening .. without .. ":", found.command)
  if found.own then
    add_remedy(lines, "  This job would borrow GPUs. To borrow none, try", found.own)
  elseif found.loan and found.loan.own_mgpu then
    lines[#lines + 1] = "  This job would borrow GPUs."
  end
end

-- Adds a line that states when more hours become available if a limit on the hours of a period refused the job.
-- Returns whether it added the line.
local function add_period(lines, findings)
  for _, finding in ipairs(findings) do
    local _, period = lib.measures.parts_of(finding.hours and finding.key or "")
    if period and finding.used then
      local days, next = period:match("^(%d+)d$"), "the next " .. period .. " begins"
      if days then
        next = "earlier " .. finding.hours .. " are " .. days .. " days old"
      end
      local ended = finding.rule.hard and "jobs end before their time limit, or until " or ""
      wrap(lines, "No smaller request fits the limits now. Wait until " .. ended .. next .. ".", "  ")
      return true
    end
  end
  return false
end

-- Returns which event of other jobs frees capacity under the limit of a finding: "start" or "end".
local function event_of(finding)
  return finding.sum and finding.sum:find("^pend_") and "start" or "end"
end

-- Returns a sentence stating that no smaller job would be accepted. Returns "" if the rule has conditions (`jobs:`),
-- because a job that does not meet them could be accepted.
local function nothing_smaller(finding)
  return finding.rule.jobs and "" or "No smaller request fits the limits now. "
end

-- Adds the command that lists the jobs counted together with a job.
local function add_queue(lines, finding, job)
  local rule = finding.rule
  local text = nothing_smaller(finding) .. "Wait for a job to " .. event_of(finding)
  if rule.per == "account" and job.account:find("^[%w_.-]+$") then
    wrap(lines, text .. ":", "  ")
    lines[#lines + 1] = "    squeue --account=" .. job.account
  else
    wrap(lines, text .. "; see: " .. (rule.per == "user" and "squeue --me" or "squeue"), "  ")
  end
end

-- Adds advice on a request that will fit once other jobs end.
local function add_room(lines, job, state, findings)
  for _, finding in ipairs(findings) do
    if finding.retry_s then
      -- Slurm may have refused jobs that the script accepted; the queue does not show such refusals yet.
      local text = "Jobs that were just submitted count before they appear in the queue. If Slurm refused them, try "
      local rest = string.format("again in %.0f s; otherwise wait for a job to %s.", finding.retry_s, event_of(finding))
      wrap(lines, text .. rest, "  ")
      return
    elseif finding.used then
      local id = lib.state.youngest_pending(state, finding.rule, finding.sum, job)
      if id then
        local wait = "Wait for a job to " .. event_of(finding) .. ", or cancel one:"
        wrap(lines, nothing_smaller(finding) .. wait, "  ")
        lines[#lines + 1] = string.format("    scancel %.0f", id)
      else
        add_queue(lines, finding, job)
      end
      return
    end
  end
end

-- Adds a smaller request, or a way to make the job fit.
local function add_smaller(lines, job, state, findings)
  local found = remedy_for(job, function(fields)
    return lib.judge.instead(job, state, fields)
  end)
  if not found and job.is_over_limit then
    local function within_limits(fields)
      return lib.judge.instead(job, state, fields, false, true)
    end
    local fine, unchanged = pcall(within_limits, {})
    found = fine and remedy_for(unchanged, within_limits)
  end
  if found then
    add_remedy(lines, "  Try", found)
    return
  end
  if add_period(lines, findings) then
    return
  end
  local function without_others(fields)
    return lib.judge.instead(job, state, fields, true, job.is_over_limit)
  end
  local fine, alone = pcall(without_others, {})
  if not fine then
    return
  elseif lib.judge.objections(alone) == nil then
    for _, change in ipairs(job.changes or {}) do
      findings[#findings + 1] = change.finding
    end
    add_room(lines, job, state, findings)
    return
  end
  found = remedy_for(alone, without_others)
  if found then
    add_remedy(lines, "  No smaller request fits now. When other jobs have ended, try", found)
  end
end

-- Appends the hours of each rule with `at: run` among the findings.
local function add_hours(whens, findings)
  for _, finding in pairs(findings or {}) do
    local when = finding.rule.when
    if when and when.run then
      whens[#whens + 1] = when
    end
  end
end

-- Returns the first begin time after these hours at which the job would be accepted; nil if none is found.
local function later_begin(job, state, whens)
  while true do
    local n, begin_s = #whens, lib.calendar.free_from(whens, job.begin_s, job.walltime_s or math.huge)
    local wrong = begin_s and lib.judge.objections(lib.judge.instead(job, state, { begin_time = begin_s }))
    add_hours(whens, wrong)
    if not wrong or #whens == n then
      return not wrong and begin_s or nil
    end
  end
end

-- Suggests a begin time and a time limit that avoid the hours of the `at: run` rules that refused the job.
local function add_other_hours(lines, job, state, findings)
  local calendar, whens, first_s = lib.calendar, {}, math.huge
  add_hours(whens, findings)
  if #whens == 0 then
    return
  end
  for _, when in ipairs(whens) do
    first_s = math.min(first_s, (calendar.overlap(when, job.begin_s, math.huge)))
  end
  local begin_s = later_begin(job, state, whens)
  if begin_s then
    add_command(lines, "  To run at other hours:", "--begin=" .. calendar.shown(begin_s):gsub(" ", "T"))
  end
  local minutes = math.floor((first_s - math.max(job.begin_s, job.now + 60)) / 60) -- allows a minute to type the option
  if minutes >= 1 and lib.judge.objections(lib.judge.instead(job, state, { time_limit = minutes })) == nil then
    add_command(lines, "  To end before these hours:", "--time=" .. lib.amounts.format_time(minutes * 60))
  end
end

return function(lines, job, state, findings)
  if job.record == nil then
    add_smaller(lines, job, state, findings)
    pcall(add_other_hours, lines, job, state, findings) -- an error here must not suppress the refusal
  end
end
