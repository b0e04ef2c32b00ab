"""Keep live values, requested windows and the allowances of senders in memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping

from slurm_gpu.clock import Clock
from slurm_gpu.database.live.host_minutes import HostMinutes
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.live import LIVE_INTERVAL_S

# Values expire this many seconds after the next values were due.
LATE_S = 50.0
# Interval at which expired values are dropped.
DROP_EVERY_S = 10.0
# Lifetime of a request for a window: a node whose live values are not requested posts within 66 s.
WANTED_FOR_S = 75.0
# Number of items that a node may send at once after a long outage, about as many as in a full spool.
AT_ONCE_ITEMS = 200_000
# Long-term rate of items of a node: 56 MIG instances with one job each need less than 1 item per second.
ITEMS_PER_S = 20.0


class LiveBoard:
    """Stores recent host metrics, and each node's live values until the next ones are overdue by LATE_S."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        # By node: the values, preceded by the time at which they expire (Clock.monotonic()).
        self._values: dict[str, tuple[float, Live]] = {}
        self._minutes = HostMinutes()
        self._drop_at = -math.inf

    def put(self, node: str, live: Live, interval_s: float = LIVE_INTERVAL_S) -> None:
        """Store live values unless newer ones are stored; the next values are due in `interval_s`."""
        with self._lock:
            now = self._clock.monotonic()
            # Ten thousand nodes post a thousand times per second, so expired values are not dropped on every
            # post.
            if now >= self._drop_at:
                self._drop_at = now + DROP_EVERY_S
                self._drop_old()
            kept = self._values.get(node)
            if kept is None or now >= kept[0] or live.at_s >= kept[1].at_s:
                self._values[node] = now + interval_s + LATE_S, live
                self._minutes.put(node, live)

    def values(self) -> Mapping[str, Live]:
        """Return the live values by node, sorted by node name."""
        with self._lock:
            self._drop_old()
            return {node: live for node, (_, live) in sorted(self._values.items())}

    def minutes(self, nodes: Collection[str], since_s: float) -> list[NodeMinutes]:
        """Return the host metrics of these nodes since `since_s`, but at most the last ten minutes."""
        with self._lock:
            self._drop_old()
            found = [self._minutes.of(node, since_s) for node in nodes]
            return [item for item in found if item is not None]

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        self._values = {node: item for node, item in self._values.items() if item[0] > now}
        self._minutes.keep(self._values)


class WindowRequests:
    """Stores requests for windows by node and job, since machines without Slurm assign their own job IDs."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._until: dict[str, dict[int, float]] = {}

    def ask(self, node: str, job_id: int) -> None:
        """Request the windows of this job from this node."""
        with self._lock:
            for name in list(self._until):
                self._drop_old(name)
            self._until.setdefault(node, {})[job_id] = self._clock.monotonic() + WANTED_FOR_S

    def of(self, node: str) -> list[int]:
        """Return the jobs whose windows this node must send."""
        with self._lock:
            self._drop_old(node)
            return sorted(self._until.get(node, ()))

    def all(self) -> dict[str, list[int]]:
        """Return, by node, the jobs whose windows are requested."""
        with self._lock:
            for name in list(self._until):
                self._drop_old(name)
            return {node: sorted(jobs) for node, jobs in self._until.items()}

    def replace(self, wanted: Mapping[str, Collection[int]]) -> None:
        """Replace all requests with `all()` of another process; they are valid until the next call."""
        with self._lock:
            self._until = {node: dict.fromkeys(jobs, math.inf) for node, jobs in wanted.items()}

    def arrived(self, node: str, job_id: int) -> None:
        """Drop a request after the node has sent the window."""
        with self._lock:
            self._until.get(node, {}).pop(job_id, None)

    def _drop_old(self, node: str) -> None:
        now = self._clock.monotonic()
        wanted = {job_id: until for job_id, until in self._until.pop(node, {}).items() if until > now}
        if wanted:
            self._until[node] = wanted


class Allowances:
    """Limits how many items each sender may store, to keep a broken node from filling the database.

    An allowance is AT_ONCE_ITEMS items, and refills at ITEMS_PER_S. A sender with any allowance left may send
    a whole shipment. Each worker process grants the full allowance. Shipments reach workers at random. If
    workers split an allowance, one part could be used up while other parts were unused.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._spent: dict[str, tuple[float, float]] = {}
        self._drop_at = -math.inf

    def wait_s(self, sender: str) -> float:
        """Return the seconds that this sender must wait before it may send more; 0 if it may send now."""
        with self._lock:
            return max(0.0, (self._spent_now(sender) - AT_ONCE_ITEMS) / ITEMS_PER_S)

    def spend(self, sender: str, n_items: int) -> None:
        """Count items that were stored for this sender."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._drop_at:
                self._drop_at = now + DROP_EVERY_S
                self._spent = {name: item for name, item in self._spent.items() if self._spent_now(name) > 0}
            self._spent[sender] = now, self._spent_now(sender) + n_items

    def _spent_now(self, sender: str) -> float:
        at, spent = self._spent.get(sender, (0.0, 0.0))
        return max(0.0, spent - (self._clock.monotonic() - at) * ITEMS_PER_S)
