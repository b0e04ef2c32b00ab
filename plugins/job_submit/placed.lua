-- requires: wording
-- Writes the message about the zones of a distributed job: the constraint to use (mode `advise`), or the reason why
-- zones cannot be added to the job's own constraint.
local _, lib = ...

local UNCHANGED = {
  constraint = "zones cannot be added to its --constraint. Write it without [ ], *, ( ) and commas, and use "
    .. "either & or |, not both",
}

-- Appends the message to `lines`.
return function(lines, place)
  if place.why then
    local reason = UNCHANGED[place.why]
    if reason and place.mode ~= "observe" then
      lib.wording.wrap(lines, "This job may span several zones: " .. reason .. ".", "")
    end
  elseif place.mode == "advise" then
    local names = {}
    for index, zone in ipairs(place.zones) do
      names[index] = zone.name
    end
    lib.wording.wrap(lines, "This job needs several nodes. To keep them in one zone, use", "")
    lib.wording.wrap(lines, "--constraint='" .. place.features .. "'", "  ")
    lib.wording.wrap(lines, "The job was accepted unchanged.", "  ")
  end
end
