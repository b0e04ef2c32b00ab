"""How much of what nodes shipped was refused for good: a person has to hear of it who reads no logs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_gpu.clock import Clock


@dataclass(frozen=True, slots=True)
class Rejected:
    """An item that will never be stored; `index` is its place among those of its `kind`."""

    index: int
    why: str
    kind: str = "records"


class Rejections:
    """Since slurm-gpudbd started; for several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self.last_s: float | None = None
        """When the last one was, by the wall clock."""

    def add(self, rejected: Iterable[Rejected]) -> None:
        """These were refused just now."""
        with self._lock:
            self._counts.update(item.kind for item in rejected)
            self.last_s = self._clock.wall()

    def by_kind(self) -> Mapping[str, int]:
        """How many items; no kind of which there was none."""
        with self._lock:
            return dict(self._counts)
