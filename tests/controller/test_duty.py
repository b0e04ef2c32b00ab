"""Duties run when due, one at a time, and no failure ends the daemon."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.controller.watcher import cpu_seconds
from slurm_gpu.errors import SlurmError
from tests.controller.fakes import Clock

IN_CHARGE = QueueView(answered=True, in_charge=True)
EVERY_S = 10.0


class Sweep(Duty):
    """A duty that counts its runs."""

    def __init__(self, **given: Any) -> None:
        self.clock = Clock()
        super().__init__(self.clock, "not swept: %s", "swept again", every_s=EVERY_S, **given)
        self.n = 0
        self.error: Exception | None = None

    def work(self, view: QueueView) -> None:
        self.n += 1
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("view", [QueueView(answered=True), QueueView(in_charge=True)])
def test_nothing_is_done_if_slurmctld_is_down_or_inactive(view: QueueView) -> None:
    sweep = Sweep()
    sweep.run(view)
    assert sweep.n == 0


def test_a_duty_runs_as_often_as_it_is_due() -> None:
    sweep = Sweep()
    for _ in range(int(3 * EVERY_S)):
        sweep.run(IN_CHARGE)
        sweep.clock.advance(1)
    assert sweep.n == 3


def test_costly_work_is_done_less_often() -> None:
    sweep = Sweep(cpu=lambda: float(sweep.n), cpu_share=0.01)
    sweep.run(IN_CHARGE)
    sweep.clock.advance(99)
    sweep.run(IN_CHARGE)
    assert sweep.n == 1
    sweep.clock.advance(1)
    sweep.run(IN_CHARGE)
    assert sweep.n == 2


def test_a_failure_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    sweep = Sweep()
    sweep.error = SlurmError("slurmctld is down")
    for _ in range(3):
        sweep.run(IN_CHARGE)
        sweep.clock.advance(EVERY_S)
    sweep.error = None
    sweep.run(IN_CHARGE)
    assert (sweep.n, caplog.messages) == (4, ["not swept: slurmctld is down", "swept again"])


def test_in_the_background_it_is_done_once_at_a_time_and_no_error_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    under_way: list[tuple[Callable[[], None], Future[None]]] = []

    def background(task: Callable[[], None]) -> Future[None]:
        under_way.append((task, Future()))
        return under_way[-1][1]

    sweep = Sweep(background=background)
    sweep.error = ValueError("a mistake")
    for _ in range(3):
        sweep.run(IN_CHARGE)
        sweep.clock.advance(EVERY_S)
    ((task, future),) = under_way
    task()
    future.set_result(None)
    assert caplog.messages == ["not swept: ValueError: a mistake"]
    sweep.run(IN_CHARGE)
    assert len(under_way) == 2


def test_work_in_other_threads_does_not_delay_a_duty() -> None:
    def plan() -> None:
        while time.thread_time() < 0.3:
            pass

    class Planned(Sweep):
        def work(self, view: QueueView) -> None:
            super().work(view)
            thread = threading.Thread(target=plan)
            thread.start()
            thread.join()

    duty = Planned(cpu=cpu_seconds, cpu_share=0.02)
    for _ in range(2):
        duty.run(IN_CHARGE)
        duty.clock.advance(EVERY_S)
    assert duty.n == 2, "0.3 s of this thread would cost a pause of 15 s"
