"""Describe in words how zones were chosen for a distributed job."""

from __future__ import annotations

from slurm_gpu.policy.lua.script import ZoneDecision

_REASONS = {
    "nodelist": "it names its nodes (--nodelist)",
    "exclude": "it excludes nodes (--exclude)",
    "prefer": "it has --prefer, which Slurm uses instead of constraints",
    "reservation": "it uses a reservation",
    "batch": "it has --batch",
    "sockets": "it requests sockets, cores or tasks per socket",
    "threads": "it requests a number of threads per core",
    "het": "it is part of a heterogeneous job",
    "switches": "it has --switches",
    "tmp": "it requests temporary disk space",
    "contiguous": "it has --contiguous",
    "gres": "it requests GRES other than GPUs per node, task or job",
    "constraint": "zones cannot be added to its --constraint",
    "zone": "its --constraint names a zone",
    "room": "no zone is large enough for it",
}


def zones_in_words(placed: ZoneDecision) -> str:
    """Return the decision as one sentence for the job's owner."""
    if placed.why is not None:
        reason = _REASONS.get(placed.why, placed.why)
        return f"The job needs several nodes and is not kept in one zone: {reason}"
    zones = " or ".join(name for name, _ in placed.zones)
    if placed.mode == "enforce":
        return f"To keep its nodes close together, the job is kept in one zone: {zones}"
    use = f"; use --constraint='{placed.constraint}'" if placed.constraint else ""
    return f"The job's nodes would be close together in one zone: {zones}{use}"
