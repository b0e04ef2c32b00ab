-- requires: wording
-- The message about a job that may share a GPU.
local policy, lib = ...

local KEEPS = {
  array = "array tasks cannot share",
  het = "components of heterogeneous jobs cannot share",
  interactive = "only sbatch jobs can share",
  gpus = "only jobs with exactly one GPU, requested per job or per node, can share",
  nodes = "only jobs on one node can share",
  type = "it names a GPU type, and these nodes have several types. Name none to share",
  ["per-gpu"] = "it requests CPUs or memory per GPU. Request them per task or per node",
  bind = "it binds its GPU or sets its clocks",
  place = "it names nodes, features or a reservation",
  begin = "it has a begin time",
  dependency = "it depends on another job",
  requeue = "it must be requeueable in case it slows others down. Add --requeue",
  loan = "it borrows its GPU",
  urgent = "urgent jobs cannot share",
  may = "your group is not among those that may share",
  off = "slurm-gpuctld does not assign places at the moment",
  unknown = "the use of such jobs is not known yet; this job will be measured",
  large = "it needs too large a part of a GPU",
}

-- Appends lines to `lines`.
return function(lines, share)
  if share.mode == "observe" then
    return
  elseif share.why then
    lib.wording.wrap(lines, "This job does not share its GPU: " .. KEEPS[share.why] .. ".", "")
    return
  end
  local verb = share.mode == "enforce" and "shares a GPU and gets" or "would share a GPU and get"
  local text = "This job %s %.0f of its %.0f parts: %s"
  local part = string.format(text, verb, share.shards, share.of, policy.colocation.why)
  lib.wording.wrap(lines, part, "")
  if share.mode == "enforce" then
    local start = "It starts with suitable co-runners, or after %.0f s on any GPU with enough free parts."
    lib.wording.wrap(lines, string.format(start, share.max_wait_s), "  ")
  else
    lib.wording.wrap(lines, "The job was accepted unchanged.", "  ")
  end
end
