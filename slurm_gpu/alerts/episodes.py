"""Turn a sequence of findings into episodes.

A fault is reported if its evidence is strong enough, or if it is found again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

T = TypeVar("T")

# A fault of at least this strength is reported at once; a weaker fault must be found again first.
REPORTED_AT_ONCE = 0.8
# A reported episode ends after this many successive findings without its cause.
TIMES = 2


@dataclass(frozen=True, slots=True)
class EpisodeFinding(Generic[T]):
    """A finding; its `cause` is None if the job is healthy or a fault is only suspected.

    An inconclusive result is not a finding.
    """

    cause: str | None
    strength: float
    detail: T


@dataclass(frozen=True, slots=True)
class Episode(Generic[T]):
    """A reported fault with one cause, from its first report to its end."""

    found: EpisodeFinding[T]
    reported_at_s: float
    last_s: float
    """Time of the last finding."""
    ended_s: float | None = None


class RunEpisodes(Generic[T]):
    """The episodes of one run."""

    def __init__(self) -> None:
        self.reported: Episode[T] | None = None
        self._maybe: EpisodeFinding[T] | None = None
        self._others = 0

    @property
    def unsure(self) -> bool:
        """Whether it is unclear if a fault exists or continues; another diagnosis could settle this."""
        return self._maybe is not None or self._others > 0

    def add(self, found: EpisodeFinding[T], now_s: float) -> list[Episode[T]]:
        """Add a finding; return the episodes that it begins, continues or ends."""
        is_fault = found.cause is not None
        if self.reported is not None and is_fault and found.cause == self.reported.found.cause:
            self._others, self._maybe = 0, None
            self.reported = replace(self.reported, found=found, last_s=now_s)
            return [self.reported]
        changes: list[Episode[T]] = []
        if self.reported is not None:
            self._others += 1
            if self._others < TIMES:
                self._maybe = found if is_fault else None
                return []
            changes += self.over(now_s)
        if not is_fault:
            self._maybe = None
            return changes
        again = self._maybe is not None and self._maybe.cause == found.cause
        if found.strength >= REPORTED_AT_ONCE or again:
            self._maybe = None
            self.reported = Episode(found, now_s, now_s)
            return [*changes, self.reported]
        self._maybe = found
        return changes

    def over(self, now_s: float) -> list[Episode[T]]:
        """End the reported episode, if there is one, and return it."""
        if self.reported is None:
            return []
        ended = replace(self.reported, ended_s=now_s)
        self.reported, self._others = None, 0
        return [ended]
