"""The capacity of a cluster over a period: its GPUs, CPUs and memory at each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu.database.maintenance.node_periods import UP
from slurm_gpu.reports.category import Category, Floats, Integers, Mask
from slurm_gpu.reports.placing import NodePeriod, Placing, by_node
from slurm_gpu.reports.time_bins import integrals

# Nodes that were first observed at most this long after the first node are assumed to have existed before,
# because slurm-gpudbd had just started.
FIRST_SCAN_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Spans of the period in which a node did not change; `from_s` < `to_s`, both UTC epoch seconds.

    `up` marks spans in which the node was in service, that is, not drained, down or failing. If the period
    starts before slurm-gpudbd's first observation, `assumed_to_s` is the time of that observation, and the
    nodes are assumed to have been the same before. `until_s` is the end of the period, or the time of the
    report if that is earlier.
    """

    node: Category
    server_type: Category
    zone: Category
    from_s: Floats
    to_s: Floats
    mgpu: Integers
    cpus: Integers
    memory_mib: Integers
    up: Mask
    assumed_to_s: int | None
    until_s: int

    @property
    def mgpu_s(self) -> Integers:
        """Return the mgpu × seconds of each span."""
        return self.mgpu * (self.to_s - self.from_s).astype(np.int64)

    def in_bins(self, edges_s: Floats) -> Integers:
        """Return the mgpu × seconds within each bin."""
        from_s, to_s = self.from_s.astype(np.int64), self.to_s.astype(np.int64)
        return integrals(from_s, to_s, {"there": self.mgpu}, edges_s)["there"]

    def seconds_of(self, edges_s: Floats) -> Floats:
        """Return the elapsed seconds of each bin, for calculating means; NaN for bins in the future."""
        seconds = np.diff(np.minimum(edges_s, self.until_s))
        return np.where(seconds > 0, seconds, np.nan)


def capacity_of(periods: Sequence[NodePeriod], placing: Placing, since_s: int, until_s: int) -> Capacity:
    """Return the spans of all nodes within [since_s, until_s)."""
    spans: list[tuple[NodePeriod, int, int]] = []
    first_s = min((period.from_s for period in periods), default=until_s)
    for course in by_node(periods).values():
        ends = [*(period.from_s for period in course[1:]), until_s]
        for index, (period, end_s) in enumerate(zip(course, ends, strict=True)):
            was_there = index == 0 and period.from_s <= first_s + FIRST_SCAN_S
            from_s = since_s if was_there else max(since_s, period.from_s)
            to_s = min(end_s, until_s)
            if from_s < to_s:
                spans.append((period, from_s, to_s))
    groups = [placing.groups[placing.group_at(period.node, from_s)] for period, from_s, _ in spans]
    return Capacity(
        node=Category.of(period.node for period, _, _ in spans),
        server_type=Category.of(server_type for server_type, _ in groups),
        zone=Category.of(zone for _, zone in groups),
        from_s=np.array([from_s for _, from_s, _ in spans], np.float64),
        to_s=np.array([to_s for _, _, to_s in spans], np.float64),
        mgpu=np.array([1000 * period.gpus for period, _, _ in spans], np.int64),
        cpus=np.array([period.cpus for period, _, _ in spans], np.int64),
        memory_mib=np.array([period.memory_mib for period, _, _ in spans], np.int64),
        up=np.array([period.state == UP for period, _, _ in spans], np.bool_),
        assumed_to_s=first_s if spans and since_s < first_s else None,
        until_s=until_s,
    )
