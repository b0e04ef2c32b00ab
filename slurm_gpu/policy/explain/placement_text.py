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
    """Return the decision as one sentence."""
    if placed.why is not None:
        reason = _REASONS.get(placed.why, placed.why)
        return f"it needs several nodes and is not kept in one zone: {reason}"
    zones = ", ".join(f"{name} (score {score})" for name, score in placed.zones)
    constraint = f" by --constraint='{placed.constraint}'" if placed.constraint else ""
    if placed.mode == "enforce":
        return f"it needs several nodes and is kept in one zone{constraint}: {zones}"
    return f"it needs several nodes and, with mode: enforce, would be kept in one zone{constraint}: {zones}"
