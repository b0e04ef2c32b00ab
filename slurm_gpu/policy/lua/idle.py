"""Jobs that are ended because their GPUs were never used, as slurm-gpuctld reads of them in the bundle."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import Policy


def compile_cancel_idle(policy: Policy, index: Mapping[str, int]) -> dict[str, Plain] | None:
    """The `cancel_idle` of the compiled policy; None where nothing is ended. `index` is that of groups."""
    said = policy.cancel_idle
    if said is None:
        return None
    groups: list[Plain] | None = None if said.groups is None else [index[name] for name in said.groups]
    exempt: list[Plain] = [index[name] for name in said.exempt]
    warn_s: list[Plain] = list(said.warn_s)
    return {
        "groups": groups,
        "exempt": exempt,
        "warn_s": warn_s,
        "after_s": said.after_s,
        "action": str(said.action),
        "mode": str(said.mode),
        "why": said.why,
    }
