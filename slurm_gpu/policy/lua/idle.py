"""Compile the `cancel_idle:` settings, with which slurm-gpuctld ends jobs that never used their GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import Policy


def compile_cancel_idle(policy: Policy, index: Mapping[str, int]) -> dict[str, Plain] | None:
    """Return the `cancel_idle` table of the compiled policy; None if the policy has no `cancel_idle:`.

    `index` maps the name of each group to its number.
    """
    cancel_idle = policy.cancel_idle
    if cancel_idle is None:
        return None
    groups: list[Plain] | None = (
        None if cancel_idle.groups is None else [index[name] for name in cancel_idle.groups]
    )
    exempt: list[Plain] = [index[name] for name in cancel_idle.exempt]
    warn_s: list[Plain] = list(cancel_idle.warn_s)
    return {
        "groups": groups,
        "exempt": exempt,
        "warn_s": warn_s,
        "after_s": cancel_idle.after_s,
        "action": str(cancel_idle.action),
        "mode": str(cancel_idle.mode),
        "why": cancel_idle.why,
    }
