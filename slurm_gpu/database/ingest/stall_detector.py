"""Work that waits to be done, and since when none of it was: so it is seen that it hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_gpu.clock import Clock


class StallDetector:
    """Work of one kind, of which any that is done shows that it gets on; for several threads."""

    def __init__(self, what: str, clock: Clock) -> None:
        """`what` follows the number of those that wait, as in "GET requests wait, and none was answered"."""
        self._what, self._clock = what, clock
        self._lock = threading.Lock()
        self._waiting = 0
        self._since_s = 0.0

    def begin(self, n: int = 1) -> None:
        """So many more wait; who waits alone waits from now on."""
        with self._lock:
            if not self._waiting:
                self._since_s = self._clock.monotonic()
            self._waiting += n

    def end(self, n: int = 1) -> None:
        """So many were done."""
        with self._lock:
            self._waiting -= n
            self._since_s = self._clock.monotonic()

    @contextmanager
    def waiting(self, n: int) -> Iterator[None]:
        """So many wait until it is left."""
        self.begin(n)
        try:
            yield
        finally:
            self.end(n)

    @property
    def n_waiting(self) -> int:
        """How many wait now."""
        return self._waiting

    @property
    def since_s(self) -> float:
        """Since when none of them was done, by Clock.monotonic(); it says nothing where none waits."""
        return self._since_s

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """In words, where some wait and none was done within that time."""
        with self._lock:
            return hang_of(self._what, self._waiting, now_s - self._since_s, within_s)


def hang_of(what: str, n_waiting: int, silent_s: float, within_s: float) -> str | None:
    """In words, where so many wait and none was done for so long, which is longer than it should be."""
    if not n_waiting or silent_s <= within_s:
        return None
    return f"{n_waiting} {what} for {silent_s:.0f} s"
