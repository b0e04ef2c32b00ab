"""Where a job goes among the nodes that have room for it: the protocol, and what Slurm does by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.state import ModelState

Nodes = NDArray[np.intp]


class PlacementChoice(Protocol):
    """A pure choice: the same state and request always give the same answer."""

    def choose(self, state: ModelState, request: ResourceRequest, fitting: Nodes) -> Sequence[int] | Nodes:
        """`request.nodes` of the fitting nodes (ascending, at least so many); none at all to let it wait.

        Of a request for one zone, only nodes that have enough others in theirs are among them.
        """
        ...

    def devices(self, state: ModelState, node: int, request: ResourceRequest) -> tuple[int, ...]:
        """The GPUs of a node that has room for the request."""
        ...


def first_devices(free_mgpu: Sequence[int], request: ResourceRequest) -> tuple[int, ...]:
    """The first whole GPUs; for a share, the GPU with the least room that is enough."""
    if request.gpus:
        found: list[int] = []
        for index, mgpu in enumerate(free_mgpu):
            if mgpu == GPU_MGPU:
                found.append(index)
                if len(found) == request.gpus:
                    break
        return tuple(found)
    if request.share_mgpu:
        enough = [(mgpu, index) for index, mgpu in enumerate(free_mgpu) if mgpu >= request.share_mgpu]
        return (min(enough)[1],)
    return ()


class FirstFit:
    """The lightest nodes first, then in the order of the configuration: as Slurm does."""

    def choose(self, state: ModelState, request: ResourceRequest, fitting: Nodes) -> Nodes:
        """The first of the lightest, in the zone of the very first."""
        weights = state.weight[fitting]
        if weights[0] != weights[-1] or weights.min() != weights.max():
            fitting = fitting[np.argsort(weights, kind="stable")]
        if request.one_zone:
            fitting = fitting[state.zone[fitting] == state.zone[fitting[0]]]
        return fitting[: request.nodes]

    def devices(self, state: ModelState, node: int, request: ResourceRequest) -> tuple[int, ...]:
        """The first that are free."""
        return first_devices(state.devices[node], request)
