"""Track the free and the allocated resources of each node; only this module changes allocations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.cluster import GPU_MGPU, ModelCluster
from slurm_gpu.simulate.jobs import ResourceRequest

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ModelAllocation:
    """The resources of one running job."""

    job: int
    request: ResourceRequest
    nodes: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]
    """GPU indices for each of `nodes`."""
    until_s: float
    """The time at which the job reaches its time limit."""

    def devices_on(self, node: int) -> tuple[int, ...]:
        """Return the job's GPUs on one of its nodes."""
        return self.devices[self.nodes.index(node)]


class FreeResources:
    """The free resources of one node, now or later; `devices` contains the free mgpu of each GPU."""

    __slots__ = ("cpus", "devices", "memory_mib")

    def __init__(self, devices: Sequence[int], cpus: int, memory_mib: int) -> None:
        self.devices, self.cpus, self.memory_mib = list(devices), cpus, memory_mib

    def fits(self, request: ResourceRequest) -> bool:
        """Return whether this node has room for one node's part of a request."""
        if request.cpus > self.cpus or request.memory_mib > self.memory_mib:
            return False
        if request.gpus:
            return self.devices.count(GPU_MGPU) >= request.gpus
        return not request.share_mgpu or max(self.devices, default=0) >= request.share_mgpu

    def give_back(self, request: ResourceRequest, devices: Sequence[int]) -> None:
        """Release one node's part of a job."""
        self._change(request, devices, 1)

    def take(self, request: ResourceRequest, devices: Sequence[int]) -> None:
        """Allocate one node's part of a job."""
        self._change(request, devices, -1)

    def _change(self, request: ResourceRequest, devices: Sequence[int], sign: int) -> None:
        self.cpus += sign * request.cpus
        self.memory_mib += sign * request.memory_mib
        amount = sign * (request.share_mgpu or GPU_MGPU)
        for device in devices:
            self.devices[device] += amount


class ModelState:
    """The state of a cluster during a simulation.

    Placements read its arrays, which have one element per node: completely free GPUs, largest free part of a
    GPU (at most 1000 mgpu), free CPUs, free memory, and whether the node accepts jobs.
    """

    def __init__(self, cluster: ModelCluster) -> None:
        nodes = cluster.nodes
        self.cluster = cluster
        self.devices = [[GPU_MGPU] * node.gpus for node in nodes]
        self.free_gpus = np.array([node.gpus for node in nodes], dtype=np.int32)
        self.largest_mgpu = np.array([GPU_MGPU if node.gpus else 0 for node in nodes], dtype=np.int32)
        self.free_cpus = np.array([node.cpus for node in nodes], dtype=np.int64)
        self.free_memory_mib = np.array([node.memory_mib for node in nodes], dtype=np.int64)
        self.weight = np.array([node.weight for node in nodes], dtype=np.int64)
        self.open = np.ones(len(nodes), dtype=np.bool_)
        self.on_node: list[dict[int, ModelAllocation]] = [{} for _ in nodes]
        """Allocations by job, for each node."""
        self.running: dict[int, ModelAllocation] = {}
        self.changed = np.zeros(len(nodes), dtype=np.int64)
        """The tick of each node's last change."""
        self.tick = 0
        """Incremented with every change."""
        self.now_s = 0.0
        """Current time, set by the model."""
        self.freed: set[int] = set()
        """Nodes with more room than before; the reader clears the set."""
        codes = {zone: code for code, zone in enumerate(dict.fromkeys(node.zone for node in nodes))}
        self.zone = np.array([codes[node.zone] for node in nodes], dtype=np.intp)
        """Zone number of each node; all nodes without a zone share one number."""
        self._closed_times = [0] * len(nodes)
        self._rooms: dict[tuple[int, str], Mask] = {}

    def room(self, partition: int, gpu_type: str) -> Mask:
        """Return a mask of the nodes for jobs of a partition; callers must not modify it."""
        key = (partition, gpu_type)
        mask = self._rooms.get(key)
        if mask is None:
            mask = self._rooms[key] = self.cluster.room(partition, gpu_type)
        return mask

    def fits(self, request: ResourceRequest, room: Mask) -> Mask:
        """Return a mask of the nodes in `room` on which one node's part of a request fits now."""
        mask = room & self.open & (self.free_cpus >= request.cpus)
        if request.gpus:
            mask &= self.free_gpus >= request.gpus
        elif request.share_mgpu:
            mask &= self.largest_mgpu >= request.share_mgpu
        if request.memory_mib:
            mask &= self.free_memory_mib >= request.memory_mib
        return mask

    def together(self, request: ResourceRequest, fit: Mask) -> Mask:
        """Return the nodes that fit the job and whose zone has enough such nodes.

        Return all nodes that fit if the job does not require one zone.
        """
        if not request.one_zone or request.nodes == 1:
            return fit
        in_zone = np.bincount(self.zone[fit], minlength=int(self.zone.max(initial=0)) + 1)
        return fit & (in_zone >= request.nodes)[self.zone]

    def free(self, node: int) -> FreeResources:
        """Return a copy of the free resources of a node."""
        return FreeResources(self.devices[node], int(self.free_cpus[node]), int(self.free_memory_mib[node]))

    def start(
        self,
        job: int,
        request: ResourceRequest,
        nodes: Sequence[int],
        devices: Sequence[tuple[int, ...]],
        until_s: float,
    ) -> ModelAllocation:
        """Allocate these nodes and GPUs to a job; raise ValueError if they are not free."""
        if len(nodes) != request.nodes or len(set(nodes)) != len(nodes):
            raise ValueError(f"job {job} needs {request.nodes} different nodes, not {list(nodes)}")
        for node, indices in zip(nodes, devices, strict=True):
            self._check(job, request, node, indices)
        allocation = ModelAllocation(job, request, tuple(nodes), tuple(devices), until_s)
        for node, indices in zip(nodes, devices, strict=True):
            self._change(node, request, indices, -1)
            self.on_node[node][job] = allocation
        self.running[job] = allocation
        return allocation

    def end(self, job: int) -> ModelAllocation:
        """Release the allocation of a job."""
        allocation = self.running.pop(job)
        for node, indices in zip(allocation.nodes, allocation.devices, strict=True):
            self._change(node, allocation.request, indices, 1)
            del self.on_node[node][job]
        self.freed.update(allocation.nodes)
        return allocation

    def close(self, node: int) -> None:
        """Stop accepting jobs on a node; outages may overlap."""
        self._closed_times[node] += 1
        self._set_open(node)

    def reopen(self, node: int) -> None:
        """End one outage of a node."""
        self._closed_times[node] -= 1
        self._set_open(node)
        self.freed.add(node)

    def _set_open(self, node: int) -> None:
        self.open[node] = self._closed_times[node] == 0
        self._touch(node)

    def _check(self, job: int, request: ResourceRequest, node: int, indices: Sequence[int]) -> None:
        needed = request.share_mgpu or GPU_MGPU
        right = len(set(indices)) == len(indices) == (request.gpus or (1 if request.share_mgpu else 0))
        free = self.devices[node]
        if (
            not right
            or not self.open[node]
            or any(free[index] < needed for index in indices)
            or self.free_cpus[node] < request.cpus
            or self.free_memory_mib[node] < request.memory_mib
        ):
            name = self.cluster.nodes[node].name
            raise ValueError(f"job {job} cannot be allocated GPUs {list(indices)} of node {name}: {request}")

    def _change(self, node: int, request: ResourceRequest, indices: Sequence[int], sign: int) -> None:
        self.free_cpus[node] += sign * request.cpus
        self.free_memory_mib[node] += sign * request.memory_mib
        if indices:
            devices = self.devices[node]
            amount = sign * (request.share_mgpu or GPU_MGPU)
            for index in indices:
                devices[index] += amount
            self.free_gpus[node] = devices.count(GPU_MGPU)
            self.largest_mgpu[node] = max(devices)
        self._touch(node)

    def _touch(self, node: int) -> None:
        self.tick += 1
        self.changed[node] = self.tick
