"""Rules by which a job's nodes are chosen: one protocol, from what nobody should do to what we do.

All are pure: the same state, request and random numbers give the same answer. A job for several nodes gets
the first so many of what its rule puts in order, each node for one part.
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
    """Chooses a job's nodes and GPUs."""

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """`request.nodes` different nodes (of `among`, if it is given); none at all where that is too few."""
        ...


class MostAllocated:
    """The node of which least is free of its GPUs, whatever the job."""

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """Ties by index; a share goes to the first GPU that has enough."""
        fits = fitting(nodes, request, among)
        free = nodes.free_mgpu[fits].sum(axis=1, dtype=np.float64)
        return in_order(nodes, request, fits, free, first_device)


class LeastFragmentation:
    """Where the expected stranded GPUs grow least: fragmentation gradient descent.

    By our measure, nodes that are equal in that come in the order of what is left over on them; by FGD's own
    the first of them is taken, as its authors say nothing of it. With `whole_last` nodes of which no GPU is
    in use are broken into only where no other will do: the measure knows the next job alone, and where jobs
    come and go a whole node is harder to have back than to keep.
    """

    def __init__(
        self, mix: Mix, measure: StrandedMeasure = StrandedMeasure.FED, *, whole_last: bool = False
    ) -> None:
        self._scorer = Scorer(mix, measure)
        self._fullest_first, self._whole_last = measure is StrandedMeasure.FED, whole_last

    def choose(
        self, nodes: Nodes, request: ResourceRequest, among: Mask | None = None
    ) -> tuple[NodeShare, ...]:
        """The least, then the fullest, then by index."""
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
    """What is free of these nodes: the mean of CPUs and GPUs, each as a part of what a node has at most."""
    cpus = nodes.free_cpus[at] / max(int(nodes.cpus.max(initial=0)), 1)
    gpus = nodes.free_mgpu[at].sum(axis=1) / (max(int(nodes.n_gpus.max(initial=0)), 1) * GPU_MGPU)
    mean: NDArray[np.float64] = (cpus + gpus) / 2
    return mean


def first_whole(nodes: Nodes, node: int, request: ResourceRequest) -> tuple[int, ...]:
    """The first GPUs of a node that are free as a whole, as many as a request has."""
    usable = nodes.usable_mgpu(request.gpu_type)[node]
    return tuple(np.flatnonzero(usable == GPU_MGPU)[: request.gpus].tolist())


def first_device(nodes: Nodes, node: int, request: ResourceRequest) -> int:
    """The first GPU of a node that has room for a share: as Slurm does."""
    return int((nodes.usable_mgpu(request.gpu_type)[node] >= request.share_mgpu).argmax())


def fitting(nodes: Nodes, request: ResourceRequest, among: Mask | None) -> NDArray[np.intp]:
    """Return the nodes (of `among`) that have room."""
    fits = nodes.fits(request)
    return np.flatnonzero(fits if among is None else fits & among)


def in_order(
    nodes: Nodes,
    request: ResourceRequest,
    fits: NDArray[np.intp],
    key: NDArray[np.float64],
    device: Callable[[Nodes, int, ResourceRequest], int],
) -> tuple[NodeShare, ...]:
    """The fitting nodes with the smallest keys."""
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
