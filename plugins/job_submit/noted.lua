-- Reads what the script recorded in the AdminComment of a job at its submission. All functions are pure.
local noted = {}

-- Returns the kind of a job, as recorded in its AdminComment at submission.
function noted.kind_of(record)
  local comment = record.admin_comment
  return comment and string.find(comment, "slurm%-gpu/1 t=%w+ k=i") and "interactive" or "batch"
end

-- Returns whether a job is exclusive, as recorded in its AdminComment at submission. No other field shows this.
function noted.has_whole_nodes(record)
  local comment = record.admin_comment
  return comment ~= nil and string.find(comment, "^slurm%-gpu/1 t=%w+ ?k?=?i? w=1") ~= nil
end

-- Returns the QOS in which a job runs or may start. The record of a pending job with several QOS has only the QOS that
-- Slurm tried last; the script recorded all QOS at submission. The recorded QOS apply only if they include the QOS in
-- the record; after an update to another QOS, they do not.
function noted.qos_of(record, base)
  local qos, comment = string.lower(record.qos or ""), record.admin_comment
  local noted = base == 0 and comment and string.match(comment, "^slurm%-gpu/1 t=%w+ ?k?=?i? ?w?=?1? q=(%S+)")
  if noted and string.find("," .. noted .. ",", "," .. qos .. ",", 1, true) then
    return noted
  end
  return qos
end

return noted
