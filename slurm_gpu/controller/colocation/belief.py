"""What the planner is to believe of jobs that share: the book, in the words of slurm_gpu.colocation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_gpu.colocation.planner import Member
from slurm_gpu.controller.colocation.book import Book


class Learned:
    """See slurm_gpu.colocation.planner.Belief. Applications are positions in `keys`."""

    def __init__(self, book: Book, keys: Sequence[str], most_together: int, cap: float | None) -> None:
        self._book, self._keys = book, tuple(keys)
        self.most_together, self.cap = most_together, math.inf if cap is None else cap

    def speeds(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Each one's beside the others."""
        keys = [self._keys[one] for one in applications]
        return tuple(self._book.speed(key, keys[:at] + keys[at + 1 :]) for at, key in enumerate(keys))

    def fits(self, members: Sequence[Member]) -> bool:
        """By the most memory that each ever had: when it will have that nobody knows."""
        return len(members) < 2 or self._book.may_be_together(
            [self._keys[one.application] for one in members]
        )

    def may_share(self, members: Sequence[Member]) -> bool:
        """Few enough, fitting, and nobody slower than promised."""
        if len(members) < 2:
            return True
        if len(members) > self.most_together or not self.fits(members):
            return False
        return all(1 / speed <= self.cap for speed in self.speeds(tuple(one.application for one in members)))
