"""Jobs that share a GPU as the Lua reads of them."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu.policy.luadata import Plain
from slurm_gpu.policy.model import Policy


def compile_colocation(policy: Policy, index: Mapping[str, int]) -> dict[str, Plain] | None:
    """The `colocation` of the compiled policy; None where no jobs share. `index` is that of groups."""
    said = policy.colocation
    if said is None:
        return None
    may: list[Plain] | None = None if said.may is None else [index[name] for name in said.may]
    must: list[Plain] = [index[name] for name in said.must]
    return {
        "may": may,
        "must": must,
        "mode": str(said.mode),
        "goal": str(said.goal),
        "slowdown": said.slowdown,
        "together": said.together,
        "largest": said.largest,
        "hold_s": said.hold_s,
        "why": said.why,
    }
