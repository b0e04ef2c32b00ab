-- requires: wording
-- What a user is told whose job agrees to share a GPU.
local policy, lib = ...

local KEEPS = {
  array = "tasks of an array do not",
  het = "components of a heterogeneous job do not",
  interactive = "only jobs of sbatch do",
  gpus = "only jobs of exactly one GPU do, asked for by the job or by the node",
  nodes = "only jobs of one node do",
  type = "parts of a GPU have no type, and these nodes have GPUs of several: name none",
  ["per-gpu"] = "ask for CPUs and memory by the task or the node, not by the GPU",
  bind = "it says how its GPU is to be bound or clocked",
  place = "it names nodes, features or a reservation",
  begin = "it begins later",
  dependency = "it waits for another job",
  requeue = "it may not be requeued, as one has to that slows another down (--requeue)",
  loan = "it borrows its GPU",
  urgent = "urgent jobs do not",
  may = "it is for others",
  off = "slurm-gpuctld, which finds places, is not there",
  unknown = "nobody knows yet what such jobs need, which this one will show",
  large = "it needs too much of one",
}

-- Appends lines to `lines`.
return function(lines, share)
  if share.mode == "observe" then
    return
  elseif share.why then
    lib.wording.wrap(lines, "This job does not share its GPU: " .. KEEPS[share.why] .. ".", "")
    return
  end
  local does = share.mode == "enforce" and "shares a GPU, of which it gets" or "would share a GPU, of which it would get"
  local part = string.format("This job %s %.0f of %.0f parts: %s", does, share.shards, share.of, policy.colocation.why)
  lib.wording.wrap(lines, part, "")
  if share.mode == "enforce" then
    local within = string.format("It starts where it suits others, or within %.0f s, once there is room.", share.max_wait_s)
    lib.wording.wrap(lines, within, "  ")
  else
    lib.wording.wrap(lines, "It is accepted as it is.", "  ")
  end
end
