"""Define the resource request of a job, and the unit for GPUs.

This module does not import numpy, since daemons use it.
"""

from __future__ import annotations

from dataclasses import dataclass

# One whole GPU in mgpu.
GPU_MGPU = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """The resources that a job requests on each of its nodes; the request is the same for all nodes."""

    nodes: int = 1
    gpus: int = 0
    """Whole GPUs per node."""
    share_mgpu: int = 0
    """Thousandths of one GPU per node, instead of whole GPUs."""
    cpus: int = 1
    memory_mib: int = 0
    gpu_type: str = ""
    """The required GPU type; empty for any type."""
    one_zone: bool = False
    """Whether all nodes must be in one zone, until `simulate` drops the requirement."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or min(self.gpus, self.cpus, self.memory_mib) < 0:
            raise ValueError(f"a request must have at least one node and no negative amounts: {self}")
        if not 0 <= self.share_mgpu < GPU_MGPU or (self.share_mgpu and self.gpus):
            raise ValueError(f"a share must be below 1000 mgpu and exclude whole GPUs: {self}")

    @property
    def mgpu(self) -> int:
        """Total thousandths of a GPU over all nodes."""
        return self.nodes * (self.gpus * GPU_MGPU + self.share_mgpu)
