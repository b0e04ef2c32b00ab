"""Store requests for live values.

Nodes whose values are requested post every LIVE_INTERVAL_S, and other nodes less often.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable

from slurm_gpu.clock import Clock
from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.occupancy import ALLOCATED_STATES
from slurm_gpu.slurm.tres import amount
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S, LIVE_INTERVAL_S

# Requests are valid for longer than the longest interval between posts; every node thus receives them.
NEEDED_FOR_S = 75.0
_DROP_EVERY_S = 10.0


class LiveNeeds:
    """Stores requests for live values, each valid for NEEDED_FOR_S. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._until: dict[str, float] = {}
        self._all_until = self._drop_at = -math.inf

    def ask(self, nodes: Iterable[str]) -> None:
        """Request the live values of these nodes."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._drop_at:
                self._drop_at = now + _DROP_EVERY_S
                self._until = {node: until for node, until in self._until.items() if until > now}
            self._until.update(dict.fromkeys(nodes, now + NEEDED_FOR_S))

    def ask_all(self) -> None:
        """Request the live values of all nodes."""
        self._all_until = self._clock.monotonic() + NEEDED_FOR_S

    def names(self) -> frozenset[str] | None:
        """Return the nodes whose live values are requested, or None if all nodes are requested."""
        with self._lock:
            now = self._clock.monotonic()
            if self._all_until > now:
                return None
            return frozenset(node for node, until in self._until.items() if until > now)

    def replace(self, nodes: Iterable[str] | None) -> None:
        """Replace all requests with the `names()` of another process; they are valid until the next call."""
        with self._lock:
            self._all_until = math.inf if nodes is None else -math.inf
            self._until = dict.fromkeys(nodes or (), math.inf)

    def interval_s(self, node: str) -> float:
        """Return the interval at which this node must post its live values."""
        until = max(self._all_until, self._until.get(node, -math.inf))
        return LIVE_INTERVAL_S if until > self._clock.monotonic() else IDLE_LIVE_INTERVAL_S


def is_unsettled(node: str, open_jobs: Collection[int], queue: QueueState | None) -> bool:
    """Return whether a node's report of its jobs differs from Slurm's, or one of these jobs is suspended."""
    jobs = () if queue is None else queue.by_node.get(node, ())
    holding = {
        job.job_id: job.state for job in jobs if job.state in ALLOCATED_STATES and job.gpu_index.get(node)
    }
    return queue is not None and (holding.keys() != set(open_jobs) or "SUSPENDED" in holding.values())


def n_gpus(job: QueuedJob) -> float:
    """Return the number of GPUs that Slurm reports for a job."""
    positions = sum(len(index.get("gpu", ())) for index in job.gpu_index.values())
    return max(positions, amount(job.tres_allocated, "gpu"))
