"""What one node has free, at one moment; without numpy, for daemons too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_gpu.simulate.request import GPU_MGPU


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node at one moment."""

    name: str
    gpu_types: tuple[str, ...] = ()
    """Of each of its GPUs; "" where GPUs have no type."""
    free_mgpu: tuple[int, ...] = ()
    """Of each of its GPUs, what no job holds; 1000 is a whole one."""
    cpus: int
    free_cpus: int
    memory_mib: int
    free_memory_mib: int
    zone: str = ""
    up: bool = True
    """Whether it takes jobs."""

    def __post_init__(self) -> None:
        if len(self.gpu_types) != len(self.free_mgpu):
            raise ValueError(
                f"node {self.name} has {len(self.gpu_types)} types of GPUs for {len(self.free_mgpu)} GPUs"
            )
        if any(not 0 <= mgpu <= GPU_MGPU for mgpu in self.free_mgpu):
            raise ValueError(f"node {self.name}: a GPU's free part is 0 to 1000, not {self.free_mgpu}")
        if not (0 <= self.free_cpus <= self.cpus and 0 <= self.free_memory_mib <= self.memory_mib):
            raise ValueError(f"node {self.name} has more free than there is, or less than nothing: {self}")


def gpus_by_type(
    gpus: Mapping[str, int], held: Mapping[str, int], shared_mgpu: int = 0
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """`gpu_types` and `free_mgpu` of a node of which only sums by type are known.

    `held`: whole GPUs; `shared_mgpu`: what shards take in all. Slurm fills one GPU with shards after the
    other, so they are taken to lie on the fewest of those that nobody holds whole. What exceeds the node's
    GPUs, as it may while two jobs change places, is left out.
    """
    types: list[str] = []
    free: list[int] = []
    for gpu_type, n in sorted(gpus.items()):
        n_held = min(held.get(gpu_type, 0), n)
        types += [gpu_type] * n
        free += [0] * n_held + [GPU_MGPU] * (n - n_held)
    for index, mgpu in enumerate(free):
        taken = min(mgpu, shared_mgpu)
        free[index] -= taken
        shared_mgpu -= taken
    return tuple(types), tuple(free)
