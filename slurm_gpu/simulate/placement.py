"""Placement of a job on the nodes with room for it: the protocol, and Slurm's default."""

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
    """A pure choice of nodes and GPUs: the same state and request always give the same answer."""

    def choose(self, state: ModelState, request: ResourceRequest, fitting: Nodes) -> Sequence[int] | Nodes:
        """Return `request.nodes` of the fitting nodes (ascending, at least as many); empty if it must wait.

        For a request for one zone, each fitting node has enough others in its zone.
        """
        ...

    def devices(self, state: ModelState, node: int, request: ResourceRequest) -> tuple[int, ...]:
        """Return the GPUs to use on a node with room for the request."""
        ...


def first_devices(free_mgpu: Sequence[int], request: ResourceRequest) -> tuple[int, ...]:
    """Return the first whole GPUs; for a share, the GPU with the least sufficient room."""
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
    """Lightest nodes first, then the order of the configuration, as in Slurm."""

    def choose(self, state: ModelState, request: ResourceRequest, fitting: Nodes) -> Nodes:
        """Return the first of the lightest nodes, within the zone of the first one."""
        weights = state.weight[fitting]
        if weights[0] != weights[-1] or weights.min() != weights.max():
            fitting = fitting[np.argsort(weights, kind="stable")]
        if request.one_zone:
            fitting = fitting[state.zone[fitting] == state.zone[fitting[0]]]
        return fitting[: request.nodes]

    def devices(self, state: ModelState, node: int, request: ResourceRequest) -> tuple[int, ...]:
        """Return the first free GPUs."""
        return first_devices(state.devices[node], request)
