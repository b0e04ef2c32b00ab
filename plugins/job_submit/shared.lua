-- requires: wording
-- Writes the message about a job that may share a GPU.
local policy, lib = ...

local KEEPS = {
  array = "array tasks cannot share GPUs",
  het = "components of heterogeneous jobs cannot share GPUs",
  interactive = "only sbatch jobs can share GPUs",
  gpus = "only jobs that request exactly one GPU, per job or per node, can share it",
  nodes = "only jobs on one node can share GPUs",
  type = "it names a GPU type, and these nodes have several types. To share, do not name a type",
  ["per-gpu"] = "it requests CPUs or memory per GPU. To share, request them per task or per node",
  bind = "it binds tasks to its GPU or sets GPU clocks",
  place = "it names nodes, features or a reservation",
  begin = "it has a begin time",
  dependency = "it depends on another job",
  requeue = "it cannot be requeued if it slows down another job. To share, add --requeue",
  loan = "it borrows its GPU",
  urgent = "urgent jobs cannot share GPUs",
  may = "your group is not allowed to share GPUs",
  off = "slurm-gpuctld is not assigning jobs to shared GPUs at the moment",
  unknown = "the GPU use of similar jobs is not known yet; this job will be measured",
  large = "it needs too much of a GPU",
}

-- Appends the message to `lines`.
return function(lines, share)
  if share.mode == "observe" then
    return
  elseif share.why then
    lib.wording.wrap(lines, "This job does not share its GPU: " .. KEEPS[share.why] .. ".", "")
    return
  end
  local verb = share.mode == "enforce" and "shares a GPU and gets" or "would share a GPU and get"
  local text = "This job %s %.0f of the %.0f parts: %s"
  local part = string.format(text, verb, share.shards, share.of, policy.colocation.why)
  lib.wording.wrap(lines, part, "")
  if share.mode == "enforce" then
    local start = "It starts next to suitable co-runners, or after %.0f s on any GPU with enough free parts."
    lib.wording.wrap(lines, string.format(start, share.max_wait_s), "  ")
  else
    lib.wording.wrap(lines, "The job was accepted unchanged.", "  ")
  end
end
