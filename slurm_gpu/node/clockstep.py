"""Notices that somebody set the wall clock. Durations do not care; stamps of before and after do."""

from __future__ import annotations

from slurm_gpu.clock import Clock, wall_ahead_s

# NTP slews both clocks alike, so that their difference moves only in steps.
STEP_S = 1.0
# A clock that is set again and again is told of so often at most, as the sum.
PAUSE_S = 60.0


class ClockSteps:
    """Compares the clocks whenever it is asked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s = wall_ahead_s(clock)
        self._not_before_s = 0.0

    def step_s(self) -> float | None:
        """By how much the wall clock was set since last told, forward or back; None if it was not."""
        now_s = self._clock.monotonic()
        moved_s = wall_ahead_s(self._clock) - self._offset_s
        if abs(moved_s) < STEP_S or now_s < self._not_before_s:
            return None
        self._offset_s += moved_s
        self._not_before_s = now_s + PAUSE_S
        return moved_s
