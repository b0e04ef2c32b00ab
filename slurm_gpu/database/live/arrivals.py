"""Record the last shipment of each node, and find nodes whose shipments are overdue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu.clock import Clock
from slurm_gpu.database.accounting.allocated_time import SHIPPED_WITHIN_S
from slurm_gpu.database.accounting.slurm_view import QueueState

SILENT_AFTER_S = SHIPPED_WITHIN_S


@dataclass(frozen=True, slots=True)
class Arrival:
    """The wall-clock time of a node's last shipment, and the version of its slurm-gpud."""

    at_s: float
    version: str | None


class Arrivals:
    """Stores the last shipment of each node in the memory of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._seen_s: dict[str, float] = {}
        self._last: dict[str, Arrival] = {}

    def record_shipment(self, node: str, version: str | None = None) -> None:
        """Record a shipment from `node`."""
        self._seen_s[node] = self._clock.monotonic()
        self._last[node] = Arrival(self._clock.wall(), version)

    def last(self) -> Mapping[str, Arrival]:
        """Return the last arrival of each node since this slurm-gpudbd started."""
        return dict(self._last)

    def silent(self, queue: QueueState | None) -> list[str]:
        """Return the nodes that have sent nothing for SILENT_AFTER_S while their GPUs were allocated.

        The list is empty if slurmctld's queue is unknown, and for SILENT_AFTER_S after slurm-gpudbd starts.
        """
        if queue is None:
            return []
        long_ago = self._clock.monotonic() - SILENT_AFTER_S
        return sorted(
            node
            for node, jobs in queue.by_node.items()
            if self._seen_s.get(node, self._since) < long_ago
            and any(
                job.state == "RUNNING"
                and job.start_s is not None
                and queue.as_of_s - job.start_s > SILENT_AFTER_S
                and job.gpu_index.get(node)
                for job in jobs
            )
        )
