"""Notices that somebody set the wall clock. Durations do not care; stamps of before and after do."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from slurm_gpu.clock import Clock, wall_ahead_s

log = logging.getLogger(__name__)

# NTP slews both clocks alike, so that their difference moves only in steps.
STEP_S = 1.0
# A clock that is set again and again is told of so often at most, as the sum.
PAUSE_S = 60.0
# The driver samples each 1/6 s at the most often: its stamps are worth nothing once they are off by this.
_PLACED_WITHIN_S = 0.05
_WRITTEN_WITHIN_S = 0.01
_LEFT_OUT = "what the driver has kept from before now is not used, that time is a gap"


class Offset(NamedTuple):
    """In the boot `boot_id` the wall clock was `ahead_s` ahead of Clock.monotonic()."""

    boot_id: str
    ahead_s: float


class Stamped(Protocol):
    """What has stamps of both clocks, as hook events do (slurm_gpu.node.allocation.hooks)."""

    @property
    def at_s(self) -> float:
        """The wall clock."""

    @property
    def uptime_s(self) -> float:
        """Clock.monotonic()."""

    @property
    def boot_id(self) -> str:
        """In which boot."""


class KeptOffset(Protocol):
    """Where a process writes down how the clocks stood, for the next one (slurm_gpu.node.shipping.spool)."""

    def clock_offset(self) -> Offset | None:
        """What was saved last; None if nothing was, or it cannot be read."""

    def save_clock_offset(self, offset: Offset) -> None:
        """Replace it."""


class ClockSteps:
    """Compares the clocks whenever it is asked, at first with how they stood for an earlier process."""

    def __init__(self, clock: Clock, kept: KeptOffset) -> None:
        self._clock, self._kept = clock, kept
        self._written = kept.clock_offset()
        if self._written is not None and self._written.boot_id != clock.boot_id():
            self._written = None
        self._offset_s = wall_ahead_s(clock) if self._written is None else self._written.ahead_s
        self._not_before_s = 0.0

    def was_unchanged(self, events: Iterable[Stamped]) -> bool:
        """Was the wall clock surely not set since an earlier process of this boot wrote how it stood?

        Also where it was set there and back again: a hook that ran in between (`events`) has stamps of both
        clocks. To be asked at the start; the log is told if not.
        """
        if self._written is None:
            log.info("whether the wall clock was set of late is not known: %s", _LEFT_OUT)
            return False
        ahead_s = wall_ahead_s(self._clock)
        # The hooks' own stamps may be apart by as long as a busy node takes to start date.
        by_hooks = any(
            abs(event.at_s - event.uptime_s - ahead_s) >= STEP_S
            for event in events
            if event.boot_id == self._clock.boot_id()
        )
        if by_hooks or abs(self._written.ahead_s - ahead_s) > _PLACED_WITHIN_S:
            log.warning("the wall clock was set while slurm-gpud was away: %s", _LEFT_OUT)
            return False
        return True

    def step_s(self) -> float | None:
        """By how much the wall clock was set since last told, forward or back; None if it was not."""
        now_s = self._clock.monotonic()
        moved_s = wall_ahead_s(self._clock) - self._offset_s
        if abs(moved_s) < STEP_S or now_s < self._not_before_s:
            return None
        self._offset_s += moved_s
        self._not_before_s = now_s + PAUSE_S
        return moved_s

    def write(self) -> None:
        """Keep how the clocks stand now for the next process."""
        offset = Offset(self._clock.boot_id(), wall_ahead_s(self._clock))
        if self._written is None or abs(self._written.ahead_s - offset.ahead_s) > _WRITTEN_WITHIN_S:
            self._kept.save_clock_offset(offset)
            self._written = offset
