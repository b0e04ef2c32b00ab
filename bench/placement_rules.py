"""Define placement rules for comparison with those of slurm-gpu."""

from __future__ import annotations

import numpy as np

from slurm_gpu.placement.choice import NodeShare, first_device, fitting, in_order, left_over
from slurm_gpu.placement.state import Mask, Nodes
from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.simulate.jobs import ResourceRequest


class Random:
    """Choose among all nodes with room, and any of their GPUs with enough room."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """Choose each node and each GPU with the same probability."""
        fits = fitting(nodes, request, among)
        if len(fits) < request.nodes:
            return ()
        chosen = self._random.choice(fits, size=request.nodes, replace=False)
        return tuple(NodeShare(node, self._devices(nodes, node, request)) for node in chosen.tolist())

    def _devices(self, nodes: Nodes, node: int, request: ResourceRequest) -> tuple[int, ...]:
        n = request.gpus or (1 if request.share_mgpu else 0)
        enough = np.flatnonzero(nodes.usable_mgpu(request.gpu_type)[node] >= (request.share_mgpu or GPU_MGPU))
        return tuple(sorted(self._random.choice(enough, size=n, replace=False).tolist())) if n else ()


class BestFit:
    """Choose the node, and for a share the GPU, with the least room left."""

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """Break ties by index."""
        fits = fitting(nodes, request, among)
        return in_order(nodes, request, fits, left_over(nodes, fits), tightest_device)


class FewestCPUs:
    """Choose the suitable node with the fewest free CPUs, like Slurm's select/cons_tres without weights."""

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """Break ties by index; a share goes to the first GPU that has enough."""
        fits = fitting(nodes, request, among)
        return in_order(nodes, request, fits, nodes.free_cpus[fits].astype(np.float64), first_device)


def tightest_device(nodes: Nodes, node: int, request: ResourceRequest) -> int:
    """Return the GPU of a node with the least sufficient room for a share."""
    usable = nodes.usable_mgpu(request.gpu_type)[node]
    return int(np.where(usable >= request.share_mgpu, usable, GPU_MGPU + 1).argmin())
