"""Provide a wall clock for timestamps, a monotonic clock for durations, and the boot ID."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

# Reading both clocks takes a microsecond, unless the process is descheduled in between.
_AT_ONCE_S = 1e-4
_TRIES = 8


class Clock(Protocol):
    """The interface of the machine's clocks, which tests replace.

    NTP or an admin can set `wall()` forward or back. `monotonic()` never decreases, and restarts at boot. The
    values of the two clocks are not comparable.
    """

    def wall(self) -> float:
        """Return UTC epoch seconds."""

    def monotonic(self) -> float:
        """Return the seconds since boot, as in /proc/uptime, which shell hooks can read."""

    def boot_id(self) -> str:
        """Return the ID of this boot; durations are valid only within one boot."""


class SystemClock:
    """The clocks of this machine."""

    def __init__(self) -> None:
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def wall(self) -> float:
        """Return UTC epoch seconds (CLOCK_REALTIME)."""
        return time.time()

    def monotonic(self) -> float:
        """Return CLOCK_BOOTTIME in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """Return the kernel's boot ID."""
        return self._boot_id


def wall_ahead_s(clock: Clock) -> float:
    """Return `wall()` minus `monotonic()` in seconds.

    On a busy machine, the process may be paused between the two calls for a tenth of a second or more. Such a
    pause must not appear as a clock step. Therefore, each attempt reads the wall clock between two reads
    of the monotonic clock, and the attempt with the shortest time between these reads is used.
    """
    narrowest_s = ahead_s = float("inf")
    for _ in range(_TRIES):
        before_s, wall_s, after_s = clock.monotonic(), clock.wall(), clock.monotonic()
        if after_s - before_s < narrowest_s:
            narrowest_s = after_s - before_s
            ahead_s = wall_s - (before_s + after_s) / 2
        if narrowest_s <= _AT_ONCE_S:
            break
    return ahead_s
