"""How a job that agreed to share runs: beside whom, and from when to when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Speed = Callable[[str, Sequence[str]], float]
"""That of a key beside others, as it was predicted."""

_LEAST_BESIDE_S = 5.0
"""Of less time beside another nothing can be said: Slurm tells starts and ends in whole seconds."""
_LEAST_PART = 0.2
"""Nor of a smaller part of a run: by how much runs alone vary, all of that would be laid on it."""


class CorunStretch(NamedTuple):
    """A time in which the same jobs were on the GPU."""

    from_s: float
    others: tuple[str, ...]
    """Their keys, sorted; without those that are suspended."""
    is_suspended: bool = False
    """Whether the job itself was, and did nothing."""


@dataclass(slots=True)
class CorunHistory:
    """Of one run of one job. Times are epoch seconds."""

    key: str
    start_s: float
    stretches: list[CorunStretch] = field(default_factory=list)
    end_s: float | None = None
    is_whole: bool = True
    """Whether all of it was seen, and it always ran: not of one that ran when slurm-gpuctld came."""

    def seen(self, at_s: float, others: Iterable[str], *, is_suspended: bool = False) -> None:
        """Who is beside it now, if it is not suspended itself."""
        now = () if is_suspended else tuple(sorted(others)), is_suspended
        if not self.stretches:
            self.stretches.append(CorunStretch(self.start_s if self.is_whole else at_s, *now))
        elif self.stretches[-1][1:] != now:
            self.stretches.append(CorunStretch(at_s, *now))
        self.is_whole = self.is_whole and not is_suspended

    @property
    def beside(self) -> frozenset[str]:
        """All keys that were ever beside it."""
        return frozenset(key for stretch in self.stretches for key in stretch.others)

    def done_s(self, now_s: float, speed: Speed) -> float:
        """Work done, in seconds alone, at the speeds that are predicted."""
        return sum(
            max(0.0, end_s - stretch.from_s) * speed(self.key, stretch.others)
            for stretch, end_s in zip(self.stretches, self._cancellations(now_s), strict=True)
            if not stretch.is_suspended
        )

    def speeds(self, alone_s: float, allocated_s: float, speed: Speed) -> dict[str, float]:
        """Return the speed next to each co-runner that a complete run of `allocated_s` shows.

        Where several were beside it, one after another or at once, each is off by the same factor from what
        was predicted.
        """
        if self.end_s is None or not self.is_whole or self.end_s <= self.start_s:
            return {}
        finer = allocated_s / (self.end_s - self.start_s)
        spans = [
            ((end_s - stretch.from_s) * finer, stretch.others)
            for stretch, end_s in zip(self.stretches, self._cancellations(self.end_s), strict=True)
        ]
        beside_s = sum(seconds for seconds, others in spans if others)
        if beside_s < max(_LEAST_BESIDE_S, _LEAST_PART * sum(seconds for seconds, _ in spans)):
            return {}
        left_s = alone_s - sum(seconds for seconds, others in spans if not others)
        predicted_s = sum(seconds * speed(self.key, others) for seconds, others in spans if others)
        factor = max(left_s, 0.0) / predicted_s
        return {other: speed(self.key, (other,)) * factor for other in sorted(self.beside)}

    def _cancellations(self, end_s: float) -> list[float]:
        return [*(stretch.from_s for stretch in self.stretches[1:]), end_s][: len(self.stretches)]
