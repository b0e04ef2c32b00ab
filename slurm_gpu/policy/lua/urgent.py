"""Compile `urgent:` for the Lua code, and describe the users who may submit urgent jobs."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu.policy.language.account_trees import tree_text
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import Group, Policy, Urgent

# SiteFactor of an urgent job: above the sum of Slurm's own weights, but too small to overflow the priority.
POINTS = 1_000_000_000


def compile_urgent(policy: Policy, index: Mapping[str, int]) -> dict[str, Plain] | None:
    """Return the `urgent` table of the compiled policy; None if the policy does not allow urgent jobs.

    `index` maps the name of each group to its number.
    """
    if policy.urgent is None:
        return None
    groups: list[Plain] = [index[name] for name in policy.urgent.groups]
    preempts: list[Plain] = list(policy.urgent.preempts)
    return {
        "qos": policy.urgent.qos,
        "groups": groups,
        "who": describe_urgent_users(policy.urgent, policy.groups),
        "jobs_running": policy.urgent.jobs_running,
        "points": POINTS,
        "preempts": preempts,
    }


def describe_urgent_users(urgent: Urgent, groups: Mapping[str, Group]) -> str:
    """Describe the users who may submit urgent jobs: "alice, bob; members of gpuops in account nlp"."""
    return "; ".join(_people(groups[name]) for name in urgent.groups)


def _people(group: Group) -> str:
    parts = []
    if group.users is not None:
        parts.append(", ".join(group.users))
    if group.unix_groups is not None:
        parts.append(f"members of {' or '.join(group.unix_groups)}")
    where = "" if group.accounts is None else f"account {' or '.join(map(tree_text, group.accounts))}"
    if not parts:
        return where
    people = " who are ".join(parts)
    if where:
        people += f" in {where}"
    return f"{people} ({days})" if (days := group.days_text()) else people
