"""Return freed memory to the system at intervals.

Memory for jobs, samples and requests is short-lived and allocated between long-lived objects. The heap of the
C library therefore becomes fragmented, although its used part does not grow. After ten minutes of short jobs,
4 of slurm-gpud's 8 MB were unused; after forty threads had waited for MariaDB, 44 of slurm-gpudbd's 72 MB
were unused. By itself, the C library returns only free memory at the end of the heap.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator

from slurm_gpu.clock import Clock

EVERY_S = 60.0


def give_back() -> None:
    """Return freed memory to the system; do nothing if the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Heap:
    """Returns freed memory at most once every EVERY_S, when other work calls `tend`; causes no wake-ups."""

    def __init__(self, clock: Clock, do: Callable[[], None] = give_back) -> None:
        self._clock, self._give_back = clock, do
        self._due_s = clock.monotonic() + EVERY_S

    def tend(self) -> None:
        """Return freed memory if it was last returned at least EVERY_S ago."""
        now_s = self._clock.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + EVERY_S
            self._give_back()


@contextlib.contextmanager
def giving_back(do: Callable[[], None] = give_back, every_s: float = EVERY_S) -> Iterator[None]:
    """In a separate thread, return freed memory every `every_s` seconds until the context ends."""
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(every_s):
            do()

    thread = threading.Thread(target=go_on, name="heap", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
