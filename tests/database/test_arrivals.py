"""A node with a dead slurm-gpud is reported as soon as its shipments are overdue."""

from typing import Any

from slurm_gpu.database.accounting.slurm_view import QueueState, SlurmView
from slurm_gpu.database.live.arrivals import SILENT_AFTER_S, Arrivals
from tests.database.samples import T0, FakeClock, MemorySlurm, queued


def _queue(clock: FakeClock, **given: Any) -> QueueState:
    found = SlurmView(MemorySlurm(jobs=[queued(**given)]), clock).queue()
    assert found is not None
    return found


def test_a_node_with_a_long_job_that_sends_nothing_is_silent() -> None:
    clock = FakeClock()
    arrivals = Arrivals(clock)
    clock.now = T0 + SILENT_AFTER_S
    assert arrivals.silent(_queue(clock)) == []
    clock.now += 1
    assert arrivals.silent(_queue(clock)) == ["n1"]
    arrivals.record_shipment("n1")
    assert arrivals.silent(_queue(clock)) == []
    clock.now += SILENT_AFTER_S + 1
    assert arrivals.silent(_queue(clock)) == ["n1"]


def test_nothing_is_expected_without_a_long_job_with_gpus() -> None:
    clock = FakeClock()
    arrivals = Arrivals(clock)
    clock.now = T0 + 2 * SILENT_AFTER_S
    for given in ({"gpu_index": {}}, {"start_s": int(clock.now) - 60}, {"state": "COMPLETED"}):
        assert arrivals.silent(_queue(clock, **given)) == []
    assert arrivals.silent(None) == []


def test_after_its_start_slurm_gpudbd_reports_no_silent_node() -> None:
    clock = FakeClock()
    clock.now = T0 + 2 * SILENT_AFTER_S
    assert Arrivals(clock).silent(_queue(clock)) == []
