"""Detect stalls, that is, times in which work waits but is not completed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_gpu.clock import Clock


class StallDetector:
    """Counts waiting items of one kind; every completed item is progress. Thread-safe."""

    def __init__(self, what: str, clock: Clock) -> None:
        """Set the text after the number of items, such as "requests are waiting, and none is answered"."""
        self._what, self._clock = what, clock
        self._lock = threading.Lock()
        self._waiting = 0
        self._since_s = 0.0

    def begin(self, n: int = 1) -> None:
        """Count more waiting items; if no item was waiting, the time without progress starts now."""
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
        """Count `n` items as waiting within the context."""
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
        """Return the value of Clock.monotonic() when progress was last made; meaningless if no item waits."""
        return self._since_s

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """Describe the stall if items wait and none was completed for `within_s`; otherwise return None."""
        with self._lock:
            return hang_of(self._what, self._waiting, now_s - self._since_s, within_s)


def hang_of(what: str, n_waiting: int, silent_s: float, within_s: float) -> str | None:
    """Describe the stall if items wait and `silent_s` is longer than `within_s`; otherwise return None."""
    if not n_waiting or silent_s <= within_s:
        return None
    return f"{n_waiting} {what} for {silent_s:.0f} s"
