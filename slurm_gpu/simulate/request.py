"""What a job asks for, and the unit in which GPUs are counted; without numpy, for daemons too."""

from __future__ import annotations

from dataclasses import dataclass

GPU_MGPU = 1000
"""One whole GPU, in thousandths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """What a job needs on each of its nodes, all of which are alike."""

    nodes: int = 1
    gpus: int = 0
    """Whole GPUs."""
    share_mgpu: int = 0
    """Thousandths of one GPU, in place of whole ones."""
    cpus: int = 1
    memory_mib: int = 0
    gpu_type: str = ""
    """"" is any."""
    one_zone: bool = False
    """Whether all its nodes have to be in one zone, as long as `simulate` lets it wait for that."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or min(self.gpus, self.cpus, self.memory_mib) < 0:
            raise ValueError(f"a request needs at least one node, and nothing below 0: {self}")
        if not 0 <= self.share_mgpu < GPU_MGPU or (self.share_mgpu and self.gpus):
            raise ValueError(f"a share is of one GPU, below 1000, and without whole ones: {self}")

    @property
    def mgpu(self) -> int:
        """In all, over its nodes."""
        return self.nodes * (self.gpus * GPU_MGPU + self.share_mgpu)
