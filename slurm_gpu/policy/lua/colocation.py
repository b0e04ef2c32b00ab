"""Compile `colocation:` for the Lua code, and describe log entries about sharing."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import Colocation, Policy


def compile_colocation(
    policy: Policy, index: Mapping[str, int], *, requeues: bool
) -> dict[str, Plain] | None:
    """Return the `colocation` table of the compiled policy; None if the policy does not let jobs share GPUs.

    `index` maps the name of each group to its number; `requeues` means that jobs are requeueable by default.
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
    """Return the settings under `colocation:` except for the groups."""
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
    "interactive": "only sbatch jobs can share GPUs",
    "array": "array tasks cannot share GPUs",
    "het": "components of heterogeneous jobs cannot share GPUs",
    "nodes": "only jobs on one node can share GPUs",
    "gpus": "only jobs that request exactly one GPU, per job or per node, can share it",
    "type": "it named a GPU type, and its partition has several types",
    "per-gpu": "it requested CPUs or memory per GPU",
    "bind": "it bound tasks to its GPU or set GPU clocks",
    "place": "it named nodes, features or a reservation",
    "begin": "it had a begin time",
    "dependency": "it depended on another job",
    "requeue": "it could not be requeued if it slowed down another job",
    "loan": "it borrowed its GPU",
    "urgent": "urgent jobs cannot share GPUs",
    "may": "its group was not allowed to share GPUs",
    "off": "slurm-gpuctld was not assigning jobs to shared GPUs",
    "unknown": "the GPU use of similar jobs was not known yet",
    "large": "it needed too much of a GPU",
}


def in_words(share: str) -> str:
    """Describe a job's log entry about sharing, such as "enforce:2/8:alice/train" or "observe:-:array"."""
    mode, _, rest = share.partition(":")
    part, _, what = rest.partition(":")
    if part == "-":
        return f"it does not share its GPU: {_KEPT.get(what, 'the reason is unknown to this version')}"
    shards, _, of = part.partition("/")
    would = "was assigned" if mode == "enforce" else f"would have been assigned (mode: {mode})"
    return f"it {would} {shards} of the {of} shards of a GPU, as many as jobs of {unquote(what)} need"
