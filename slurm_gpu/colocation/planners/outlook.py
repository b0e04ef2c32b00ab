"""What comes of an order of starts on each GPU, by what is believed: what all ways to tell have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from slurm_gpu.colocation.planner import Member


class Outlook(ABC):
    """Jobs are indices here: those that wait in their order, then those that run, GPU by GPU.

    A GPU takes the jobs of its order one after the other: the next one joins as soon as it may share with
    those that run there and sharing pays; one that is to begin apart waits for an empty GPU. Until it starts
    it holds those behind it back.
    """

    def __init__(
        self,
        waiting: Sequence[Member],
        running: Sequence[Sequence[Member]],
        elapsed_s: Sequence[Sequence[float]],
    ) -> None:
        """`elapsed_s`: how long those that run have run."""
        self.members: list[Member] = [*waiting, *(one for gpu in running for one in gpu)]
        self.left_s = [member.left_s for member in self.members]
        self.apart = [False] * len(self.members)
        """Which of those that wait begin on an empty GPU alone, or however else it keeps them apart."""
        self.took_s = [0.0] * len(self.members)
        """How long each one will have run in the end, of the orders that were rolled out last."""
        n = len(waiting)
        self.here: list[tuple[int, ...]] = []
        """Who runs, by GPU."""
        self._began_s: list[float] = [0.0] * len(self.members)
        for gpu, elapsed in zip(running, elapsed_s, strict=True):
            self.here.append(tuple(range(n, n + len(gpu))))
            self._began_s[n : n + len(gpu)] = [-one for one in elapsed]
            n += len(gpu)
        kinds: dict[tuple[object, ...], int] = {}
        self._kind = [kinds.setdefault(self._alike(at, len(waiting)), len(kinds)) for at in range(n)]
        """By job. Jobs of one kind are alike, and what is believed of one is believed of the others: so each
        that runs is one of its own, as there may be room on the GPU of one and none on that of another."""
        self._of_kind = dict(zip(self._kind, self.members, strict=True))

    def _alike(self, at: int, n_waiting: int) -> tuple[object, ...]:
        one = self.members[at]
        return one.application, one.left_s, one.done_s, one.lost_s, one.job if at >= n_waiting else None

    @abstractmethod
    def end_s(self, gpu: int, order: Sequence[int]) -> float:
        """When a GPU is idle that has this order, in seconds from now; fills in `took_s` of all its jobs."""

    @abstractmethod
    def starts(self, gpu: int, order: Sequence[int]) -> int:
        """How many of this order join those that run there now, at once."""

    def wakes_s(self, gpu: int, order: Sequence[int]) -> float:
        """When, in seconds from now, the first of this order joins while nobody ends; math.inf: never."""
        return math.inf
