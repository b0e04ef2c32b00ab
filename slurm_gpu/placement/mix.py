"""What is asked for of late: the classes of jobs by which it is judged whether a free GPU is of any use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.simulate.jobs import Request


@dataclass(frozen=True)
class Mix:
    """Classes of requests, each of one node's part, and how popular each is (sums to 1).

    Only requests for GPUs: what needs none strands none. An empty mix judges nothing.
    """

    requests: tuple[Request, ...] = ()
    popularity: tuple[float, ...] = ()

    @classmethod
    def of(cls, seen: Iterable[tuple[Request, float]]) -> Mix:
        """Of requests and how often each was seen; one for several nodes counts once for each of them.

        Raises ValueError where something was seen less than never.
        """
        weights: dict[Request, float] = {}
        for request, times in seen:
            if not times >= 0:
                raise ValueError(f"a request is seen 0 times or more, not {times}: {request}")
            if request.mgpu and times:
                part = replace(request, nodes=1)
                weights[part] = weights.get(part, 0.0) + times * request.nodes
        total = sum(weights.values())
        return cls(tuple(weights), tuple(weight / total for weight in weights.values()))

    def most_popular(self, share: float) -> Mix:
        """The fewest classes that make up this share (0 to 1) of what is seen, the most popular first."""
        if not self.requests:
            return self
        order = np.argsort(-np.array(self.popularity), kind="stable")
        reached = np.cumsum(np.array(self.popularity)[order])
        n = min(int(np.searchsorted(reached, share - 1e-12)) + 1, len(order))
        return Mix.of((self.requests[index], self.popularity[index]) for index in order[:n].tolist())

    @cached_property
    def needs(self) -> Needs:
        """The same as arrays."""
        return Needs.of(self.requests, self.popularity)


@dataclass(frozen=True, eq=False)
class Needs:
    """A mix as arrays: m classes, which ask for d different (type of GPU, part of each GPU)."""

    gpu_types: tuple[str, ...]
    """(d,): "" is any."""
    per_gpu_mgpu: NDArray[np.int32]
    """(d,): what each GPU has to have free."""
    level: NDArray[np.intp]
    """(m,): which of the d each class asks for."""
    n_gpus: NDArray[np.int64]
    """(m,): 1 for a share."""
    mgpu: NDArray[np.float64]
    """(m,): of all its GPUs together."""
    cpus: NDArray[np.int64]
    memory_mib: NDArray[np.int64]
    popularity: NDArray[np.float64]

    @classmethod
    def of(cls, requests: Sequence[Request], popularity: Sequence[float]) -> Needs:
        """Of requests for GPUs."""
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
