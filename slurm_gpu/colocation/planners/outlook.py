"""Define the base class for predicting the result of an order of starts on each GPU."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from slurm_gpu.colocation.planner import Member


class Outlook(ABC):
    """A prediction of the result of an order of starts on each GPU.

    Jobs are given as indices: first the waiting jobs in their order, then the running jobs by GPU. A GPU
    starts the jobs in its order one after the other. The next job joins as soon as it may share with the
    running jobs and sharing pays. A job that must start alone waits for an empty GPU. Until it starts, all
    jobs after it wait.
    """

    def __init__(
        self,
        waiting: Sequence[Member],
        running: Sequence[Sequence[Member]],
        elapsed_s: Sequence[Sequence[float]],
    ) -> None:
        """Create a prediction; `elapsed_s` contains the time for which each running job has run."""
        self.members: list[Member] = [*waiting, *(one for gpu in running for one in gpu)]
        self.left_s = [member.left_s for member in self.members]
        self.apart = [False] * len(self.members)
        """Whether each job is kept apart: it must start alone on an empty GPU or, in phased.py, be spared."""
        self.took_s = [0.0] * len(self.members)
        """Total duration of each job's run in the orders that were evaluated last."""
        n = len(waiting)
        self.here: list[tuple[int, ...]] = []
        """Running jobs by GPU."""
        self._began_s: list[float] = [0.0] * len(self.members)
        for gpu, elapsed in zip(running, elapsed_s, strict=True):
            self.here.append(tuple(range(n, n + len(gpu))))
            self._began_s[n : n + len(gpu)] = [-one for one in elapsed]
            n += len(gpu)
        kinds: dict[tuple[object, ...], int] = {}
        self._kind = [kinds.setdefault(self._alike(at, len(waiting)), len(kinds)) for at in range(n)]
        """The kind of each job.

        Jobs of one kind are interchangeable. Each running job is its own kind, since its GPU may accept
        another job when other GPUs do not.
        """
        self._of_kind = dict(zip(self._kind, self.members, strict=True))

    def _alike(self, at: int, n_waiting: int) -> tuple[object, ...]:
        one = self.members[at]
        return one.application, one.left_s, one.done_s, one.lost_s, one.job if at >= n_waiting else None

    @abstractmethod
    def end_s(self, gpu: int, order: Sequence[int]) -> float:
        """Return the seconds until a GPU with this order is idle, and set `took_s` of all its jobs."""

    @abstractmethod
    def starts(self, gpu: int, order: Sequence[int]) -> int:
        """Return how many jobs at the beginning of this order can start now."""

    def wakes_s(self, gpu: int, order: Sequence[int]) -> float:
        """Return the seconds until the first job of this order joins if no job ends; math.inf if never."""
        return math.inf
