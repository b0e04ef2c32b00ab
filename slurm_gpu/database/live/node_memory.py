"""What slurm-gpudbd knows of nodes in memory only: live values, windows asked for, and what they may send."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping

from slurm_gpu.clock import Clock
from slurm_gpu.database.live.host_minutes import HostMinutes
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.live import LIVE_INTERVAL_S

# Values are dropped as many seconds after the next ones were due.
LATE_S = 50.0
DROP_EVERY_S = 10.0
"""What nobody needs any more is let go of so often."""
# A window is wanted for so long: a node whose live values were not needed posts within 66 s.
WANTED_FOR_S = 75.0
AT_ONCE_ITEMS = 200_000
"""What a node may have stored after a long outage: a full spool holds about as much."""
ITEMS_PER_S = 20.0
"""What it may have stored in the long run; of 56 MIG instances with a job each it is less than one."""


class LiveBoard:
    """The last values of each node until the next ones are LATE_S late, and minutes of what its host did."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        # By node: until when they are kept, by Clock.monotonic(), and the values.
        self._values: dict[str, tuple[float, Live]] = {}
        self._minutes = HostMinutes()
        self._drop_at = -math.inf

    def put(self, node: str, live: Live, interval_s: float = LIVE_INTERVAL_S) -> None:
        """Take in values, unless they are older than the last ones; the next are due in `interval_s`."""
        with self._lock:
            now = self._clock.monotonic()
            # Of ten thousand nodes a thousand tell something each second: not each time all are looked at.
            if now >= self._drop_at:
                self._drop_at = now + DROP_EVERY_S
                self._drop_old()
            held = self._values.get(node)
            if held is None or now >= held[0] or live.at_s >= held[1].at_s:
                self._values[node] = now + interval_s + LATE_S, live
                self._minutes.put(node, live)

    def values(self) -> Mapping[str, Live]:
        """By node, in the order of names."""
        with self._lock:
            self._drop_old()
            return {node: live for node, (_, live) in sorted(self._values.items())}

    def minutes(self, nodes: Collection[str], since_s: float) -> list[NodeMinutes]:
        """What these nodes did since then, for ten minutes at most; without those that told nothing."""
        with self._lock:
            self._drop_old()
            found = [self._minutes.of(node, since_s) for node in nodes]
            return [item for item in found if item is not None]

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        self._values = {node: held for node, held in self._values.items() if held[0] > now}
        self._minutes.keep(self._values)


class Wants:
    """Windows that somebody waits for, by node and job: machines without Slurm number jobs by themselves."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._until: dict[str, dict[int, float]] = {}

    def ask(self, node: str, job_id: int) -> None:
        """Somebody waits for the windows of this job from this node."""
        with self._lock:
            for name in list(self._until):
                self._drop_old(name)
            self._until.setdefault(node, {})[job_id] = self._clock.monotonic() + WANTED_FOR_S

    def of(self, node: str) -> list[int]:
        """The jobs whose window this node is to send."""
        with self._lock:
            self._drop_old(node)
            return sorted(self._until.get(node, ()))

    def all(self) -> dict[str, list[int]]:
        """The jobs whose windows are wanted, by node."""
        with self._lock:
            for name in list(self._until):
                self._drop_old(name)
            return {node: sorted(jobs) for node, jobs in self._until.items()}

    def replace(self, wanted: Mapping[str, Collection[int]]) -> None:
        """Take over what `all` of another process returned, until it returns something else."""
        with self._lock:
            self._until = {node: dict.fromkeys(jobs, math.inf) for node, jobs in wanted.items()}

    def arrived(self, node: str, job_id: int) -> None:
        """The node has sent it."""
        with self._lock:
            self._until.get(node, {}).pop(job_id, None)

    def _drop_old(self, node: str) -> None:
        now = self._clock.monotonic()
        wanted = {job_id: until for job_id, until in self._until.pop(node, {}).items() if until > now}
        if wanted:
            self._until[node] = wanted


class Allowances:
    """How many items each sender may have stored, so that a broken node does not fill the database.

    AT_ONCE_ITEMS, which come back by ITEMS_PER_S. Whoever has some left may send a whole shipment.
    Each worker counts by itself: chance decides which takes in the next shipment, so a share of the allowance
    could be used up in one and not in another.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._spent: dict[str, tuple[float, float]] = {}
        self._drop_at = -math.inf

    def wait_s(self, sender: str) -> float:
        """For how long this sender has to wait before it may send more; 0 where it need not."""
        with self._lock:
            return max(0.0, (self._spent_now(sender) - AT_ONCE_ITEMS) / ITEMS_PER_S)

    def spend(self, sender: str, n_items: int) -> None:
        """So many items of this sender were stored."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._drop_at:
                self._drop_at = now + DROP_EVERY_S
                self._spent = {name: item for name, item in self._spent.items() if self._spent_now(name) > 0}
            self._spent[sender] = now, self._spent_now(sender) + n_items

    def _spent_now(self, sender: str) -> float:
        at, spent = self._spent.get(sender, (0.0, 0.0))
        return max(0.0, spent - (self._clock.monotonic() - at) * ITEMS_PER_S)
