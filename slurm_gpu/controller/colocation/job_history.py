"""Record the co-runners of a job during its run, and the times at which they change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# The type of a function that returns the predicted speed, given the keys of a job and of its co-runners.
Speed = Callable[[str, Sequence[str]], float]

# Minimum time with co-runners for inferring speeds, because Slurm reports starts and ends in whole seconds.
_MIN_SHARED_S = 5.0
# Minimum part of a run with co-runners for inferring speeds; with less, the variation between runs dominates.
_LEAST_PART = 0.2


class RunKey(NamedTuple):
    """The key of one run of a job."""

    job_id: int
    start_s: int


class CorunProgress(NamedTuple):
    """The progress of a running job, in seconds of running alone."""

    key: str
    done_s: float
    left_s: float
    lost_s: float = 0.0
    """The time that the job has lost to its co-runners; counted only if the slowdown is limited."""
    is_whole: bool = True
    """Whether the run was observed completely; if not, the job may have lost more time than `lost_s`."""


class CorunStretch(NamedTuple):
    """A period during which the co-runners did not change."""

    from_s: float
    others: tuple[str, ...]
    """The sorted keys of the co-runners, excluding suspended jobs."""
    is_suspended: bool = False
    """Whether the job itself was suspended."""


@dataclass(slots=True)
class CorunHistory:
    """The history of one run of one job; times are epoch seconds."""

    key: str
    start_s: float
    stretches: list[CorunStretch] = field(default_factory=list)
    end_s: float | None = None
    is_whole: bool = True
    """Whether the run was observed from its start and was never suspended."""

    def seen(self, at_s: float, others: Iterable[str], *, is_suspended: bool = False) -> None:
        """Record the job's current co-runners."""
        now = () if is_suspended else tuple(sorted(others)), is_suspended
        if not self.stretches:
            self.stretches.append(CorunStretch(self.start_s if self.is_whole else at_s, *now))
        elif self.stretches[-1][1:] != now:
            self.stretches.append(CorunStretch(at_s, *now))
        self.is_whole = self.is_whole and not is_suspended

    @property
    def co_runners(self) -> frozenset[str]:
        """The keys of all co-runners so far."""
        return frozenset(key for stretch in self.stretches for key in stretch.others)

    def done_s(self, now_s: float, speed: Speed) -> float:
        """Return the work done so far at the predicted speeds, in seconds of running alone."""
        return sum(
            max(0.0, end_s - stretch.from_s) * speed(self.key, stretch.others)
            for stretch, end_s in zip(self.stretches, self._cancellations(now_s), strict=True)
            if not stretch.is_suspended
        )

    def speeds(self, alone_s: float, allocated_s: float, speed: Speed) -> dict[str, float]:
        """Return the speed next to each co-runner, inferred from a complete run of `allocated_s` seconds.

        `alone_s` is the duration of the same work when the job runs alone. With several co-runners, one
        after another or at once, all speeds are assumed to deviate from their predictions by the same factor.
        """
        if self.end_s is None or not self.is_whole or self.end_s <= self.start_s:
            return {}
        finer = allocated_s / (self.end_s - self.start_s)
        spans = [
            ((end_s - stretch.from_s) * finer, stretch.others)
            for stretch, end_s in zip(self.stretches, self._cancellations(self.end_s), strict=True)
        ]
        shared_s = sum(seconds for seconds, others in spans if others)
        if shared_s < max(_MIN_SHARED_S, _LEAST_PART * sum(seconds for seconds, _ in spans)):
            return {}
        left_s = alone_s - sum(seconds for seconds, others in spans if not others)
        predicted_s = sum(seconds * speed(self.key, others) for seconds, others in spans if others)
        factor = max(left_s, 0.0) / predicted_s
        return {other: speed(self.key, (other,)) * factor for other in sorted(self.co_runners)}

    def _cancellations(self, end_s: float) -> list[float]:
        return [*(stretch.from_s for stretch in self.stretches[1:]), end_s][: len(self.stretches)]
