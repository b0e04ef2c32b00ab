"""Define the protocol for placing a job on nodes with room for it, and Slurm's default placement."""

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
    """A choice of nodes and GPUs that depends only on the state and the request."""

    def choose(self, state: ModelState, request: ResourceRequest, fitting: Nodes) -> Sequence[int] | Nodes:
        """Return the nodes for a request, or none if it must wait.

        `fitting` contains at least `request.nodes` nodes in ascending order. If the request requires one
        zone, each node's zone contains enough of these nodes.
        """
        ...

    def devices(self, state: ModelState, node: int, request: ResourceRequest) -> tuple[int, ...]:
        """Return the GPUs to use on a node with room for the request."""
        ...


def first_devices(free_mgpu: Sequence[int], request: ResourceRequest) -> tuple[int, ...]:
    """Return the first free whole GPUs or, for a share, the GPU with the smallest sufficient free part."""
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
    """Slurm's default: nodes by ascending weight, then in the order of the configuration."""

    def choose(self, state: ModelState, request: ResourceRequest, fitting: Nodes) -> Nodes:
        """Return the nodes with the lowest weight, all in the first node's zone if one zone is required."""
        weights = state.weight[fitting]
        if weights[0] != weights[-1] or weights.min() != weights.max():
            fitting = fitting[np.argsort(weights, kind="stable")]
        if request.one_zone:
            fitting = fitting[state.zone[fitting] == state.zone[fitting[0]]]
        return fitting[: request.nodes]

    def devices(self, state: ModelState, node: int, request: ResourceRequest) -> tuple[int, ...]:
        """Return the first free GPUs."""
        return first_devices(state.devices[node], request)
