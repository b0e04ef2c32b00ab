"""What is asked for of late: the classes of jobs by which it is judged whether a free GPU is of any use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from slurm_gpu.simulate.request import ResourceRequest

if TYPE_CHECKING:  # numpy is there only where arrays are asked for
    from slurm_gpu.placement.needs import Needs

_TINY = 1e-12


@dataclass(frozen=True)
class Mix:
    """Classes of requests, each of one node's part, and how popular each is (sums to 1).

    Only requests for GPUs: what needs none strands none. An empty mix judges nothing.
    """

    requests: tuple[ResourceRequest, ...] = ()
    popularity: tuple[float, ...] = ()

    @classmethod
    def of(cls, seen: Iterable[tuple[ResourceRequest, float]]) -> Mix:
        """Of requests and how often each was seen; one for several nodes counts once for each of them.

        Raises ValueError where something was seen less than never.
        """
        weights: dict[ResourceRequest, float] = {}
        for request, times in seen:
            if not times >= 0:
                raise ValueError(f"a request is seen 0 times or more, not {times}: {request}")
            if request.mgpu and times:
                part = replace(request, nodes=1)
                weights[part] = weights.get(part, 0.0) + times * request.nodes
        total = sum(weights.values())
        return cls(tuple(weights), tuple(weight / total for weight in weights.values()))

    def most_popular(self, share: float, at_most: int | None = None) -> Mix:
        """The fewest classes that make up this share (0 to 1) of what is seen, the most popular first.

        No more than `at_most` of them, if it is given.
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
        """The same as arrays."""
        from slurm_gpu.placement.needs import Needs

        return Needs.of(self.requests, self.popularity)


def coarse(request: ResourceRequest) -> ResourceRequest:
    """The same with CPUs and memory on a grid of eight steps for each doubling, so that few classes differ.

    Rounded down: what fits an empty node as it was asked for still does.
    """
    return replace(request, cpus=_coarse(request.cpus), memory_mib=_coarse(request.memory_mib))


def _coarse(number: int) -> int:
    shift = max(0, number.bit_length() - 4)
    return number >> shift << shift
