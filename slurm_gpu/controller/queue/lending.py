"""Compute the current loans of each owner, as a pure function of policy and use.

No particular GPU belongs to an owner. The lent amount is the part of the borrowed GPUs that exceeds the
unowned GPUs not used by ordinary jobs. Owners lend in proportion to their idle GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu.controller.queue.usage import Usage
from slurm_gpu.policy.lua.installed import LendingInForce, OwnerInForce
from slurm_gpu.policy.lua.lending import borrowed_group, loans_group, own_group


@dataclass(frozen=True, slots=True)
class LendingLine:
    """The loans of one owner; amounts are mgpu of running jobs."""

    owner: OwnerInForce
    own: int
    """Owned GPUs that the owner's jobs use."""
    lent: int
    borrowed: int
    """GPUs that the owner's jobs borrow in addition to the owned GPUs."""


def lending_of(lending: LendingInForce, usage: Usage) -> list[LendingLine]:
    """Return the loans of all owners, in the order of the policy."""

    def running(group: str) -> int:
        return usage.of(None, group).running.mgpu

    loans = sorted({owner.lend_in for owner in lending.owners})
    on_loan = sum(running(loans_group(qos)) for qos in loans)
    own = {owner.name: running(own_group(owner.name)) for owner in lending.owners}
    idle = {owner.name: max(0, owner.mgpu - own[owner.name]) for owner in lending.owners}
    everything = sum(use.running.mgpu for subject, use in usage.by_subject.items() if subject.group is None)
    ordinary = everything - on_loan - sum(own.values())
    owners_lend = max(0, on_loan - max(0, lending.unowned_mgpu - ordinary))
    could_lend = sum(idle.values())
    return [
        LendingLine(
            owner=owner,
            own=own[owner.name],
            lent=min(idle[owner.name], round(owners_lend * idle[owner.name] / could_lend))
            if could_lend
            else 0,
            borrowed=sum(running(borrowed_group(owner.name, qos)) for qos in loans),
        )
        for owner in lending.owners
    ]
