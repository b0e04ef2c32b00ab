"""What is told of a job over time: a verdict that comes and goes is not told, one that stays is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

T = TypeVar("T")

SURE = 0.8
"""A verdict that is so sure is told at once, others when they are found a second time."""
LEAST = 0.6
"""Below it is a suspicion, which accuses nobody: it is not told."""
TIMES = 2
"""So often something else has to be found until what was told is over."""


@dataclass(frozen=True, slots=True)
class EpisodeFinding(Generic[T]):
    """What was judged. `cause` None: the job is well. Where nothing can be told, nothing was found."""

    cause: str | None
    confidence: float
    detail: T


@dataclass(frozen=True, slots=True)
class Episode(Generic[T]):
    """One cause of trouble, from when it was told until it is over."""

    found: EpisodeFinding[T]
    reported_at_s: float
    last_s: float
    """When it was found last."""
    ended_s: float | None = None


class RunEpisodes(Generic[T]):
    """Of one run."""

    def __init__(self) -> None:
        self.told: Episode[T] | None = None
        self._maybe: EpisodeFinding[T] | None = None
        self._others = 0

    @property
    def unsure(self) -> bool:
        """Whether another look would settle something."""
        return self._maybe is not None or self._others > 0

    def hear(self, found: EpisodeFinding[T], now_s: float) -> list[Episode[T]]:
        """Something was judged; returns what is to be told: begun, found again, or over."""
        trouble = found.cause is not None and found.confidence >= LEAST
        if self.told is not None and trouble and found.cause == self.told.found.cause:
            self._others, self._maybe = 0, None
            self.told = replace(self.told, found=found, last_s=now_s)
            return [self.told]
        changes: list[Episode[T]] = []
        if self.told is not None:
            self._others += 1
            if self._others < TIMES:
                self._maybe = found if trouble else None
                return []
            changes += self.over(now_s)
        if not trouble:
            self._maybe = None
            return changes
        again = self._maybe is not None and self._maybe.cause == found.cause
        if found.confidence >= SURE or again:
            self._maybe = None
            self.told = Episode(found, now_s, now_s)
            return [*changes, self.told]
        self._maybe = found
        return changes

    def over(self, now_s: float) -> list[Episode[T]]:
        """The job is well again, or has ended."""
        if self.told is None:
            return []
        ended = replace(self.told, ended_s=now_s)
        self.told, self._others = None, 0
        return [ended]
