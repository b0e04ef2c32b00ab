"""Compile `colocation:` for the Lua code, and describe its log entries."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import Colocation, Policy


def compile_colocation(
    policy: Policy, index: Mapping[str, int], *, requeues: bool
) -> dict[str, Plain] | None:
    """Return the `colocation` of the compiled policy; None if no jobs share.

    `index` is the number of each group; `requeues` is whether jobs that do not specify it may be requeued.
    """
    colocation = policy.colocation
    if colocation is None:
        return None
    allowed: list[Plain] | None = None
    if colocation.allowed_groups is not None:
        allowed = [index[name] for name in colocation.allowed_groups]
    required: list[Plain] = [index[name] for name in colocation.required_groups]
    settings = {"allowed_groups": allowed, "required_groups": required, **colocation_settings(colocation)}
    return settings | {"requeues": requeues, "why": colocation.why}


def colocation_settings(colocation: Colocation) -> dict[str, Plain]:
    """Return the values of `colocation` that do not name groups."""
    return {
        "mode": str(colocation.mode),
        "goal": str(colocation.goal),
        "slowdown": colocation.slowdown,
        "jobs_per_gpu": colocation.jobs_per_gpu,
        "max_gpu_fraction": colocation.max_gpu_fraction,
        "max_wait_s": colocation.max_wait_s,
        "planner": colocation.planner,
        "model": None if colocation.model is None else str(colocation.model),
    }


_KEPT = {
    "interactive": "only sbatch jobs share",
    "array": "tasks of an array do not share",
    "het": "components of a heterogeneous job do not share",
    "nodes": "only jobs of one node share",
    "gpus": "only jobs of exactly one GPU share",
    "type": "it named a type of GPU, and its partition has several",
    "per-gpu": "it requested CPUs or memory per GPU",
    "bind": "it has options for binding or clocks of its GPU",
    "place": "it names nodes, features or a reservation",
    "begin": "it had a begin time of its own",
    "dependency": "it depended on another job",
    "requeue": "it cannot be requeued, which a job that slows down another must allow",
    "loan": "it borrowed its GPU",
    "urgent": "urgent jobs do not share",
    "may": "its group is not allowed to share",
    "off": "slurm-gpuctld published no shared GPUs",
    "unknown": "similar jobs have no profile yet",
    "large": "it needs too much of a GPU",
}


def in_words(share: str) -> str:
    """Describe the log entry of a job that allowed sharing ("enforce:2/8:alice/train", "observe:-:array")."""
    mode, _, rest = share.partition(":")
    part, _, what = rest.partition(":")
    if part == "-":
        return f"it keeps a GPU for itself, as {_KEPT.get(what, 'similar jobs have no profile')}"
    shards, _, of = part.partition("/")
    would = "was to get" if mode == "enforce" else f"would have got ({mode})"
    return f"it allowed sharing, and {would} {shards} of {of} shards, as jobs of {unquote(what)} need"
