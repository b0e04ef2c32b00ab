"""Represent the classes of a mix as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.request import GPU_MGPU, ResourceRequest


@dataclass(frozen=True, eq=False)
class Needs:
    """A mix as arrays: m classes with d distinct levels (GPU type, part of each GPU)."""

    gpu_types: tuple[str, ...]
    """(d,): GPU type of each level; "" for any type."""
    per_gpu_mgpu: NDArray[np.int32]
    """(d,): required free part of each GPU."""
    level: NDArray[np.intp]
    """(m,): index of each class's level."""
    n_gpus: NDArray[np.int64]
    """(m,): number of GPUs; 1 for a share."""
    mgpu: NDArray[np.float64]
    """(m,): total part of GPUs, in mgpu."""
    cpus: NDArray[np.int64]
    memory_mib: NDArray[np.int64]
    popularity: NDArray[np.float64]

    @classmethod
    def of(cls, requests: Sequence[ResourceRequest], popularity: Sequence[float]) -> Needs:
        """Build the arrays of requests for GPUs."""
        levels: dict[tuple[str, int], int] = {}
        level = [
            levels.setdefault((request.gpu_type, request.share_mgpu or GPU_MGPU), len(levels))
            for request in requests
        ]
        return cls(
            gpu_types=tuple(gpu_type for gpu_type, _ in levels),
            per_gpu_mgpu=np.array([mgpu for _, mgpu in levels], dtype=np.int32),
            level=np.array(level, dtype=np.intp),
            n_gpus=np.array([request.gpus or 1 for request in requests], dtype=np.int64),
            mgpu=np.array([request.mgpu for request in requests], dtype=np.float64),
            cpus=np.array([request.cpus for request in requests], dtype=np.int64),
            memory_mib=np.array([request.memory_mib for request in requests], dtype=np.int64),
            popularity=np.array(popularity, dtype=np.float64),
        )
