"""Time, injected: a wall clock for stamps, a monotonic one for durations, the boot for "same boot?"."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

# Reading both clocks takes a microsecond, unless the process is kept from running meanwhile.
_AT_ONCE_S = 1e-4
_TRIES = 8


class Clock(Protocol):
    """What the rest of the code may ask about time.

    `wall()` may step in either direction (NTP, an admin); `monotonic()` never goes back
    and starts anew at boot. Neither is comparable with the other.
    """

    def wall(self) -> float:
        """UTC epoch seconds."""

    def monotonic(self) -> float:
        """Seconds since boot, the clock of /proc/uptime, so that a shell hook can stamp with it too."""

    def boot_id(self) -> str:
        """Return the id of this boot; monotonic times compare only within one boot."""


class SystemClock:
    """The machine's own clocks."""

    def __init__(self, boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")) -> None:
        self._boot_id = boot_id_file.read_text().strip()

    def wall(self) -> float:
        """UTC epoch seconds (CLOCK_REALTIME)."""
        return time.time()

    def monotonic(self) -> float:
        """CLOCK_BOOTTIME in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """Return the kernel's boot id."""
        return self._boot_id


def wall_ahead_s(clock: Clock) -> float:
    """`wall()` minus `monotonic()`, in seconds: what to add to one for the other.

    On a busy machine this process may stand still between two calls, for a tenth of a second and more; that
    is not to be taken for a clock that was set. So the wall clock is read between two looks at the other,
    until they are close; of several tries the closest counts.
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
