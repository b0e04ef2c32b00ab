"""Choose the nodes of a job by interchangeable rules: baselines and the project's own rules.

Rules are pure: the same state, request and random numbers give the same choice. A rule orders the nodes. A
job for several nodes gets the first nodes in this order, and each of them takes one part of the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.placement.fragmentation import Scorer, StrandedMeasure
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.state import Mask, Nodes
from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.simulate.jobs import ResourceRequest


@dataclass(frozen=True, slots=True)
class NodeShare:
    """One node's part of a job."""

    node: int
    devices: tuple[int, ...]


class PlacementRule(Protocol):
    """Choose the nodes and GPUs of a job."""

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """Return `request.nodes` different nodes, or () if too few have room; `among` limits the choice."""
        ...


class MostAllocated:
    """Prefer the node with the least free GPU capacity, regardless of the job."""

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """Break ties by index; a share goes to the first GPU with enough free capacity."""
        fits = fitting(nodes, request, among)
        free = nodes.free_mgpu[fits].sum(axis=1, dtype=np.float64)
        return in_order(nodes, request, fits, free, first_device)


class LeastFragmentation:
    """Prefer the node where the number of stranded GPUs is expected to grow least.

    This is fragmentation gradient descent (see `fragmentation`). With our measure (FED), ties are broken by
    the resources left over on the node. With FGD's measure, the first node is chosen, since the paper does
    not specify how ties are broken. With `whole_last`, a node with no GPU in use is chosen only if the job
    fits on no other node. The measure considers only the next job, but a whole node is easier to keep free
    than to free again.
    """

    def __init__(
        self, mix: Mix, measure: StrandedMeasure = StrandedMeasure.FED, *, whole_last: bool = False
    ) -> None:
        self._scorer = Scorer(mix, measure)
        self._fullest_first, self._whole_last = measure is StrandedMeasure.FED, whole_last

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """Order the nodes by growth, then by fullness, then by index."""
        best = self._scorer.best(nodes, request)
        rooms = np.isfinite(best.increase_mgpu)
        fits = np.flatnonzero(rooms if among is None else rooms & among)
        if len(fits) < request.nodes:
            return ()
        if self._whole_last and request.mgpu:
            is_whole = nodes.free_gpus[fits] == nodes.n_gpus[fits]
            others = fits[~is_whole | (nodes.n_gpus[fits] <= request.gpus)]
            fits = others if len(others) >= request.nodes else fits
        increase = best.increase_mgpu[fits]
        if request.nodes == 1:
            fits = fits[increase == increase.min()]
            first = fits[[int(left_over(nodes, fits).argmin())]] if self._fullest_first else fits[:1]
        else:
            keys = (left_over(nodes, fits), increase) if self._fullest_first else (increase,)
            first = fits[np.lexsort(keys)[: request.nodes]]
        return tuple(
            NodeShare(node, (int(best.device[node]),))
            if request.share_mgpu
            else NodeShare(node, first_whole(nodes, node, request))
            for node in first.tolist()
        )


def left_over(nodes: Nodes, at: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return, for each node, the mean of its free CPUs and GPUs as fractions of the largest node's totals."""
    cpus = nodes.free_cpus[at] / max(int(nodes.cpus.max(initial=0)), 1)
    gpus = nodes.free_mgpu[at].sum(axis=1) / (max(int(nodes.n_gpus.max(initial=0)), 1) * GPU_MGPU)
    mean: NDArray[np.float64] = (cpus + gpus) / 2
    return mean


def first_whole(nodes: Nodes, node: int, request: ResourceRequest) -> tuple[int, ...]:
    """Return the first completely free GPUs of a node, as many as the request needs."""
    usable = nodes.usable_mgpu(request.gpu_type)[node]
    return tuple(np.flatnonzero(usable == GPU_MGPU)[: request.gpus].tolist())


def first_device(nodes: Nodes, node: int, request: ResourceRequest) -> int:
    """Return the node's first GPU with room for the share, which is also Slurm's choice."""
    return int((nodes.usable_mgpu(request.gpu_type)[node] >= request.share_mgpu).argmax())


def fitting(nodes: Nodes, request: ResourceRequest, among: Mask | None) -> NDArray[np.intp]:
    """Return the nodes with room for one part of the request; `among` limits the choice."""
    fits = nodes.fits(request)
    return np.flatnonzero(fits if among is None else fits & among)


def in_order(
    nodes: Nodes,
    request: ResourceRequest,
    fits: NDArray[np.intp],
    key: NDArray[np.float64],
    device: Callable[[Nodes, int, ResourceRequest], int],
) -> tuple[NodeShare, ...]:
    """Return the fitting nodes with the smallest keys, as many as the request needs."""
    if len(fits) < request.nodes:
        return ()
    order = [int(key.argmin())] if request.nodes == 1 else np.argsort(key, kind="stable")[: request.nodes]
    return tuple(
        NodeShare(
            node,
            (device(nodes, node, request),) if request.share_mgpu else first_whole(nodes, node, request),
        )
        for node in fits[order].tolist()
    )
