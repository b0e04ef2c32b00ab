"""The recent mix of jobs: classes of requests that determine whether a free GPU is usable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from slurm_gpu.simulate.request import ResourceRequest

if TYPE_CHECKING:  # the daemon runs without numpy
    from slurm_gpu.placement.needs import Needs

_TINY = 1e-12


@dataclass(frozen=True)
class Mix:
    """Classes of single-node requests, and their popularities, which sum to 1.

    Only requests for GPUs count: a job that needs no GPU strands none. With an empty mix, nothing is
    stranded.
    """

    requests: tuple[ResourceRequest, ...] = ()
    popularity: tuple[float, ...] = ()

    @classmethod
    def of(cls, seen: Iterable[tuple[ResourceRequest, float]]) -> Mix:
        """Build a mix from requests and their counts; a request for several nodes counts once for each node.

        Raise ValueError if a count is negative.
        """
        weights: dict[ResourceRequest, float] = {}
        for request, times in seen:
            if not times >= 0:
                raise ValueError(f"the count of a request must be 0 or more, not {times}: {request}")
            if request.mgpu and times:
                part = replace(request, nodes=1)
                weights[part] = weights.get(part, 0.0) + times * request.nodes
        total = sum(weights.values())
        return cls(tuple(weights), tuple(weight / total for weight in weights.values()))

    def most_popular(self, share: float, at_most: int | None = None) -> Mix:
        """Return the most popular classes that together make up at least this share (0 to 1) of the mix.

        If `at_most` is given, return at most that many classes.
        """
        ranked = sorted(zip(self.requests, self.popularity, strict=True), key=lambda one: -one[1])
        chosen, reached = [], 0.0
        for request, popularity in ranked[:at_most]:
            chosen.append((request, popularity))
            reached += popularity
            if reached >= share - _TINY:
                break
        return Mix.of(chosen)

    @cached_property
    def needs(self) -> Needs:
        """The classes of the mix as arrays."""
        from slurm_gpu.placement.needs import Needs

        return Needs.of(self.requests, self.popularity)


def coarse(request: ResourceRequest) -> ResourceRequest:
    """Round CPUs and memory down to eight steps per doubling, so that there are few classes.

    Rounding down guarantees that a request that fits on an empty node still fits.
    """
    return replace(request, cpus=_coarse(request.cpus), memory_mib=_coarse(request.memory_mib))


def _coarse(number: int) -> int:
    shift = max(0, number.bit_length() - 4)
    return number >> shift << shift
