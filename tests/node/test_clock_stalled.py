"""A process that stalls while it reads the clocks, as on a busy machine, detects no clock step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_gpu.clock import wall_ahead_s
from slurm_gpu.node.clock_step import ClockSteps
from slurm_gpu.node.measure.utilization import UtilizationSpans
from slurm_gpu.node.shipping.spool import Spool
from tests.node.fakes import WALL_0, FakeClock


class StallingClock(FakeClock):
    """A clock that stalls before each reading for the next duration in `stalls_s`, if any."""

    def __init__(self, stalls_s: Sequence[float] = ()) -> None:
        super().__init__()
        self.stalls_s = list(stalls_s)

    def _stall(self) -> None:
        if self.stalls_s:
            self.advance(self.stalls_s.pop(0))

    def wall(self) -> float:
        self._stall()
        return super().wall()

    def monotonic(self) -> float:
        self._stall()
        return super().monotonic()


@pytest.mark.parametrize("stalls_s", [(0, 0.3), (0, 0, 0.3), (0.3,), (0, 5, 5)])
def test_the_difference_of_the_clocks_is_exact(stalls_s: Sequence[float]) -> None:
    assert wall_ahead_s(StallingClock(stalls_s)) == pytest.approx(WALL_0, abs=1e-4)


def test_on_a_stalling_machine_the_closest_reading_counts() -> None:
    clock = StallingClock([0, 2, 2, 0, 0.2, 0, 0, 2, 2] + 40 * [2.0])
    assert wall_ahead_s(clock) == pytest.approx(WALL_0, abs=0.11)


def test_a_stall_is_not_a_clock_step(tmp_path: Path) -> None:
    clock = StallingClock()
    spans, steps = UtilizationSpans(clock, clock.now_s), ClockSteps(clock, Spool(tmp_path))
    clock.stalls_s = [0, 0.3]
    assert not spans.clock_was_set(clock.now_s)
    clock.stalls_s = [0, 5]
    assert steps.step_s() is None
