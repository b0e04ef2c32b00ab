"""Compute node weights that make Slurm fill the nodes with the lowest stakes and keep whole nodes free.

Slurm uses the nodes with the lowest Weight among those that fit a job. The fewer useful GPUs a node has left,
the lower its weight. The mix of jobs (`order.NodeOrder`) determines which GPUs are useful; if the mix is
unknown, the node's free cores and memory do. The longer the jobs on a node can still run, the lower the
node's weight, so that nodes that will soon be whole are kept free. bench/results/placement_orders.md compares
orders.

Each level costs a call to slurmctld, so there are few levels. A site's own order of nodes is kept: nodes with
the same Weight get weights between this Weight and the next higher Weight of other nodes. The functions are
pure and do not use numpy, because login nodes run them too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

# The level of nodes that cannot take any GPU job: CPU-only jobs strand nothing there.
# With `timed`, the level FULL is only for nodes that remain full for a very long time.
FULL = 0
# The number of states of a node with eight GPUs; on larger nodes several states share a level.
_MOST_LEVELS = 9
# Up to this number of GPUs left, each number has its own level on nodes of any size.
_EXACT = 4
# Number of levels below whole nodes if the remaining time of jobs counts, for nodes of any size.
_TIMED_LEVELS = 16
_UNIT_S = 900.0
# Maximum of log2(1 + t / _UNIT_S), where t is the time until a node's jobs end (ten days at the maximum).
# One doubling lowers the level as much as one GPU less.
_MOST_DOUBLINGS = 10.0
# Assumed remaining time of a node's jobs if it is unknown, for example just after the first one started.
_UNKNOWN_S = 4 * 3600.0
# Minimum distance, in levels, at which a node changes its level.
#
# A change by a whole GPU always exceeds this distance; changes of shards, cores and memory often do not.
_DEAD_BAND = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """The free resources of a node with GPUs."""

    name: str
    gpus: int
    gpus_used: float
    """GPUs in use; shared GPUs count as fractions."""
    cpus: int
    cpus_free: int
    memory_mib: int
    memory_free_mib: int
    worth: float | None = None
    """Useful GPUs left for the mix of jobs, 0 if no job fits; if None (unknown), all GPUs left count."""
    whole_rank: int = 0
    """Rank among whole nodes; 0 is used first."""
    whole_in_s: float | None = None
    """Seconds until the node's jobs reach their time limits; inf without a limit, None if unknown."""
    one_job: bool = False
    """Whether exactly one job runs on the node."""

    @property
    def usable_gpus(self) -> float:
        """GPUs that jobs can still use, since enough cores and memory are left for each GPU's share."""
        free = max(0.0, self.gpus - self.gpus_used)
        cores = self.cpus_free / self.cpus if self.cpus else 0.0
        memory = self.memory_free_mib / self.memory_mib if self.memory_mib else 0.0
        return max(0.0, min(free, cores * self.gpus, memory * self.gpus))

    @property
    def is_whole(self) -> bool:
        """Whether all GPUs are free, with enough cores and memory except for at most half a GPU's share."""
        return self.gpus_used == 0 and self.usable_gpus >= self.gpus - 0.5

    @property
    def is_whole_next(self) -> bool:
        """Whether one job has all GPUs and nearly all cores, so that its end makes the node whole again."""
        return self.one_job and self.gpus_used >= self.gpus and self.cpus_free * self.gpus < self.cpus


@dataclass(frozen=True, slots=True)
class WeightScale:
    """The levels: FULL, one for each number of GPUs left up to a limit, and levels of whole nodes."""

    largest: int
    """Number of GPUs of the node with the most GPUs."""
    whole_ranks: int = 1
    """Number of levels of whole nodes, which are above all other levels."""
    timed: bool = False
    """Whether the remaining time of jobs counts."""

    @classmethod
    def of(cls, rooms: Iterable[NodeCapacity], whole_ranks: int = 1, *, timed: bool = False) -> WeightScale:
        """Return the scale for these nodes."""
        return cls(max((room.gpus for room in rooms), default=1), whole_ranks, timed)

    @property
    def below_whole(self) -> int:
        """Number of levels of nodes that are not whole; the first is FULL."""
        return _TIMED_LEVELS if self.timed else min(self.largest, _MOST_LEVELS - 1)

    @property
    def levels(self) -> int:
        """Number of levels, at least 2."""
        return self.below_whole + self.whole_ranks


def level_of(room: NodeCapacity, scale: WeightScale, before: int | None = None) -> int:
    """Return a level from FULL to the last of the scale; levels from `below_whole` on are for whole nodes.

    `before` is the previous level, which is kept unless the node has moved far enough from this level.
    """
    if room.is_whole or (scale.timed and room.is_whole_next):
        return scale.below_whole + min(room.whole_rank, scale.whole_ranks - 1)
    worth = room.usable_gpus if room.worth is None else room.worth
    if room.usable_gpus == 0 or worth == 0:
        if not scale.timed:
            return FULL
        worth = 0.0  # ranked by time: the node must not be the first choice once one of its jobs ends
    most = scale.below_whole - 1
    place = _timed_place(worth, room, most, scale) if scale.timed else _place(worth, most, scale.largest)
    if before is not None and before <= most and abs(place - before) < _DEAD_BAND:
        return before
    return min(max(math.floor(place + 0.5), FULL), most)


def _place(usable: float, most: int, largest: int) -> float:
    """Map the GPUs left to a level; on large nodes, numbers above the first few share levels."""
    if largest - 1 <= most or usable <= min(_EXACT, most):
        return min(usable, most)
    exact = min(_EXACT, most)
    return exact + (usable - exact) * (most - exact) / (largest - 1 - exact)


def _timed_place(worth: float, room: NodeCapacity, most: int, scale: WeightScale) -> float:
    """Map the GPUs left, reduced according to the time until the node is whole, linearly to the levels.

    Each doubling of this time subtracts one GPU. The lowest level is FULL, for nodes that have no GPU left
    and whose jobs run for a very long time.
    """
    left_s = _UNKNOWN_S if room.whole_in_s is None else max(0.0, room.whole_in_s)
    doublings = min(math.log2(1 + left_s / _UNIT_S), _MOST_DOUBLINGS)
    highest = max(scale.largest - 1, 1)
    return FULL + (worth - doublings + _MOST_DOUBLINGS) * (most - FULL) / (highest + _MOST_DOUBLINGS)


def layout(managed: Collection[int], others: Collection[int], levels: int) -> Mapping[int, tuple[int, ...]]:
    """Return our weights for each original Weight of managed nodes, one per level in ascending order.

    `others` are the weights of nodes that are not managed. Our weights are on the same side of each of these
    weights as the original Weight. If there are too few integers in between, levels share weights; if there
    are none, all levels get the original Weight.
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
    """Return weights in [start, end) for each class of nodes with the same original Weight.

    Each class gets higher weights than the previous one, starting at its original Weight if possible.
    """
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
    """Return a level's index among fewer weights; with two or more, the last level has its own."""
    if weights >= levels:
        return level
    return weights - 1 if level == levels - 1 else level * (weights - 1) // (levels - 1)


def changes(targets: Mapping[str, int], now: Mapping[str, int]) -> Mapping[int, list[str]]:
    """Return the nodes to change, keyed by new Weight, lowest first, because Slurm uses these nodes next."""
    found: dict[int, list[str]] = {}
    for name, weight in targets.items():
        if name in now and now[name] != weight:
            found.setdefault(weight, []).append(name)
    return dict(sorted(found.items()))
