"""The free resources of all nodes of a cluster at one moment, built from `NodeState` and stored as arrays.

Requests are `simulate.jobs.ResourceRequest`, as in the model of a cluster. Nodes are addressed by index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.placement.node import NodeState as NodeState
from slurm_gpu.simulate.request import GPU_MGPU, ResourceRequest

Mask = NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class RunningUntil:
    """The number of running jobs on each of n nodes, and the latest end of these jobs; 0 for idle nodes."""

    now_s: float
    until_s: NDArray[np.float64]
    """(n,): time at which the last job of each node reaches its time limit; inf without a limit."""
    n_jobs: NDArray[np.int64]
    """(n,): number of running jobs on each node."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """All n nodes of a cluster at one moment, immutable; g is the largest number of GPUs on a node."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    """GPU types; `gpu_type` holds indices into it."""
    gpu_type: NDArray[np.int16]
    """(n, g): type of each GPU; -1 if the node has fewer GPUs."""
    free_mgpu: NDArray[np.int32]
    """(n, g): free part of each GPU, in mgpu; 0 if the node has fewer GPUs."""
    cpus: NDArray[np.int64]
    free_cpus: NDArray[np.int64]
    memory_mib: NDArray[np.int64]
    free_memory_mib: NDArray[np.int64]
    zones: tuple[str, ...]
    """Zone names; `zone` holds indices into it."""
    zone: NDArray[np.int32]
    up: Mask
    running: RunningUntil | None = None
    """None if the jobs are unknown; `take` and `give_back` do not change this value."""

    @classmethod
    def of(cls, nodes: Iterable[NodeState]) -> Nodes:
        """Build the arrays of these nodes, in order; raise ValueError for a duplicate name."""
        nodes = list(nodes)
        names = tuple(node.name for node in nodes)
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise ValueError(f"duplicate node {twice}")
        types = tuple(sorted({gpu_type for node in nodes for gpu_type in node.gpu_types}))
        zones = tuple(sorted({node.zone for node in nodes}))
        type_codes = {gpu_type: code for code, gpu_type in enumerate(types)}
        zone_codes = {zone: code for code, zone in enumerate(zones)}
        shape = (len(nodes), max((len(node.gpu_types) for node in nodes), default=0))
        gpu_type = np.full(shape, -1, dtype=np.int16)
        free_mgpu = np.zeros(shape, dtype=np.int32)
        for index, node in enumerate(nodes):
            n_gpus = len(node.gpu_types)
            gpu_type[index, :n_gpus] = [type_codes[one] for one in node.gpu_types]
            free_mgpu[index, :n_gpus] = node.free_mgpu

        def column(values: Iterable[int]) -> NDArray[np.int64]:
            return _frozen(np.fromiter(values, dtype=np.int64, count=len(nodes)))

        return cls(
            names=names,
            types=types,
            gpu_type=_frozen(gpu_type),
            free_mgpu=_frozen(free_mgpu),
            cpus=column(node.cpus for node in nodes),
            free_cpus=column(node.free_cpus for node in nodes),
            memory_mib=column(node.memory_mib for node in nodes),
            free_memory_mib=column(node.free_memory_mib for node in nodes),
            zones=zones,
            zone=_frozen(np.array([zone_codes[node.zone] for node in nodes], dtype=np.int32)),
            up=_frozen(np.array([node.up for node in nodes], dtype=np.bool_)),
        )

    def __len__(self) -> int:
        return len(self.names)

    def is_same_cluster(self, other: Nodes) -> bool:
        """Return whether both states have the same nodes, regardless of free resources."""
        return self.gpu_type is other.gpu_type or (
            (self.names, self.types) == (other.names, other.types)
            and np.array_equal(self.gpu_type, other.gpu_type)
            and np.array_equal(self.cpus, other.cpus)
            and np.array_equal(self.memory_mib, other.memory_mib)
        )

    @cached_property
    def n_gpus(self) -> NDArray[np.int64]:
        """(n,): number of GPUs of each node."""
        return _frozen(np.count_nonzero(self.gpu_type >= 0, axis=1).astype(np.int64))

    @cached_property
    def free_gpus(self) -> NDArray[np.int64]:
        """(n,): number of completely free GPUs of each node."""
        return _frozen(np.count_nonzero(self.free_mgpu == GPU_MGPU, axis=1).astype(np.int64))

    def usable_mgpu(self, gpu_type: str = "") -> NDArray[np.int32]:
        """(n, g): free part of each GPU; if a type is given, 0 for GPUs of all other types."""
        if not gpu_type:
            return self.free_mgpu
        if gpu_type not in self.types:
            return np.zeros_like(self.free_mgpu)
        return np.where(self.gpu_type == self.types.index(gpu_type), self.free_mgpu, 0)

    def fits(self, request: ResourceRequest) -> Mask:
        """(n,): whether each node accepts jobs and has room for one node's part of a request."""
        mask = self.up & (self.free_cpus >= request.cpus) & (self.free_memory_mib >= request.memory_mib)
        if request.gpus:
            whole = self.usable_mgpu(request.gpu_type) == GPU_MGPU
            mask &= np.count_nonzero(whole, axis=1) >= request.gpus
        elif request.share_mgpu:
            mask &= (self.usable_mgpu(request.gpu_type) >= request.share_mgpu).any(axis=1)
        return mask

    def take(self, node: int, request: ResourceRequest, devices: Sequence[int]) -> Nodes:
        """Return the state after allocating one node's part of a request.

        Raise ValueError if that part does not fit.
        """
        return self._changed(node, request, devices, -1)

    def give_back(self, node: int, request: ResourceRequest, devices: Sequence[int]) -> Nodes:
        """Return the state after releasing one node's part of a request.

        Raise ValueError if that part cannot have been allocated.
        """
        return self._changed(node, request, devices, 1)

    def _changed(self, node: int, request: ResourceRequest, devices: Sequence[int], sign: int) -> Nodes:
        n_needed = request.gpus or (1 if request.share_mgpu else 0)
        if len(set(devices)) != n_needed or len(devices) != n_needed:
            raise ValueError(f"{request} needs {n_needed} different GPUs of a node, not {list(devices)}")
        if any(not 0 <= device < self.n_gpus[node] for device in devices):
            raise ValueError(f"node {self.names[node]} has no GPUs {list(devices)}")
        free_mgpu, cpus, memory = self.free_mgpu.copy(), self.free_cpus.copy(), self.free_memory_mib.copy()
        free_mgpu[node, list(devices)] += sign * (request.share_mgpu or GPU_MGPU)
        cpus[node] += sign * request.cpus
        memory[node] += sign * request.memory_mib
        after = free_mgpu[node]
        if (
            (after < 0).any()
            or (after > GPU_MGPU).any()
            or not 0 <= cpus[node] <= self.cpus[node]
            or not 0 <= memory[node] <= self.memory_mib[node]
        ):
            what = "has no room for" if sign < 0 else "cannot have allocated"
            raise ValueError(f"node {self.names[node]} {what} {request} on its GPUs {list(devices)}")
        return replace(
            self,
            free_mgpu=_frozen(free_mgpu),
            free_cpus=_frozen(cpus),
            free_memory_mib=_frozen(memory),
        )


def _frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    array.setflags(write=False)
    return array
