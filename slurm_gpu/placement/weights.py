"""Node weights that make Slurm fill the node where least is at stake, and keep whole nodes free.

Of the nodes that a job fits Slurm takes those with the least Weight. So a node has the less of it the fewer
GPUs it has left that are of any use, by the mix of jobs (`order.Order`) or, where that is not known, by its
share of cores and memory; a job that does not fit there is passed on by Slurm itself. And the less, the
longer its jobs may go on: what will be whole soon is left alone until it is.
bench/results/placement_orders.md compares orders of nodes.
There are few levels, as each costs a call, and a site's own order of nodes is kept: our weights of those
that had one Weight lie between it and the next that another node has. Pure functions, without numpy: a
login node runs them too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

FULL = 0
"""The level of nodes that can take no GPU job at all: CPU jobs that may go anywhere strand nothing there.

Where it counts how long jobs may go on it is that of those that stay so for very long.
"""
_MOST_LEVELS = 9
"""As many as a node of eight GPUs has states; nodes with more GPUs have several to a level."""
_EXACT = 4
"""Up to so many GPUs left each number has a level of its own, however many GPUs a node has."""
_TIMED_LEVELS = 16
"""As many below whole nodes where it is known how long jobs may go on, however many GPUs a node has."""
_UNIT_S = 900.0
_MOST_DOUBLINGS = 10.0
"""Of _UNIT_S plus the time until a node's jobs are over: each weighs as much as a GPU less. Ten days."""
_UNKNOWN_S = 4 * 3600.0
"""For a node of whose jobs that is not known, as one that has just got its first."""
_DEAD_BAND = 0.75
"""How far from its level (in levels) a node has to be to leave it. Whole GPUs are whole levels, and always
pass; shards that come and go, cores and memory do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """What a node with GPUs has left for jobs."""

    name: str
    gpus: int
    gpus_used: float
    """Parts of shared GPUs as parts."""
    cpus: int
    cpus_free: int
    memory_mib: int
    memory_free_mib: int
    worth: float | None = None
    """GPUs left that it is worth by the mix of jobs, 0 where none of them has room; None: the mix is not
    known, so it is worth the GPUs that it has left."""
    whole_rank: int = 0
    """Its place among whole nodes, once it is one: 0 for those that are given away first."""
    whole_in_s: float | None = None
    """Seconds until its jobs are over by their time limits, inf where one has none; None: not known."""
    one_job: bool = False
    """Whether a single job is all that runs there."""

    @property
    def usable_gpus(self) -> float:
        """GPUs that jobs can still get: no more than there are cores and memory left for, at their share."""
        free = max(0.0, self.gpus - self.gpus_used)
        cores = self.cpus_free / self.cpus if self.cpus else 0.0
        memory = self.memory_free_mib / self.memory_mib if self.memory_mib else 0.0
        return max(0.0, min(free, cores * self.gpus, memory * self.gpus))

    @property
    def is_whole(self) -> bool:
        """No GPU is in use, and a job of all of them finds cores and memory, but for half a GPU's share."""
        return self.gpus_used == 0 and self.usable_gpus >= self.gpus - 0.5

    @property
    def is_whole_next(self) -> bool:
        """One job holds it, and leaves no cores of a GPU's share to others: it will be whole at once."""
        return self.one_job and self.gpus_used >= self.gpus and self.cpus_free * self.gpus < self.cpus


@dataclass(frozen=True, slots=True)
class WeightScale:
    """What levels there are: FULL, one for each number of GPUs left up to a bound, whole nodes."""

    largest: int
    """GPUs of the node that has most."""
    whole_ranks: int = 1
    """Levels of whole nodes, above all others."""
    timed: bool = False
    """Whether it counts how long jobs may go on."""

    @classmethod
    def of(cls, rooms: Iterable[NodeRoom], whole_ranks: int = 1, *, timed: bool = False) -> WeightScale:
        """The scale of these nodes."""
        return cls(max((room.gpus for room in rooms), default=1), whole_ranks, timed)

    @property
    def below_whole(self) -> int:
        """Levels of nodes that are not whole; the first is FULL."""
        return _TIMED_LEVELS if self.timed else min(self.largest, _MOST_LEVELS - 1)

    @property
    def levels(self) -> int:
        """All of them; at least 2."""
        return self.below_whole + self.whole_ranks


def level_of(room: NodeRoom, scale: WeightScale, before: int | None = None) -> int:
    """From FULL to the last of the scale; whole nodes have those above `below_whole` to themselves.

    `before` is its level until now, which it keeps where it has hardly moved.
    """
    if room.is_whole or (scale.timed and room.is_whole_next):
        return scale.below_whole + min(room.whole_rank, scale.whole_ranks - 1)
    worth = room.usable_gpus if room.worth is None else room.worth
    if room.usable_gpus == 0 or worth == 0:
        if not scale.timed:
            return FULL
        worth = 0.0  # it has a place all the same: when some job ends there, it is not the first of all
    most = scale.below_whole - 1
    place = _timed_place(worth, room, most, scale) if scale.timed else _place(worth, most, scale.largest)
    if before is not None and before <= most and abs(place - before) < _DEAD_BAND:
        return before
    return min(max(math.floor(place + 0.5), FULL), most)


def _place(usable: float, most: int, largest: int) -> float:
    """GPUs left as a level: one each, or beyond the first few squeezed into what levels there are."""
    if largest - 1 <= most or usable <= min(_EXACT, most):
        return min(usable, most)
    exact = min(_EXACT, most)
    return exact + (usable - exact) * (most - exact) / (largest - 1 - exact)


def _timed_place(worth: float, room: NodeRoom, most: int, scale: WeightScale) -> float:
    """GPUs left, less one for each doubling of the time until the node will be whole, spread over the levels.

    From FULL for none beside a job that goes on for very long.
    """
    left_s = _UNKNOWN_S if room.whole_in_s is None else max(0.0, room.whole_in_s)
    doublings = min(math.log2(1 + left_s / _UNIT_S), _MOST_DOUBLINGS)
    highest = max(scale.largest - 1, 1)
    return FULL + (worth - doublings + _MOST_DOUBLINGS) * (most - FULL) / (highest + _MOST_DOUBLINGS)


def layout(managed: Collection[int], others: Collection[int], levels: int) -> Mapping[int, tuple[int, ...]]:
    """Our weights, one for each level and rising, by the site's own Weight of managed nodes.

    `others` are weights of nodes that are not managed: those of ours lie on the side of them on which the
    site's own lay. Where there is no room between, levels share weights; with no room at all all have the
    site's own.
    """
    found: dict[int, tuple[int, ...]] = {}
    low = -1.0
    for high in (*sorted(set(others)), math.inf):
        classes = sorted({weight for weight in managed if low <= weight < high})
        if classes:
            found |= _between(classes, int(max(classes[0], low + 1)), high, levels)
        low = high
    return found


def _between(classes: list[int], start: int, end: float, levels: int) -> dict[int, tuple[int, ...]]:
    """Weights from `start` on and below `end`, class above class, each from its own Weight on if it can."""
    each = int(min(levels, (end - start) // len(classes)))
    if each == 0:
        return {weight: (weight,) * levels for weight in classes}
    starts = [start]
    for weight in classes[1:]:
        starts.append(max(weight, starts[-1] + each))
    if starts[-1] + each > end:
        starts = [start + number * each for number in range(len(classes))]
    return {
        weight: tuple(first + _squeezed(level, levels, each) for level in range(levels))
        for weight, first in zip(classes, starts, strict=True)
    }


def _squeezed(level: int, levels: int, weights: int) -> int:
    """The place of a level among fewer weights; the last keeps one of its own while there are two."""
    if weights >= levels:
        return level
    return weights - 1 if level == levels - 1 else level * (weights - 1) // (levels - 1)


def changes(wanted: Mapping[str, int], now: Mapping[str, int]) -> Mapping[int, list[str]]:
    """What to set: nodes by the Weight that they lack, the least first: fuller nodes are wanted soonest."""
    found: dict[int, list[str]] = {}
    for name, weight in wanted.items():
        if name in now and now[name] != weight:
            found.setdefault(weight, []).append(name)
    return dict(sorted(found.items()))
