-- requires: wording
-- What a user is told about the zone of a distributed job. Where the zone is written into the constraint nothing is said.
local _, lib = ...

local LEFT_ALONE = {
  constraint = "its --constraint cannot have zones behind it: write it without [ ], *, ( ) and commas, and not with "
    .. "both & and |",
}

-- Appends lines to `lines`.
return function(lines, place)
  if place.why then
    local reason = LEFT_ALONE[place.why]
    if reason and place.mode ~= "observe" then
      lib.wording.wrap(lines, "This job is not kept within one zone: " .. reason .. ".", "")
    end
  elseif place.mode == "advise" then
    local names = {}
    for index, zone in ipairs(place.zones) do
      names[index] = zone.name
    end
    lib.wording.wrap(lines, "This job needs several nodes. They would lie in one zone with", "")
    lib.wording.wrap(lines, "--constraint='" .. place.features .. "'", "  ")
    lib.wording.wrap(lines, "It is accepted as it is.", "  ")
  end
end
