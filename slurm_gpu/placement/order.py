"""Order nodes for a mix of jobs when the next job is unknown.

Node weights can express only one order for all jobs. A node's position in this order is its stake, the sum of
two numbers. The first is the number of its free GPUs that the jobs of a mix can use (those not stranded by
`fragmentation.StrandedMeasure.FED`). The second is the number that the next small job is expected to strand.
Nodes whose GPUs are of little use therefore come first; among identical nodes with enough cores, the fullest
comes first. bench/results/placement_orders.md compares this order with others.

The module does not use numpy, because the daemon does not require it. The stake of each state is computed
only once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from slurm_gpu.placement.mix import Mix, coarse
from slurm_gpu.simulate.request import GPU_MGPU, ResourceRequest

# Maximum number of classes of the mix that are considered, the most popular ones first.
MOST_CLASSES = 16
# Number of classes for one GPU or less that are tried on each node as the next job.
_MOST_SMALL = 6
# Number of classes of the mix with an order of groups of nodes.
_MOST_COMMON = 64
# Share of the mix after which no more classes are added.
_SHARE_OF_MIX = 0.97
# The weight, in observed jobs, of an assumed job that requests one GPU and its share of the node.
_PRIOR_JOBS = 5.0
# Minimum weight of the assumed job in the mix.
_LEAST_PRIOR = 0.05
# Stake added for each GPU left, to order nodes that are equally useful for the mix.
_FULLNESS = 0.05
# Minimum stake of a node on which any job of the mix fits, so that the node never counts as full.
_LEAST_LEFT = 0.5
# Maximum number of ranks of whole nodes.
_MOST_WHOLE = 4
_MOST_REMEMBERED = 50_000
# Groups of nodes count as similar for a job if the numbers of GPUs that the job strands differ by less than
# this.
_SIMILAR = 0.1
_DECIMALS = 6


class NodeKind(NamedTuple):
    """The properties of an empty node; nodes of one kind are interchangeable."""

    gpu_types: tuple[str, ...]
    """The type of each GPU."""
    cpus: int
    memory_mib: int


class FreeCapacity(NamedTuple):
    """The free resources of a node."""

    free_mgpu: tuple[int, ...]
    """Free part of each GPU, in the order of the kind's GPUs."""
    cpus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Stake:
    """The stake of a node, in GPUs."""

    useful: float
    """Expected number of free GPUs that the jobs of the mix can use."""
    strands: float | None
    """Expected number of GPUs that the next job with one GPU or less strands; None if no such job fits."""
    place: float
    """Sort key of nodes."""
    fits: bool
    """Whether any job of the mix fits."""


class NodeOrder:
    """The order of nodes of some kinds for one mix."""

    def __init__(self, mix: Mix, n_seen: float, kinds: Mapping[NodeKind, int]) -> None:
        """`n_seen` is the number of jobs in the mix; `kinds` contains the number of nodes of each kind."""
        mix = Mix.of(
            (coarse(request), times) for request, times in zip(mix.requests, mix.popularity, strict=True)
        )
        self.mix = mix.most_popular(_SHARE_OF_MIX, MOST_CLASSES)
        self.common = mix.most_popular(1.0, _MOST_COMMON).requests
        """The classes of jobs that have an order of groups of nodes, sorted by descending popularity."""
        prior = max(_LEAST_PRIOR, _PRIOR_JOBS / (_PRIOR_JOBS + n_seen))
        self._judges = {kind: _Judge(kind, self.mix, prior) for kind in kinds if kind.gpu_types}
        scale = max(self._judges, key=lambda kind: (len(kind.gpu_types), kinds[kind]), default=None)
        self._scale = [] if scale is None else _scale(self._judges[scale])
        self._whole_ranks = _ranks({kind: judge.empty().place for kind, judge in self._judges.items()})

    def stake(self, kind: NodeKind, room: FreeCapacity) -> Stake:
        """Return the stake of a node; raise KeyError for an unknown kind."""
        return self._judges[kind].stake(room)

    def gpus_left(self, stake: Stake) -> float:
        """Convert a stake to a number of GPUs left; 0 if no job fits.

        A node of the kind with the most GPUs has this stake if this number of its GPUs are free, with their
        share of cores and memory.
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

    def ranked(self, request: ResourceRequest, groups: Mapping[str, Mapping[NodeKind, int]]) -> list[str]:
        """Return groups of nodes, sorted by the number of GPUs that a job on an empty node strands.

        `groups` contains the number of nodes of each kind. Among similar groups, those with the lowest stakes
        come first. Groups without a node for the job come last.
        """
        return sorted(groups, key=lambda name: (*self._strands_in(request, groups[name]), name))

    def _strands_in(self, request: ResourceRequest, nodes: Mapping[NodeKind, int]) -> tuple[float, float]:
        """Return the rounded mean number of stranded GPUs, and the mean stake of empty nodes."""
        judges = [(self._judges[kind], n) for kind, n in nodes.items() if kind in self._judges]
        found = [(strands, n) for judge, n in judges if (strands := judge.strands(request)) is not None]
        if not found:
            return math.inf, math.inf
        strands = sum(each * n for each, n in found) / sum(n for _, n in found)
        stake = sum(judge.empty().place * n for judge, n in judges) / sum(n for _, n in judges)
        return round(strands / _SIMILAR), round(stake, _DECIMALS)

    def whole_rank(self, kind: NodeKind) -> int:
        """Return the rank of a kind among whole nodes: 0 for the kinds with the lowest stakes."""
        return self._whole_ranks[kind]

    @property
    def n_whole_ranks(self) -> int:
        """Number of ranks, at least 1."""
        return max(self._whole_ranks.values(), default=0) + 1


class _Class(NamedTuple):
    """One class of the mix."""

    level: int
    """Index into the (type, part of each GPU) pairs of the judge."""
    n_gpus: int
    mgpu: int
    cpus: int
    memory_mib: int
    popularity: float


# GPUs with enough free capacity for a class: their number, and their free capacity in mgpu.
_Enough = tuple[int, int]


class _Judge:
    """Computes stakes of nodes of one kind from the classes that fit an empty node and an assumed job.

    The assumed job requests one GPU and its share of the node.
    """

    def __init__(self, kind: NodeKind, mix: Mix, prior: float) -> None:
        self.kind = kind
        self._empty = FreeCapacity((GPU_MGPU,) * len(kind.gpu_types), kind.cpus, kind.memory_mib)
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
        """A prefix of `_classes`."""
        self._known: dict[FreeCapacity, Stake] = {}

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
        """Return the stake of an empty node."""
        return self.stake(self._empty)

    def strands(self, request: ResourceRequest) -> float | None:
        """Return the number of GPUs that a job on an empty node strands; None if the node is too small."""
        if not self._could_take(request):
            return None
        free_mgpu, mgpu = [], request.mgpu
        for of_type in self.kind.gpu_types:
            taken = min(mgpu, GPU_MGPU) if request.gpu_type in ("", of_type) else 0
            free_mgpu.append(GPU_MGPU - taken)
            mgpu -= taken
        room = FreeCapacity(
            tuple(free_mgpu), self.kind.cpus - request.cpus, self.kind.memory_mib - request.memory_mib
        )
        return self.empty().useful - self.stake(room).useful - request.mgpu / GPU_MGPU

    def stake(self, room: FreeCapacity) -> Stake:
        """Return the stake of a node with these free resources."""
        known = self._known.get(room)
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[room] = self._reckoned(room)
        return known

    def _reckoned(self, room: FreeCapacity) -> Stake:
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
                strands += one.popularity * (useful - then - one.mgpu)  # newly stranded
                weight += one.popularity
        expected = round(strands / weight / GPU_MGPU, _DECIMALS) if weight else None
        useful_gpus = useful / GPU_MGPU
        place = useful_gpus + (0.0 if expected is None else expected) + _FULLNESS * self._share(room)
        return Stake(round(useful_gpus, _DECIMALS), expected, round(place, _DECIMALS), any(hosts))

    def _useful(self, enough: Sequence[_Enough], free_cpus: int, free_mib: int) -> tuple[float, list[bool]]:
        """Return the expected useful part of the free GPUs, in mgpu, and for each class whether it fits."""
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
        """Return the new `enough` after a small job takes the GPU with the smallest sufficient free part."""
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

    def _share(self, room: FreeCapacity) -> float:
        """Return the number of free GPUs for which the node also has their share of cores and memory."""
        kind = self.kind
        parts = [
            of and free / of for free, of in ((room.cpus, kind.cpus), (room.memory_mib, kind.memory_mib))
        ]
        return min(sum(room.free_mgpu) / GPU_MGPU, len(kind.gpu_types) * min(parts))

    def with_share(self, n_free: int) -> FreeCapacity:
        """Return the free resources of a node with `n_free` free GPUs and their share of cores and memory."""
        n = len(self.kind.gpu_types)
        free_mgpu = (0,) * (n - n_free) + (GPU_MGPU,) * n_free
        return FreeCapacity(free_mgpu, self.kind.cpus * n_free // n, self.kind.memory_mib * n_free // n)


def _scale(judge: _Judge) -> list[float]:
    """Return the sort keys of a node with 1, 2, … GPUs left, in strictly ascending order."""
    places = sorted(judge.stake(judge.with_share(n)).place for n in range(1, len(judge.kind.gpu_types) + 1))
    rising: list[float] = []
    for place in places:
        rising.append(place if not rising else max(place, rising[-1] + 10**-_DECIMALS))
    return rising


def _ranks(places: Mapping[NodeKind, float]) -> dict[NodeKind, int]:
    """Rank kinds of whole nodes, merging the closest ranks until at most `_MOST_WHOLE` are left."""
    distinct = sorted(set(places.values()))
    while len(distinct) > _MOST_WHOLE:
        gaps = [high - low for low, high in pairwise(distinct)]
        del distinct[gaps.index(min(gaps)) + 1]
    return {kind: max(bisect_right(distinct, place) - 1, 0) for kind, place in places.items()}
