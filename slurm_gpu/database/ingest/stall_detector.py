"""Detect that waiting work makes no progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_gpu.clock import Clock


class StallDetector:
    """Counts waiting work of one kind; every completion is progress. Thread-safe."""

    def __init__(self, what: str, clock: Clock) -> None:
        """Set the text after the number of waiting items: "GET requests wait and none was answered"."""
        self._what, self._clock = what, clock
        self._lock = threading.Lock()
        self._waiting = 0
        self._since_s = 0.0

    def begin(self, n: int = 1) -> None:
        """Count more waiting items. The clock starts if no item was waiting."""
        with self._lock:
            if not self._waiting:
                self._since_s = self._clock.monotonic()
            self._waiting += n

    def end(self, n: int = 1) -> None:
        """Count items as done."""
        with self._lock:
            self._waiting -= n
            self._since_s = self._clock.monotonic()

    @contextmanager
    def waiting(self, n: int) -> Iterator[None]:
        """Count items as waiting within the context."""
        self.begin(n)
        try:
            yield
        finally:
            self.end(n)

    @property
    def n_waiting(self) -> int:
        """Return the number of waiting items."""
        return self._waiting

    @property
    def since_s(self) -> float:
        """Return the time of the last progress by Clock.monotonic(); meaningless if no item waits."""
        return self._since_s

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """Describe the stall if items wait and none was done within that time."""
        with self._lock:
            return hang_of(self._what, self._waiting, now_s - self._since_s, within_s)


def hang_of(what: str, n_waiting: int, silent_s: float, within_s: float) -> str | None:
    """Describe the stall if `silent_s` is longer than `within_s`."""
    if not n_waiting or silent_s <= within_s:
        return None
    return f"{n_waiting} {what} for {silent_s:.0f} s"
