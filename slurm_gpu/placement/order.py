"""In which order nodes should be filled by jobs of which it is not known which comes next.

It is what node weights can say: one order for all jobs. A node stands in it by what is at stake there: how
many of its free GPUs the jobs of a mix can use (those that are not stranded by `fragmentation.Measure.FED`),
and how many more the next small job is expected to strand. So nodes whose GPUs are of little use come first,
and of nodes that are alike, and whose cores last, the fullest.
bench/results/placement_orders.md compares it with others.

In plain Python, for a daemon that carries no numpy. Only states that were not met before are reckoned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from slurm_gpu.placement.mix import Mix, coarse
from slurm_gpu.simulate.request import GPU_MGPU, ResourceRequest

MOST_CLASSES = 16
"""Classes of the mix that count, the most popular."""
_MOST_SMALL = 6
"""Of those for one GPU or a part of one, so many may be the next job: each is tried on each node."""
_SHARE_OF_MIX = 0.97
"""And no more of them than make up so much of what is asked for."""
_PRIOR_JOBS = 5.0
"""Jobs that one of one GPU, with its share of the node, counts for beside those that were seen."""
_LEAST_PRIOR = 0.05
"""Such a job always counts for this part."""
_FULLNESS = 0.05
"""What a GPU left counts for, whatever the mix, to tell apart nodes that are equal by it."""
_LEAST_LEFT = 0.5
"""A node on which some job of the mix has room is never taken to be full."""
_MOST_WHOLE = 4
"""Ranks of whole nodes."""
_MOST_REMEMBERED = 50_000
_DECIMALS = 6


class NodeKind(NamedTuple):
    """Nodes that are alike when they are empty."""

    gpu_types: tuple[str, ...]
    """Of each GPU."""
    cpus: int
    memory_mib: int


class FreeRoom(NamedTuple):
    """What is free on a node of some kind."""

    free_mgpu: tuple[int, ...]
    """Of each GPU, in the order of the kind's."""
    cpus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Stake:
    """What is at stake on a node, in GPUs."""

    useful: float
    """Of its free GPUs, as many as the jobs of the mix can use: the expected part that is not stranded."""
    strands: float | None
    """What the next job of one GPU, or a part of one, is expected to strand; None where none has room."""
    place: float
    """By which nodes are put in order."""
    fits: bool
    """Whether any job of the mix has room."""


class NodeOrder:
    """The order of nodes of some kinds, for one mix."""

    def __init__(self, mix: Mix, n_seen: float, kinds: Mapping[NodeKind, int]) -> None:
        """`n_seen`: how many jobs the mix is made of; `kinds`: how many nodes are of each."""
        mix = Mix.of(
            (coarse(request), times) for request, times in zip(mix.requests, mix.popularity, strict=True)
        )
        self.mix = mix.most_popular(_SHARE_OF_MIX, MOST_CLASSES)
        prior = max(_LEAST_PRIOR, _PRIOR_JOBS / (_PRIOR_JOBS + n_seen))
        self._judges = {kind: _Judge(kind, self.mix, prior) for kind in kinds if kind.gpu_types}
        scale = max(self._judges, key=lambda kind: (len(kind.gpu_types), kinds[kind]), default=None)
        self._scale = [] if scale is None else _scale(self._judges[scale])
        self._whole_ranks = _ranks({kind: judge.empty().place for kind, judge in self._judges.items()})

    def stake(self, kind: NodeKind, room: FreeRoom) -> Stake:
        """What is at stake on a node; KeyError for a kind that the order does not know."""
        return self._judges[kind].stake(room)

    def gpus_left(self, stake: Stake) -> float:
        """A stake as so many GPUs left of a node of the kind that has most GPUs; 0 where no job has room.

        As much is at stake on such a node with so many GPUs free, and their share of cores and memory.
        """
        if not stake.fits:
            return 0.0
        index = bisect_right(self._scale, stake.place)
        if index == 0:
            return max(_LEAST_LEFT, 1.0 - (self._scale[0] - stake.place))
        if index == len(self._scale):
            return float(index)
        low, high = self._scale[index - 1 : index + 1]
        return index + (stake.place - low) / (high - low)

    def whole_rank(self, kind: NodeKind) -> int:
        """The place of whole nodes of a kind among whole nodes: 0 for those with the least at stake."""
        return self._whole_ranks[kind]

    @property
    def n_whole_ranks(self) -> int:
        """At least 1."""
        return max(self._whole_ranks.values(), default=0) + 1


class _Class(NamedTuple):
    """One of the mix."""

    level: int
    """Which of the judge's (type, part of each GPU) it asks for."""
    n_gpus: int
    mgpu: int
    cpus: int
    memory_mib: int
    popularity: float


_Enough = tuple[int, int]
"""Of the GPUs that have enough free for some class: how many they are, and what is free of them in all."""


class _Judge:
    """Stakes on nodes of one kind: by the jobs that it could take when it is empty, and one GPU's share."""

    def __init__(self, kind: NodeKind, mix: Mix, prior: float) -> None:
        self.kind = kind
        self._empty = FreeRoom((GPU_MGPU,) * len(kind.gpu_types), kind.cpus, kind.memory_mib)
        n = len(kind.gpu_types)
        share = ResourceRequest(gpus=1, cpus=kind.cpus // n, memory_mib=kind.memory_mib // n)
        seen = Mix.of(
            (request, times)
            for request, times in zip(mix.requests, mix.popularity, strict=True)
            if self._could_take(request)
        )
        prior = prior if seen.requests else 1.0
        self._levels: list[tuple[str, int]] = []
        self._classes = [self._class(share, prior)]
        self._classes += [
            self._class(request, (1 - prior) * popularity)
            for request, popularity in zip(seen.requests, seen.popularity, strict=True)
        ]
        self._classes.sort(key=lambda one: (one.mgpu > GPU_MGPU, -one.popularity))
        self._small = [one for one in self._classes[:_MOST_SMALL] if one.mgpu <= GPU_MGPU]
        """The first of them."""
        self._known: dict[FreeRoom, Stake] = {}

    def _class(self, request: ResourceRequest, popularity: float) -> _Class:
        level = (request.gpu_type, request.share_mgpu or GPU_MGPU)
        if level not in self._levels:
            self._levels.append(level)
        return _Class(
            self._levels.index(level),
            request.gpus or 1,
            request.mgpu,
            request.cpus,
            request.memory_mib,
            popularity,
        )

    def _could_take(self, request: ResourceRequest) -> bool:
        types = self.kind.gpu_types
        n = types.count(request.gpu_type) if request.gpu_type else len(types)
        enough = n >= (request.gpus or 1)
        return enough and request.cpus <= self.kind.cpus and request.memory_mib <= self.kind.memory_mib

    def empty(self) -> Stake:
        """Of an empty node."""
        return self.stake(self._empty)

    def stake(self, room: FreeRoom) -> Stake:
        """Of a node with that room."""
        known = self._known.get(room)
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[room] = self._reckoned(room)
        return known

    def _reckoned(self, room: FreeRoom) -> Stake:
        enough = [self._enough(level, room.free_mgpu) for level in self._levels]
        useful, hosts = self._useful(enough, room.cpus, room.memory_mib)
        strands = weight = 0.0
        for one, has_room in zip(self._small, hosts, strict=False):
            if has_room:
                then, _ = self._useful(
                    self._enough_after(enough, room.free_mgpu, one),
                    room.cpus - one.cpus,
                    room.memory_mib - one.memory_mib,
                )
                strands += one.popularity * (useful - then - one.mgpu)  # stranded then, less now
                weight += one.popularity
        expected = round(strands / weight / GPU_MGPU, _DECIMALS) if weight else None
        useful_gpus = useful / GPU_MGPU
        place = useful_gpus + (0.0 if expected is None else expected) + _FULLNESS * self._share(room)
        return Stake(round(useful_gpus, _DECIMALS), expected, round(place, _DECIMALS), any(hosts))

    def _useful(self, enough: Sequence[_Enough], free_cpus: int, free_mib: int) -> tuple[float, list[bool]]:
        """Expected useful part of the free GPUs, in thousandths, and which classes have room."""
        expected, hosts = 0.0, []
        for level, n_gpus, mgpu, cpus, memory_mib, popularity in self._classes:
            n, free = enough[level]
            has_room = n >= n_gpus and free_cpus >= cpus and free_mib >= memory_mib
            hosts.append(has_room)
            if has_room:
                fed: float = free
                if cpus and free_cpus * mgpu < fed * cpus:
                    fed = free_cpus * mgpu / cpus
                if memory_mib and free_mib * mgpu < fed * memory_mib:
                    fed = free_mib * mgpu / memory_mib
                expected += popularity * fed
        return expected, hosts

    def _enough(self, level: tuple[str, int], free_mgpu: Sequence[int]) -> _Enough:
        gpu_type, needed = level
        free = [
            mgpu
            for of_type, mgpu in zip(self.kind.gpu_types, free_mgpu, strict=True)
            if mgpu >= needed and gpu_type in ("", of_type)
        ]
        return len(free), sum(free)

    def _enough_after(
        self, enough: Sequence[_Enough], free_mgpu: Sequence[int], one: _Class
    ) -> list[_Enough]:
        """The same once a small job has its GPU: the one with the least room that is enough."""
        gpu_type, _ = self._levels[one.level]
        before, of_type = min(
            (mgpu, of_type)
            for of_type, mgpu in zip(self.kind.gpu_types, free_mgpu, strict=True)
            if mgpu >= one.mgpu and gpu_type in ("", of_type)
        )
        after = before - one.mgpu
        found = []
        for (gpu_type, needed), (n, free) in zip(self._levels, enough, strict=True):
            if before < needed or gpu_type not in ("", of_type):
                found.append((n, free))
            elif after < needed:
                found.append((n - 1, free - before))
            else:
                found.append((n, free - one.mgpu))
        return found

    def _share(self, room: FreeRoom) -> float:
        """GPUs left, no more than there are cores and memory left for at their share of the node."""
        kind = self.kind
        parts = [
            of and free / of for free, of in ((room.cpus, kind.cpus), (room.memory_mib, kind.memory_mib))
        ]
        return min(sum(room.free_mgpu) / GPU_MGPU, len(kind.gpu_types) * min(parts))

    def with_share(self, n_free: int) -> FreeRoom:
        """The room of a node of which so many GPUs are free, with their share of cores and memory."""
        n = len(self.kind.gpu_types)
        free_mgpu = (0,) * (n - n_free) + (GPU_MGPU,) * n_free
        return FreeRoom(free_mgpu, self.kind.cpus * n_free // n, self.kind.memory_mib * n_free // n)


def _scale(judge: _Judge) -> list[float]:
    """Rising places of a node with one GPU left, two, …; which of them comes first is for the mix to say."""
    places = sorted(judge.stake(judge.with_share(n)).place for n in range(1, len(judge.kind.gpu_types) + 1))
    rising: list[float] = []
    for place in places:
        rising.append(place if not rising else max(place, rising[-1] + 10**-_DECIMALS))
    return rising


def _ranks(places: Mapping[NodeKind, float]) -> dict[NodeKind, int]:
    """Of kinds of whole nodes, as few as there may be: those that differ least have one rank."""
    distinct = sorted(set(places.values()))
    while len(distinct) > _MOST_WHOLE:
        gaps = [high - low for low, high in pairwise(distinct)]
        del distinct[gaps.index(min(gaps)) + 1]
    return {kind: max(bisect_right(distinct, place) - 1, 0) for kind, place in places.items()}
