"""Describe a modelled cluster. Nodes and partitions are addressed by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.request import GPU_MGPU as GPU_MGPU


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNode:
    """One node of a modelled cluster."""

    name: str
    gpus: int = 0
    cpus: int
    memory_mib: int
    gpu_type: str = ""
    zone: str = ""
    weight: int = 1
    """Nodes with a lower weight are used first, as in Slurm."""


@dataclass(frozen=True, slots=True)
class ModelPartition:
    """A named set of nodes; partitions may share nodes."""

    name: str
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outage:
    """A period in which a node accepts no new jobs while running jobs continue, as on a drained node."""

    node: int
    from_s: float
    to_s: float = math.inf


@dataclass(frozen=True)
class ModelCluster:
    """Nodes, partitions and outages; raise ValueError if they are inconsistent."""

    nodes: Sequence[ModelNode]
    partitions: Sequence[ModelPartition]
    outages: Sequence[Outage] = field(default=())

    def __post_init__(self) -> None:
        for node in self.nodes:
            if min(node.gpus, node.cpus, node.memory_mib) < 0:
                raise ValueError(f"node {node.name} has a negative number of GPUs, CPUs or MiB: {node}")
        for partition in self.partitions:
            for index in partition.nodes:
                self._check_index(index, f"partition {partition.name}")
        for outage in self.outages:
            self._check_index(outage.node, "an outage")
            if not outage.from_s < outage.to_s:
                raise ValueError(f"an outage must end after it starts: {outage}")

    def _check_index(self, index: int, where: str) -> None:
        if not 0 <= index < len(self.nodes):
            raise ValueError(
                f"{where} names node {index}, but there are {len(self.nodes)} nodes, numbered from 0"
            )

    @cached_property
    def total_gpus(self) -> int:
        """Total number of GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    def room(self, partition: int, gpu_type: str = "") -> NDArray[np.bool_]:
        """Return a mask of the nodes for jobs of a partition; `gpu_type` excludes nodes of other types."""
        mask = np.zeros(len(self.nodes), dtype=np.bool_)
        mask[list(self.partitions[partition].nodes)] = True
        if gpu_type:
            mask &= np.array([node.gpu_type == gpu_type for node in self.nodes], dtype=np.bool_)
        return mask
