"""Compile `owners:` for the Lua code, with the groups that slurm-gpuctld needs to count lent GPUs."""

from __future__ import annotations

from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.native.lending import unowned_gpus


def own_group(owner: str) -> str:
    """Return the name of the group of jobs that run on an owner's own GPUs."""
    return f"own:{owner}"


def loans_group(qos: str) -> str:
    """Return the name of the group of jobs that borrow GPUs in a QOS."""
    return f"loans:{qos}"


def borrowed_group(owner: str, qos: str) -> str:
    """Return the name of the group of an owner's jobs that borrow GPUs in a QOS."""
    return f"borrowed:{qos}:{owner}"


def compile_lending(policy: Policy, n_gpus: int, *, requeues: bool) -> dict[str, Plain] | None:
    """Return the `lending` table of the compiled policy; None if the policy has no owners."""
    if not policy.owners:
        return None
    owners: list[Plain] = [
        {
            "name": owner.group,
            "accounts": dict.fromkeys(sorted(owner.accounts), True),
            "mgpu": owner.gpus * 1000,
            "qos": owner.qos,
            "lend_in": owner.lend_in,
            "return_within_s": owner.return_within_s,
        }
        for owner in policy.owners
    ]
    return {
        "owners": owners,
        "unowned_mgpu": unowned_gpus(policy.owners, n_gpus) * 1000,
        "requeues": requeues,
    }


def lending_groups(policy: Policy) -> list[Plain]:
    """Return the groups that slurm-gpuctld counts in addition to the groups of the policy.

    The names of these groups contain a colon, unlike the names of policy groups.
    """
    loans = sorted({owner.lend_in for owner in policy.owners})
    groups: list[Plain] = [{"name": loans_group(qos), "qos": {qos: True}} for qos in loans]
    for owner in policy.owners:
        groups.append({"name": own_group(owner.group), "qos": {owner.qos: True}})
        accounts: dict[str, Plain] = dict.fromkeys(sorted(owner.accounts), True)
        groups += [
            {"name": borrowed_group(owner.group, qos), "qos": {qos: True}, "accounts": dict(accounts)}
            for qos in loans
        ]
    return groups
