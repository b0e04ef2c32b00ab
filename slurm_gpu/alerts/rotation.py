"""Whose turn it is to be judged in full: it costs its nodes a window, and slurm-gpudbd the reading of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationIntervals:
    """Seconds."""

    at_once: int = 12
    """Jobs that are judged beside each other."""
    again_s: float = 30.0
    """After a look that settled nothing, at first; twice as long each time."""
    longest_s: float = 900.0
    found_s: float = 60.0
    """While trouble is told."""
    worse: float = 1.5
    """Times as far off as it was when it was judged well: that is news."""
    news_s: float = 240.0
    """So long after news it is looked at each `again_s`: trouble shows by and by."""
    calm_s: float = 30.0
    """So often one that does not look different is judged all the same."""
    calm_again_s: float = 900.0
    wanted_again_s: float = 600.0


@dataclass(slots=True)
class _Turn:
    next_s: float = -math.inf
    judged_s: float = -math.inf
    pause_s: float = 0.0
    well: float = 0.0
    """The greatest score that it was judged well with, some time after it rose to it."""
    news_s: float | None = None
    score: float = 0.0
    """When its turn began."""


class JudgingRotation:
    """All jobs that are watched."""

    def __init__(self, pace: RotationIntervals | None = None) -> None:
        self.pace = pace or RotationIntervals()
        self._turns: dict[int, _Turn] = {}
        self._going: dict[int, float] = {}
        self._calm_s = -math.inf

    @property
    def going(self) -> Mapping[int, float]:
        """Jobs that are being judged, and since when."""
        return self._going

    def next(
        self,
        now_s: float,
        scores: Mapping[int, float],
        found: Collection[int] = (),
        wanted: Collection[int] = (),
    ) -> list[int]:
        """Who begins now, the farthest off first: `scores` are of all jobs, from 1 on worth a look.

        `found` are those of which trouble is told, or not settled; `wanted` those on which more depends.
        """
        self._turns = {job: turn for job, turn in self._turns.items() if job in scores}
        self._going = {job: since for job, since in self._going.items() if job in scores}
        room = self.pace.at_once - len(self._going)
        due: list[tuple[float, int]] = []
        for job, score in scores.items():
            turn = self._turns.get(job)
            if job in self._going:
                continue
            if turn is None:
                turn = self._turns[job] = _Turn()
            if score >= 1 and score > self.pace.worse * turn.well and turn.news_s is None:
                turn.news_s, turn.next_s = now_s, now_s
            ready = now_s >= turn.next_s
            if job in found and ready:
                due.append((1.0, job))  # it is known: what is not comes first
            elif score >= 1 and ready:
                due.append((score, job))
            elif job in wanted and now_s - turn.judged_s >= self.pace.wanted_again_s and ready:
                due.append((0.0, job))
        due.sort(key=lambda item: (-item[0], item[1]))
        chosen = [job for _, job in due[: max(room, 0)]]
        if not chosen and room > 0 and now_s - self._calm_s >= self.pace.calm_s:
            chosen = self._calm(now_s)
        for job in chosen:
            self._going[job] = now_s
            self._turns[job].score = scores[job]
        return chosen

    def judged(self, job: int, now_s: float, *, found: bool, settled: bool) -> None:
        """It was: trouble is told of it, or another look would settle something, or neither."""
        self._going.pop(job, None)
        turn = self._turns.setdefault(job, _Turn())
        turn.judged_s = now_s
        if found or not settled:
            turn.pause_s = 0.0
            turn.next_s = now_s + (self.pace.found_s if settled else self.pace.again_s / 2)
            return
        if turn.news_s is not None and now_s - turn.news_s < self.pace.news_s:
            turn.next_s = now_s + self.pace.again_s
            return
        turn.news_s = None
        turn.well = max(turn.well, turn.score)
        turn.pause_s = min(max(2 * turn.pause_s, self.pace.again_s), self.pace.longest_s)
        turn.next_s = now_s + turn.pause_s

    def _calm(self, now_s: float) -> list[int]:
        """The one that was judged the longest time ago."""
        ready = [
            (turn.judged_s, job)
            for job, turn in self._turns.items()
            if job not in self._going
            and now_s - turn.judged_s >= self.pace.calm_again_s
            and now_s >= turn.next_s
        ]
        if not ready:
            return []
        self._calm_s = now_s
        return [min(ready)[1]]
