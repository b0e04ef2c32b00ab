"""Work that waits to be done, and since when none of it was: so it is seen that it hangs."""

from __future__ import annotations

import threading

from slurm_gpu.clock import Clock


class Lane:
    """Work of one kind, of which any that is done shows that it gets on; for several threads."""

    def __init__(self, what: str, clock: Clock) -> None:
        """`what` follows the number of those that wait, as in "GET requests wait, and none was answered"."""
        self._what, self._clock = what, clock
        self._lock = threading.Lock()
        self._waiting = 0
        self._since_s = 0.0

    def begin(self) -> None:
        """One more waits; who waits alone waits from now on."""
        with self._lock:
            if not self._waiting:
                self._since_s = self._clock.monotonic()
            self._waiting += 1

    def end(self) -> None:
        """One was done."""
        with self._lock:
            self._waiting -= 1
            self._since_s = self._clock.monotonic()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    def hangs(self, now_s: float, within_s: float) -> str | None:
        """In words, where some wait and none was done within that time."""
        with self._lock:
            waiting, silent_s = self._waiting, now_s - self._since_s
        if not waiting or silent_s <= within_s:
            return None
        return f"{waiting} {self._what} for {silent_s:.0f} s"
