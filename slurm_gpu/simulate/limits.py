"""Enforce limits on running jobs by capped counters, such as the GPUs of one user under one rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from slurm_gpu.simulate.jobs import ResourceRequest


class Resource(IntEnum):
    """A resource that a counter sums over its running jobs."""

    MGPU = 0
    JOBS = 1
    CPUS = 2
    MEMORY_MIB = 3
    NODES = 4


# Indexed by Resource.
Amounts = tuple[int, int, int, int, int]


def amounts_of(request: ResourceRequest) -> Amounts:
    """Return the amounts that a job with this request adds to each counter."""
    n = request.nodes
    return (request.mgpu, 1, n * request.cpus, n * request.memory_mib, n)


@dataclass(frozen=True, slots=True)
class LimitCounter:
    """A counter of running jobs, with a cap for each limited resource."""

    name: str
    caps: Mapping[Resource, int]


class LimitCounters:
    """The values of all counters during a simulation."""

    def __init__(self, counters: Sequence[LimitCounter]) -> None:
        self.counters = counters
        self._caps = [tuple((int(r), cap) for r, cap in counter.caps.items()) for counter in counters]
        self._used = [[0] * len(Resource) for _ in counters]

    def used(self, counter: int, resource: Resource) -> int:
        """Return the current sum of a resource over the jobs of a counter."""
        return self._used[counter][resource]

    def limited_by(self, counters: Iterable[int], amounts: Amounts) -> int | None:
        """Return the first of these counters that one more job would exceed; None if there is none."""
        for counter in counters:
            if not self.has_room(counter, amounts):
                return counter
        return None

    def has_room(self, counter: int, amounts: Amounts) -> bool:
        """Return whether one more job would keep the counter within its caps."""
        used = self._used[counter]
        return all(used[resource] + amounts[resource] <= cap for resource, cap in self._caps[counter])

    def take(self, counters: Iterable[int], amounts: Amounts) -> None:
        """Count a job that starts."""
        for counter in counters:
            used = self._used[counter]
            for resource, amount in enumerate(amounts):
                used[resource] += amount

    def give_back(self, counters: Iterable[int], amounts: Amounts) -> None:
        """Stop counting a job that ended."""
        for counter in counters:
            used = self._used[counter]
            for resource, amount in enumerate(amounts):
                used[resource] -= amount
