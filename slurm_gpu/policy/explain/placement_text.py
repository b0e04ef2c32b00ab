"""What became of a distributed job's zones, in words."""

from __future__ import annotations

from slurm_gpu.policy.lua.script import ZoneDecision

_REASONS = {
    "nodelist": "it names its nodes (--nodelist)",
    "exclude": "it leaves nodes out (--exclude)",
    "prefer": "it has --prefer, which Slurm puts in the place of every constraint",
    "reservation": "it has a reservation",
    "batch": "it has --batch",
    "sockets": "it says something of sockets",
    "threads": "it says something of threads per core",
    "het": "it is part of a heterogeneous job",
    "switches": "it has --switches",
    "tmp": "it asks for temporary disk space",
    "contiguous": "it has --contiguous",
    "gres": "it asks for more than GPUs by node, task or job",
    "constraint": "its --constraint cannot have zones behind it",
    "zone": "its --constraint names a zone",
    "room": "no zone could ever hold it",
}


def zones_in_words(placed: ZoneDecision) -> str:
    """One sentence."""
    if placed.why is not None:
        reason = _REASONS.get(placed.why, placed.why)
        return f"it needs several nodes, and is not kept in one zone: {reason}"
    zones = ", ".join(f"{name} (score {score})" for name, score in placed.zones)
    constraint = f" by --constraint='{placed.constraint}'" if placed.constraint else ""
    if placed.mode == "enforce":
        return f"it needs several nodes, and is kept in one zone{constraint}: {zones}"
    return f"it needs several nodes, and would be kept in one zone{constraint} by mode: enforce: {zones}"
