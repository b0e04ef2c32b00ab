"""Node weights that make Slurm fill the fullest node that a job fits, and keep whole nodes free.

Of the nodes that a job fits Slurm takes those with the least Weight. So a node has the less of it the fewer
GPUs it has left; a job that does not fit there is passed on by Slurm itself, which makes that best fit.
There are few levels, as each costs a call, and a site's own order of nodes is kept: our weights of those
that had one Weight lie between it and the next that another node has. Pure functions, without numpy: a
login node runs them too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

FULL = 0
"""The level of nodes that can take no GPU job at all: CPU jobs that may go anywhere strand nothing there."""
_MOST_LEVELS = 9
"""As many as a node of eight GPUs has states; nodes with more GPUs have several to a level."""
_EXACT = 4
"""Up to so many GPUs left each number has a level of its own, however many GPUs a node has."""
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
    score: float | None = None
    """How much is lost by a job that goes there, from 0 (nothing) to 1; None: by how full it is."""

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


def n_levels(rooms: Iterable[NodeRoom]) -> int:
    """One for each number of GPUs left of the largest node, up to a bound; at least 2."""
    return min(max((room.gpus for room in rooms), default=1), _MOST_LEVELS - 1) + 1


def level_of(room: NodeRoom, levels: int, largest: int, before: int | None = None) -> int:
    """From FULL to levels − 1, which whole nodes have alone; `largest`: GPUs of the node with most.

    `before` is its level until now, which it keeps where it has hardly moved.
    """
    if room.is_whole:
        return levels - 1
    most = levels - 2  # below whole nodes
    place = _place(room.usable_gpus, most, largest) if room.score is None else _clipped(room.score) * most
    if room.usable_gpus == 0:
        return FULL
    if before is not None and before <= most and abs(place - before) < _DEAD_BAND:
        return before
    return min(math.floor(place + 0.5), most)


def _place(usable: float, most: int, largest: int) -> float:
    """GPUs left as a level: one each, or beyond the first few squeezed into what levels there are."""
    if largest - 1 <= most or usable <= min(_EXACT, most):
        return min(usable, most)
    exact = min(_EXACT, most)
    return exact + (usable - exact) * (most - exact) / (largest - 1 - exact)


def _clipped(score: float) -> float:
    return min(1.0, max(0.0, score))


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
    """The place of a level among fewer weights; whole nodes keep one of their own while there are two."""
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
