"""Allocations that ended before the driver, or slurmd, could tell which devices they held.

A record is filed under its device for good. So one whose job lay wholly inside an outage is kept back for a
moment where the driver is only starting, or slurmd has yet to answer: its spooled allocation and its
epilog's file stay until it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_gpu.node.allocation.tracker import Allocation, EndedAllocation
from slurm_gpu.node.jobs.inventory import Inventory

# A driver that loads needs some seconds; slurm-gpud gives it as long (START_DEADLINE_S of the reader).
RESOLVE_WITHIN_S = 20.0


@dataclass(slots=True)
class _WaitingForDevices:
    """An ended allocation whose record is due at `due_s` (Clock.monotonic()) at the latest."""

    ended: EndedAllocation
    due_s: float


class UnresolvedAllocations:
    """Those that wait; `since_s` is when this slurm-gpud began to look for a driver."""

    def __init__(self, inventory: Inventory, since_s: float) -> None:
        self._inventory, self._since_s = inventory, since_s
        self._waiting: list[_WaitingForDevices] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def can_resolve(self, allocation: Allocation, now_s: float) -> bool:
        """Return whether devices that are not known yet may be in a moment."""
        starting = self._inventory.starting or now_s < self._since_s + RESOLVE_WITHIN_S
        return not _is_resolved(allocation) and (starting or self._inventory.is_asking)

    def wait(self, ended: EndedAllocation, now_s: float) -> None:
        """Keep it back until its devices are known, for RESOLVE_WITHIN_S at most."""
        self._waiting.append(_WaitingForDevices(ended, now_s + RESOLVE_WITHIN_S))

    def resolve(self) -> None:
        """Find the devices, now that there is a driver, or an answer."""
        for waiting in self._waiting:
            allocation = self._inventory.resolve(waiting.ended.allocation)
            waiting.ended = replace(waiting.ended, allocation=allocation)

    def over(self, now_s: float) -> Sequence[EndedAllocation]:
        """Return those whose devices are known or overdue, and keep them no longer."""
        over = [one for one in self._waiting if _is_resolved(one.ended.allocation) or now_s >= one.due_s]
        self._waiting = [one for one in self._waiting if one not in over]
        return [one.ended for one in over]


def _is_resolved(allocation: Allocation) -> bool:
    return len(allocation.devices) == len(allocation.positions)
