"""Allocations that ended before the driver, or slurmd, could tell which devices they held.

A record is filed under its device for good. So one whose job lay wholly inside an outage is kept back for a
moment where the driver is only starting, or slurmd has yet to answer: its spooled allocation and its
epilog's file stay until it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_gpu.node.allocation.hooks import HookEvent
from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.jobs.inventory import Inventory

# A driver that loads needs some seconds; slurm-gpud gives it as long (START_DEADLINE_S of the reader).
TOLD_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """A hold that is over since `end_s` (Clock.monotonic()); its record is due at `due_s` at the latest."""

    allocation: Allocation
    end_s: float
    epilog: HookEvent | None
    due_s: float


class UntoldDevices:
    """Those that wait; `since_s` is when this slurm-gpud began to look for a driver."""

    def __init__(self, inventory: Inventory, since_s: float) -> None:
        self._inventory, self._since_s = inventory, since_s
        self._waiting: list[Untold] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, allocation: Allocation, end_s: float, epilog: HookEvent | None, now_s: float) -> bool:
        """Keep it back if its devices may be told in a moment; False where they are told, or never are."""
        starting = self._inventory.starting or now_s < self._since_s + TOLD_WITHIN_S
        if _is_told(allocation) or not (starting or self._inventory.is_asking):
            return False
        due_s = now_s + TOLD_WITHIN_S
        self._waiting.append(Untold(allocation=allocation, end_s=end_s, epilog=epilog, due_s=due_s))
        return True

    def resolve(self) -> None:
        """Find the devices, now that there is a driver, or an answer."""
        self._waiting = [
            replace(one, allocation=self._inventory.resolve(one.allocation)) for one in self._waiting
        ]

    def over(self, now_s: float) -> Sequence[Untold]:
        """Those for which nothing more is waited; they are not kept any longer."""
        over = [one for one in self._waiting if _is_told(one.allocation) or now_s >= one.due_s]
        self._waiting = [one for one in self._waiting if one not in over]
        return over


def _is_told(allocation: Allocation) -> bool:
    return len(allocation.devices) == len(allocation.positions)
