"""In which order nodes should be filled by small jobs, of which it is not known which comes next.

It is what node weights can say: one order for all jobs. Nodes that are alike have one rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.placement.choice import left_over
from slurm_gpu.placement.fragmentation import Floats, Measure
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.scorer import Scorer
from slurm_gpu.placement.state import Nodes
from slurm_gpu.simulate.cluster import GPU_MGPU

Ranks = NDArray[np.int64]
_DECIMALS = 6


def fullest_first(nodes: Nodes) -> Ranks:
    """(n,): 0 for nodes with the least of their GPUs free, and so on; MostAllocated."""
    return np.unique(nodes.free_mgpu.sum(axis=1), return_inverse=True)[1].astype(np.int64)


class SmallJobOrder:
    """Ranks by what the next small job would strand, for one mix; it remembers what did not change."""

    def __init__(self, mix: Mix, measure: Measure = Measure.FED) -> None:
        self._scorer = Scorer(mix, measure)
        self._small = [
            (request, popularity)
            for request, popularity in zip(mix.requests, mix.popularity, strict=True)
            if request.mgpu <= GPU_MGPU
        ]

    def expected_mgpu(self, nodes: Nodes) -> Floats:
        """(n,): what the next job of one GPU, or a part of one, is expected to strand on each node.

        Of the classes of the mix that have room there, by their popularity; inf where none has.
        """
        total, weight = np.zeros(len(nodes)), np.zeros(len(nodes))
        for request, popularity in self._small:
            increase = self._scorer.best(nodes, request).increase_mgpu
            fits = np.isfinite(increase)
            total[fits] += popularity * increase[fits]
            weight[fits] += popularity
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.inf)

    def ranks(self, nodes: Nodes) -> Ranks:
        """(n,): 0 for nodes where it strands least, of equals those with the least left over; full ones last.

        A mix without small jobs tells nothing, so that all are full: by what is left over alone.
        """
        keys = np.stack((self.expected_mgpu(nodes), left_over(nodes, np.arange(len(nodes)))))
        return np.unique(np.round(keys, _DECIMALS), axis=1, return_inverse=True)[1].astype(np.int64).ravel()
