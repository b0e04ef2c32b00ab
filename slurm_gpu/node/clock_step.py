"""Detect steps of the wall clock, which affect timestamps but not durations."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from slurm_gpu.clock import Clock, wall_ahead_s

log = logging.getLogger(__name__)

# NTP slews both clocks alike, so their difference changes only when the wall clock is stepped.
STEP_S = 1.0
# Repeated steps are added up and reported at most once per this interval.
PAUSE_S = 60.0
# Timestamps with a larger error than this are useless, since the driver takes up to six samples per second.
_PLACED_WITHIN_S = 0.05
_WRITTEN_WITHIN_S = 0.01
_LEFT_OUT = "the driver's earlier samples are dropped; their time is recorded as a gap"


class Offset(NamedTuple):
    """The wall-clock time minus Clock.monotonic(); it is valid only within one boot."""

    boot_id: str
    ahead_s: float


class Stamped(Protocol):
    """An object with timestamps from both clocks, such as a hook event (slurm_gpu.node.allocation.hooks)."""

    @property
    def at_s(self) -> float:
        """Return the wall-clock time."""

    @property
    def uptime_s(self) -> float:
        """Return Clock.monotonic()."""

    @property
    def boot_id(self) -> str:
        """Return the boot ID."""


class KeptOffset(Protocol):
    """Stores the clock offset for the next process (slurm_gpu.node.shipping.spool)."""

    def clock_offset(self) -> Offset | None:
        """Return the saved offset, or None if it is missing or cannot be read."""

    def save_clock_offset(self, offset: Offset) -> None:
        """Save the offset."""


class ClockSteps:
    """Compares the clock offset with the last known offset, which an earlier process may have saved."""

    def __init__(self, clock: Clock, kept: KeptOffset) -> None:
        self._clock, self._kept = clock, kept
        self._written = kept.clock_offset()
        if self._written is not None and self._written.boot_id != clock.boot_id():
            self._written = None
        self._offset_s = wall_ahead_s(clock) if self._written is None else self._written.ahead_s
        self._not_before_s = 0.0

    def was_unchanged(self, events: Iterable[Stamped]) -> bool:
        """Return whether the wall clock has certainly not been set since an earlier process saved its offset.

        Hook events (`events`) have timestamps from both clocks, so steps that were later undone are also
        detected. Call this when slurm-gpud starts. If the result is false, the reason is logged.
        """
        if self._written is None:
            log.info("it is unknown whether the wall clock was set recently: %s", _LEFT_OUT)
            return False
        ahead_s = wall_ahead_s(self._clock)
        # The timestamps of a hook may differ by the time that a busy node takes to start `date`.
        by_hooks = any(
            abs(event.at_s - event.uptime_s - ahead_s) >= STEP_S
            for event in events
            if event.boot_id == self._clock.boot_id()
        )
        if by_hooks or abs(self._written.ahead_s - ahead_s) > _PLACED_WITHIN_S:
            log.warning("the wall clock was set while slurm-gpud was down: %s", _LEFT_OUT)
            return False
        return True

    def step_s(self) -> float | None:
        """Return the step of the wall clock since the last reported step, or None if there was none."""
        now_s = self._clock.monotonic()
        moved_s = wall_ahead_s(self._clock) - self._offset_s
        if abs(moved_s) < STEP_S or now_s < self._not_before_s:
            return None
        self._offset_s += moved_s
        self._not_before_s = now_s + PAUSE_S
        return moved_s

    def write(self) -> None:
        """Save the current clock offset for the next process."""
        offset = Offset(self._clock.boot_id(), wall_ahead_s(self._clock))
        if self._written is None or abs(self._written.ahead_s - offset.ahead_s) > _WRITTEN_WITHIN_S:
            self._kept.save_clock_offset(offset)
            self._written = offset
