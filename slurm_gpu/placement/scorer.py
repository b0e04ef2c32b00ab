"""Scores of all nodes for one request after the other, on a cluster that changes a little in between."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.placement.fragmentation import Candidates, Floats, StrandedMeasure, candidates
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.state import Nodes
from slurm_gpu.simulate.jobs import ResourceRequest


@dataclass(frozen=True, eq=False)
class Best:
    """For each node the best of the ways in which one node's part of a request can be placed there."""

    increase_mgpu: Floats
    """(n,): as in `Candidates`; inf where there is no room."""
    device: NDArray[np.intp]
    """(n,): the GPU for a share, of equally good ones that with the least free; else -1."""


class Scorer:
    """Remembers what it found for each request, and looks again only at nodes that changed since.

    It may be asked about any states one after the other; what it answers depends on none of the earlier ones.
    """

    def __init__(self, mix: Mix, measure: StrandedMeasure = StrandedMeasure.FED) -> None:
        self.mix, self.measure = mix, measure
        self._nodes: Nodes | None = None
        self._tick = 0
        self._changed = np.zeros(0, dtype=np.int64)
        """(n,): the tick of each node's last change."""
        self._known: dict[ResourceRequest, tuple[int, Best]] = {}

    def best(self, nodes: Nodes, request: ResourceRequest) -> Best:
        """How one node's part of a request is placed best on each node; holds until the next question."""
        self._see(nodes)
        request = replace(request, nodes=1, one_zone=False)
        seen, best = self._known.get(request, (-1, None))
        if best is None:
            best = Best(np.full(len(nodes), np.inf), np.full(len(nodes), -1, dtype=np.intp))
        stale = np.flatnonzero(self._changed > seen)
        if len(stale):
            best.increase_mgpu[stale] = np.inf
            best.device[stale] = -1
            _put(best, candidates(nodes, request, self.mix, self.measure, stale), nodes.free_mgpu)
        self._known[request] = self._tick, best
        return best

    def _see(self, nodes: Nodes) -> None:
        last = self._nodes
        if nodes is last:
            return
        self._nodes = nodes
        if last is None or not nodes.is_same_cluster(last):
            self._known.clear()
            self._tick = 0
            self._changed = np.zeros(len(nodes), dtype=np.int64)
            return
        differs = (
            (nodes.free_mgpu != last.free_mgpu).any(axis=1)
            | (nodes.free_cpus != last.free_cpus)
            | (nodes.free_memory_mib != last.free_memory_mib)
            | (nodes.up != last.up)
        )
        self._tick += 1
        self._changed[differs] = self._tick


def _put(best: Best, found: Candidates, free_mgpu: NDArray[np.int32]) -> None:
    """Keep the best candidate of each node."""
    free = free_mgpu[found.node, np.maximum(found.device, 0)] if free_mgpu.shape[1] else found.device
    order = np.lexsort((found.device, free, found.increase_mgpu, found.node))
    at, first = np.unique(found.node[order], return_index=True)
    best.increase_mgpu[at] = found.increase_mgpu[order][first]
    best.device[at] = found.device[order][first]
