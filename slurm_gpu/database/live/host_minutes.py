"""The last ten minutes of nodes as a whole: how busy their CPUs were, and what their networks carried.

A diagnosis asks whether a node loads, writes or sends while its GPUs wait. Nodes tell each ten seconds how
they do; kept is that much of it, in memory.
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

KEPT_S = 600.0
"""As long as a window."""
SERIES = tuple(metric.value for metric in HOST_METRICS)
"""Fractions of 1, and bytes/s of both directions together."""
_COLUMNS = 1 + len(SERIES)
_MOST = 64
"""Values of a node: those of ten minutes, and a few where it tells more often."""


class HostMinutes:
    """Of each node, by name. Not for several threads at once."""

    def __init__(self) -> None:
        self._told: dict[str, array[float]] = {}

    def put(self, node: str, live: Live) -> None:
        """A node told how it does, later than what it told before."""
        told = self._told.setdefault(node, array("d"))
        if told and not told[-_COLUMNS] < live.at_s:
            if live.at_s > told[-_COLUMNS] - KEPT_S:
                return
            del told[:]  # its clock was set back
        told.extend((live.at_s, *read_host_metrics(live.host)))
        old = max(0, len(told) // _COLUMNS - _MOST)
        while told[old * _COLUMNS] <= live.at_s - KEPT_S:
            old += 1
        del told[: old * _COLUMNS]

    def keep(self, nodes: Collection[str]) -> None:
        """Let go of all others."""
        self._told = {node: told for node, told in self._told.items() if node in nodes}

    def of(self, node: str, since_s: float) -> NodeMinutes | None:
        """What was told since then, at least twice."""
        told = self._told.get(node, array("d"))
        rows = [told[at : at + _COLUMNS] for at in range(0, len(told), _COLUMNS)]
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
    """Since when a job that runs has been alone on all of its nodes; None where it is not.

    What a node does as a whole is not this job's, and not for its user to see, where another one is on it;
    and nodes are compared: of some of them alone it would say that the others do nothing.
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
