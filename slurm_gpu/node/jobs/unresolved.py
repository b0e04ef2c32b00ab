"""Delay the records of allocations that ended before their devices were known.

The device of a record cannot be changed later. Therefore the record of a job has to wait if the job started
and ended while the driver was starting or slurmd did not answer. Meanwhile, the spooled allocation and the
epilog's file are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_gpu.node.allocation.tracker import Allocation, EndedAllocation
from slurm_gpu.node.jobs.inventory import Inventory

# A driver takes several seconds to load; this limit equals START_DEADLINE_S of the reader.
RESOLVE_WITHIN_S = 20.0


@dataclass(slots=True)
class _WaitingForDevices:
    """An ended allocation that waits for its devices until `due_s` (Clock.monotonic())."""

    ended: EndedAllocation
    due_s: float


class UnresolvedAllocations:
    """The waiting allocations; this process has searched for a driver since `since_s`."""

    def __init__(self, inventory: Inventory, since_s: float) -> None:
        self._inventory, self._since_s = inventory, since_s
        self._waiting: list[_WaitingForDevices] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def can_resolve(self, allocation: Allocation, now_s: float) -> bool:
        """Return whether the allocation has unknown devices that may soon become known."""
        starting = self._inventory.starting or now_s < self._since_s + RESOLVE_WITHIN_S
        return not _is_resolved(allocation) and (starting or self._inventory.is_asking)

    def wait(self, ended: EndedAllocation, now_s: float) -> None:
        """Keep an ended allocation until its devices are known, for at most RESOLVE_WITHIN_S."""
        self._waiting.append(_WaitingForDevices(ended, now_s + RESOLVE_WITHIN_S))

    def resolve(self) -> None:
        """Look up the devices of the waiting allocations; call this when new devices may be known."""
        for waiting in self._waiting:
            allocation = self._inventory.resolve(waiting.ended.allocation)
            waiting.ended = replace(waiting.ended, allocation=allocation)

    def over(self, now_s: float) -> Sequence[EndedAllocation]:
        """Remove and return the allocations whose devices are known or which have waited long enough."""
        over = [one for one in self._waiting if _is_resolved(one.ended.allocation) or now_s >= one.due_s]
        self._waiting = [one for one in self._waiting if one not in over]
        return [one.ended for one in over]


def _is_resolved(allocation: Allocation) -> bool:
    return len(allocation.devices) == len(allocation.positions)
