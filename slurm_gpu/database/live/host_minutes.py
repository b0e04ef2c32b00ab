"""Keep ten minutes of each node's CPU use and network traffic in memory.

A diagnosis uses these values to find out whether a node loads, writes or sends data while its GPUs wait.
Nodes report the values every ten seconds.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping

from slurm_gpu.diagnose.metric import HOST_METRICS, read_host_metrics
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.occupancy import ALLOCATED_STATES
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.node_minutes import NodeMinutes

# Samples are kept for the length of a window.
KEPT_S = 600.0
# CPU use is a fraction of 1. Network traffic is in bytes/s, as the sum of both directions.
SERIES = tuple(metric.value for metric in HOST_METRICS)
_COLUMNS = 1 + len(SERIES)
# Maximum number of samples per node, with room for ten minutes of samples even if a node reports more often.
_MOST = 64


class HostMinutes:
    """Stores samples of host metrics by node. Not thread-safe."""

    def __init__(self) -> None:
        self._samples: dict[str, array[float]] = {}

    def put(self, node: str, live: Live) -> None:
        """Add a sample of a node if it is later than the previous sample."""
        samples = self._samples.setdefault(node, array("d"))
        if samples and not samples[-_COLUMNS] < live.at_s:
            if live.at_s > samples[-_COLUMNS] - KEPT_S:
                return
            del samples[:]  # the node's clock was set back
        samples.extend((live.at_s, *read_host_metrics(live.host)))
        old = max(0, len(samples) // _COLUMNS - _MOST)
        while samples[old * _COLUMNS] <= live.at_s - KEPT_S:
            old += 1
        del samples[: old * _COLUMNS]

    def keep(self, nodes: Collection[str]) -> None:
        """Drop the samples of all other nodes."""
        self._samples = {node: samples for node, samples in self._samples.items() if node in nodes}

    def of(self, node: str, since_s: float) -> NodeMinutes | None:
        """Return a node's samples after `since_s`, or None if there are fewer than two."""
        samples = self._samples.get(node, array("d"))
        rows = [samples[at : at + _COLUMNS] for at in range(0, len(samples), _COLUMNS)]
        rows = [row for row in rows if row[0] > since_s]
        if len(rows) < 2:
            return None
        columns = list(zip(*rows, strict=True))
        return NodeMinutes(
            node=node,
            at_s=columns[0],
            series={
                name: tuple(None if math.isnan(value) else value for value in column)
                for name, column in zip(SERIES, columns[1:], strict=True)
                if not all(map(math.isnan, column))
            },
        )


def alone_since(job: QueuedJob, queue: Mapping[int, QueuedJob]) -> float | None:
    """Return the time since which a running job has had all of its nodes to itself, or None if it has not.

    If another job is on a node, the values of the node include that job, and the user may not see them. All
    nodes are required because values are compared across nodes, and a missing node would appear idle.
    """
    if job.state != "RUNNING" or job.start_s is None:
        return None
    since_s = float(job.start_s)
    for other in queue.values():
        waits = other.state == "PENDING"
        if other.job_id == job.job_id or waits or set(job.nodes).isdisjoint(other.nodes):
            continue
        if other.state in ALLOCATED_STATES or other.end_s is None:
            return None
        since_s = max(since_s, float(other.end_s))
    return since_s
