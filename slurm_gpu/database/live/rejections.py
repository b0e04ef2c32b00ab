"""Count rejected items for the API and the metrics, which report them even to admins who do not read logs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_gpu.clock import Clock


@dataclass(frozen=True, slots=True)
class Rejected:
    """An item that will never be stored; `index` is its position among the items of its `kind`."""

    index: int
    why: str
    kind: str = "records"


class Rejections:
    """Counts items rejected since slurm-gpudbd started. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self.last_s: float | None = None
        """The wall-clock time of the last rejection."""

    def add(self, rejected: Iterable[Rejected]) -> None:
        """Count newly rejected items."""
        with self._lock:
            self._counts.update(item.kind for item in rejected)
            self.last_s = self._clock.wall()

    def by_kind(self) -> Mapping[str, int]:
        """Return the number of rejected items by kind; kinds without rejected items are omitted."""
        with self._lock:
            return dict(self._counts)
