"""The free resources of one node at one moment.

This module does not use numpy, because the daemons do not require it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu.simulate.request import GPU_MGPU


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The free resources of one node."""

    name: str
    gpu_types: tuple[str, ...] = ()
    """Type of each GPU; "" if GPUs have no type."""
    free_mgpu: tuple[int, ...] = ()
    """Unallocated part of each GPU; 1000 is a whole GPU."""
    cpus: int
    free_cpus: int
    memory_mib: int
    free_memory_mib: int
    zone: str = ""
    up: bool = True
    """Whether the node accepts jobs."""

    def __post_init__(self) -> None:
        if len(self.gpu_types) != len(self.free_mgpu):
            raise ValueError(
                f"node {self.name}: {len(self.gpu_types)} GPU types for {len(self.free_mgpu)} GPUs"
            )
        if any(not 0 <= mgpu <= GPU_MGPU for mgpu in self.free_mgpu):
            raise ValueError(f"node {self.name}: free part of a GPU must be 0 to 1000, not {self.free_mgpu}")
        if not (0 <= self.free_cpus <= self.cpus and 0 <= self.free_memory_mib <= self.memory_mib):
            raise ValueError(f"node {self.name}: free CPUs or memory out of range: {self}")


def gpus_by_type(
    gpus: Mapping[str, int], allocated: Mapping[str, int], shared_mgpu: int = 0
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return `gpu_types` and `free_mgpu` of a node for which only sums by type are known.

    `allocated` counts whole GPUs, and `shared_mgpu` is the total of allocated shards. Slurm fills GPUs with
    shards one after another, so the shards are assigned to as few GPUs as possible. Amounts that exceed the
    node's GPUs are ignored; they occur while one job replaces another.
    """
    types: list[str] = []
    free: list[int] = []
    for gpu_type, n in sorted(gpus.items()):
        n_allocated = min(allocated.get(gpu_type, 0), n)
        types += [gpu_type] * n
        free += [0] * n_allocated + [GPU_MGPU] * (n - n_allocated)
    for index, mgpu in enumerate(free):
        taken = min(mgpu, shared_mgpu)
        free[index] -= taken
        shared_mgpu -= taken
    return tuple(types), tuple(free)
