"""What slurm-gpudbd knows of nodes in memory only: live values, windows asked for, and what they may send."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from slurm_gpu.clock import Clock
from slurm_gpu.records import Live

LIVE_FOR_S = 60.0
"""Six shipments of live values: after that nobody knows."""
WANTED_FOR_S = 60.0
"""A window that is not asked for again within this time is not wanted any more."""
AT_ONCE_ITEMS = 200_000
"""What a node may have stored after a long outage: a full spool holds about as much."""
ITEMS_PER_S = 20.0
"""What it may have stored in the long run; of 56 MIG instances with a job each it is less than one."""


class LiveBoard:
    """The last values of each node, for LIVE_FOR_S from their arrival."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._values: dict[str, tuple[float, Live]] = {}

    def put(self, node: str, live: Live) -> None:
        """Values arrived; older ones than those that are there came late, and count for nothing."""
        with self._lock:
            self._drop_old()
            held = self._values.get(node)
            if held is None or live.at_s >= held[1].at_s:
                self._values[node] = self._clock.monotonic(), live

    def values(self) -> Mapping[str, Live]:
        """By node, in the order of names."""
        with self._lock:
            self._drop_old()
            return {node: live for node, (_, live) in sorted(self._values.items())}

    def _drop_old(self) -> None:
        oldest = self._clock.monotonic() - LIVE_FOR_S
        self._values = {node: held for node, held in self._values.items() if held[0] > oldest}


class Wants:
    """Windows that somebody waits for, by node and job: machines without Slurm number jobs by themselves."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._until: dict[tuple[str, int], float] = {}

    def ask(self, node: str, job_id: int) -> None:
        """Somebody waits for the windows of this job from this node."""
        with self._lock:
            self._drop_old()
            self._until[node, job_id] = self._clock.monotonic() + WANTED_FOR_S

    def of(self, node: str) -> list[int]:
        """The jobs whose window this node is to send."""
        with self._lock:
            self._drop_old()
            return sorted(job_id for name, job_id in self._until if name == node)

    def arrived(self, node: str, job_id: int) -> None:
        """The node has sent it."""
        with self._lock:
            self._until.pop((node, job_id), None)

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        self._until = {wanted: until for wanted, until in self._until.items() if until > now}


class Allowances:
    """How many items each node may have stored, so that a broken one does not fill the database.

    AT_ONCE_ITEMS, which come back by ITEMS_PER_S. Whoever has some left may send a whole shipment.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._spent: dict[str, tuple[float, float]] = {}

    def wait_s(self, node: str) -> float:
        """For how long this node has to wait before it may send more; 0 where it need not."""
        with self._lock:
            return max(0.0, (self._spent_now(node) - AT_ONCE_ITEMS) / ITEMS_PER_S)

    def spend(self, node: str, n_items: int) -> None:
        """So many items of this node were stored."""
        with self._lock:
            self._spent = {name: item for name, item in self._spent.items() if self._spent_now(name) > 0}
            self._spent[node] = self._clock.monotonic(), self._spent_now(node) + n_items

    def _spent_now(self, node: str) -> float:
        at, spent = self._spent.get(node, (0.0, 0.0))
        return max(0.0, spent - (self._clock.monotonic() - at) * ITEMS_PER_S)
