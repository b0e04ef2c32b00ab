"""slurm-gpud is killed, down or stopped, or the node reboots, while jobs begin and end."""

import shutil

import pytest

from slurm_gpu.database.accounting.steady_clock import allocated_s
from slurm_gpu.errors import RecordError
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.wire import Record
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core


def ship(machine: Machine) -> list[Record]:
    """Ship all waiting items and return the records."""
    records = machine.records(final=None)
    assert machine.spool is not None
    for item in machine.spool.queue.waiting(10_000, set(machine.spool.queue.waiting_keys())):
        machine.spool.queue.shipped(item)
    machine.spool.commit()
    return records


@pytest.mark.parametrize("epilog", [True, False])
def test_a_kill_between_two_runs_of_a_job_keeps_them_separate(
    machine: Machine, gpu: FakeGpu, *, epilog: bool
) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(15)
    if epilog:
        machine.hook("epilog", 7, "0", restart=1)
    machine.hook("prolog", 7, "0", restart=1)
    machine.kill()
    machine.start()
    machine.run(20)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    assert machine.node is not None
    assert not machine.node.open_jobs()
    one, two = (record for record in machine.records() if record.final)
    assert (one.restart, two.restart) == (0, 1)
    assert one.allocated_s == pytest.approx(15, abs=0.1)
    assert two.allocated_s == pytest.approx(20, abs=0.1)
    machine.kill()
    machine.start()
    assert machine.node is not None
    assert not machine.node.open_jobs()


def test_after_kill_9_the_job_continues_in_a_new_segment(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(60)
    machine.kill()
    machine.clock.advance(5)
    machine.start()
    machine.run(30)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    first, second = machine.records(final=None)
    assert first.segment != second.segment
    assert (first.final, second.final) == (False, True)
    assert (first.restart, first.prolog_s) == (second.restart, second.prolog_s)
    assert first.allocated_s == pytest.approx(60, abs=10)
    assert first.sampled_s == pytest.approx(first.allocated_s, abs=1.1)
    assert second.allocated_s == pytest.approx(30, abs=0.1)
    assert first.last_s <= second.first_s


def test_a_job_that_ended_while_the_daemon_was_down_is_closed_at_its_end(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(60)
    machine.kill()
    machine.clock.advance(5)
    machine.hook("epilog", 7, "0")
    machine.clock.advance(100)
    machine.start()
    (record,) = machine.records(final=None)
    assert record.final
    assert record.allocated_s == pytest.approx(65, abs=0.02)
    assert 49 < record.sampled_s <= 60
    assert machine.hook_files() == []


@pytest.mark.parametrize("shipped", [True, False])
@pytest.mark.parametrize("killed_after_s", [None, 0, 1.5])
def test_an_epilog_noticed_after_the_restart_keeps_the_allocated_time(
    machine: Machine, *, killed_after_s: float | None, shipped: bool
) -> None:
    """Test an epilog whose file appears after the first scan, although its time stamp is earlier."""
    start = machine.clock.now_s
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 28)
    before = ship(machine) if shipped else []
    machine.kill()
    machine.run_until(start + 32)
    epilog = machine.write_hook("epilog", 7, "0")
    written = epilog.read_bytes()
    epilog.unlink()
    machine.clock.advance(0.2)
    machine.start()
    if killed_after_s is not None:
        machine.run(killed_after_s)
        machine.kill()
    epilog.write_bytes(written)
    if killed_after_s is not None:
        machine.start()
    machine.run(3)
    records = [*before, *machine.records(final=None)]
    assert allocated_s(records) == pytest.approx(32, abs=0.02)
    assert sum(record.allocated_s for record in records) == pytest.approx(32, abs=0.02)
    assert max(records, key=lambda record: record.uptime_s or 0).final
    assert machine.hook_files() == []


def test_a_job_that_ended_in_an_outage_ends_at_the_time_that_slurm_reports(
    machine: Machine,
) -> None:
    start = machine.clock.now_s
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 28)
    machine.kill()
    end_s = int(start + machine.clock.offset_s) + 60
    machine.run_until(start + 100)
    machine.start()
    machine.run(100)
    assert machine.node is not None
    machine.node.end_jobs({7: {"restart": 0, "end_s": end_s}})
    machine.run(3)
    assert allocated_s(machine.records(final=None)) == pytest.approx(60, abs=1.1)


def test_a_job_within_an_outage_has_a_record_without_samples(machine: Machine) -> None:
    machine.kill()
    machine.hook("prolog", 7, "0")
    machine.clock.advance(3)
    machine.hook("epilog", 7, "0")
    machine.clock.advance(10)
    machine.start()
    (record,) = machine.records(final=None)
    assert (record.final, record.sampled_s, record.device) == (True, 0, "GPU-0")
    assert record.allocated_s == pytest.approx(3, abs=0.01)
    assert machine.hook_files() == []


@pytest.mark.parametrize("restarted", [False, True])
def test_the_device_of_a_job_within_an_outage_is_resolved_once_the_driver_starts(
    machine: Machine, *, restarted: bool
) -> None:
    machine.kill()
    machine.hook("prolog", 7, "0")
    machine.clock.advance(3)
    machine.hook("epilog", 7, "0")
    machine.clock.advance(10)
    machine.reader.starting = True
    machine.start()
    machine.run(8)
    if restarted:
        machine.kill()
        machine.start()
    assert machine.records(final=None) == []
    machine.reader.starting = False
    machine.run(1)
    (record,) = machine.records(final=None)
    assert (record.final, record.sampled_s, record.device) == (True, 0, "GPU-0")
    assert record.allocated_s == pytest.approx(3, abs=0.01)
    assert machine.hook_files() == []


def test_a_missing_driver_delays_no_record_for_long(machine: Machine) -> None:
    machine.kill()
    machine.hook("prolog", 7, "0")
    machine.clock.advance(3)
    machine.hook("epilog", 7, "0", restart=1)
    machine.hook("prolog", 7, "0", restart=1)
    machine.reader.starting = True
    machine.start()
    machine.run(21)
    (record,) = machine.records()
    assert (record.restart, record.device) == (0, "position:0")
    assert record.allocated_s == pytest.approx(3, abs=0.01)
    machine.reader.starting = False
    machine.run(5)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    assert [record.device for record in machine.records()] == ["position:0", "GPU-0"]
    assert machine.hook_files() == []


def test_a_job_that_began_in_an_outage_is_allocated_since_its_prolog(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 100, 50, GIB))
    machine.kill()
    machine.hook("prolog", 7, "0")
    machine.clock.advance(5)
    machine.start()
    machine.run_until(start + 30)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(30, abs=0.02)
    assert record.sampled_s == pytest.approx(30, abs=0.2)
    assert core(record) == pytest.approx(50, abs=0.5)


def test_an_unreadable_record_in_the_spool_does_not_stop_the_daemon(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(30)
    machine.kill()
    machine.hook("epilog", 7, "0")

    def unreadable(*_: str) -> None:
        raise RecordError("util_hist_ms: sums to more than allocated_s 3.0")

    monkeypatch.setattr(Spool, "last_record", unreadable)
    machine.start()
    machine.run(5)
    (record,) = machine.records()
    assert record.final
    assert record.sampled_s == 0


def test_a_reboot_closes_open_runs(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(60)
    machine.kill()
    machine.clock = FakeClock("boot-2", monotonic_s=20.0)
    machine.clock.offset_s += 1200
    machine.start()
    (record,) = machine.records(final=None)
    assert (record.boot_id, record.final) == ("boot-1", True)
    assert record.allocated_s == pytest.approx(60, abs=10.1)
    machine.run(30)
    assert machine.records() == [record]


def test_a_stop_stores_the_latest_samples(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(7)
    assert machine.node is not None
    machine.node.stop()
    machine.kill()
    machine.start()
    record, next_one = sorted(machine.records(final=None), key=lambda record: record.uptime_s or 0)
    assert next_one.allocated_s == 0
    assert record.allocated_s == pytest.approx(7, abs=0.01)
    assert record.sampled_s == pytest.approx(7, abs=0.3)


@pytest.mark.parametrize("co_runner_ends", [True, False])
def test_activity_of_a_co_runner_in_an_outage_is_not_charged_to_an_idle_job(
    machine: Machine, gpu: FakeGpu, *, co_runner_ends: bool
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + (20 if co_runner_ends else 30), 80, 20 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 10)
    machine.kill()
    machine.clock.advance(0.5)
    machine.write_hook("prolog", 8, "0")
    machine.clock.advance(9.5)
    if co_runner_ends:
        machine.write_hook("epilog", 7, "0")
    machine.clock.advance(0.5)
    machine.start()
    machine.run_until(start + 30)
    if not co_runner_ends:
        machine.hook("epilog", 7, "0")
    machine.hook("epilog", 8, "0")
    machine.run(3)
    (idle,) = (record for record in machine.records() if record.job_id == 8)
    assert idle.allocated_s == pytest.approx(19.5, abs=0.02)
    assert idle.util_hist_ms is not None
    assert sum(ms for percent, ms in idle.util_hist_ms.items() if percent > 0) == 0
    # The idle job is measured when the co-runner has ended or is sampled.
    assert idle.sampled_s == pytest.approx(10.0 if co_runner_ends else 9.5, abs=0.2)
    assert idle.power_w is None or idle.power_w.seconds <= 10


def test_consecutive_jobs_in_an_outage_are_separated(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work += [Work(7, start, start + 14, 80, GIB), Work(8, start + 15, start + 30, 30, GIB)]
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 10)
    machine.kill()
    for kind, job_id, at_s in (("epilog", 7, 14), ("prolog", 8, 15)):
        machine.clock.advance(start + at_s - machine.clock.now_s)
        machine.write_hook(kind, job_id, "0")
    machine.clock.advance(5)
    machine.start()
    machine.run_until(start + 30)
    machine.hook("epilog", 8, "0")
    machine.run(3)
    (next_one,) = (record for record in machine.records() if record.job_id == 8)
    assert next_one.sampled_s == pytest.approx(15, abs=0.2)
    assert core(next_one) == pytest.approx(30, abs=0.5)


@pytest.mark.parametrize("jobs", [(7,), (7, 8)])
@pytest.mark.parametrize("tick_s", [1 / 6, 1.0])
def test_restarts_add_no_activity(
    machine: Machine, gpu: FakeGpu, tick_s: float, jobs: tuple[int, ...]
) -> None:
    gpu.tick_s = tick_s
    start = machine.clock.now_s
    for job_id in jobs:
        gpu.work.append(Work(job_id, start - 5, start + 65, 40, GIB))
        machine.hook("prolog", job_id, "0")
    for restart in range(5):
        machine.run_until(start + 10 * restart + 9.3)
        machine.kill()
        machine.clock.advance(0.3 + 0.04 * restart)
        machine.start()
    machine.run_until(start + 60)
    for job_id in jobs:
        machine.hook("epilog", job_id, "0")
    machine.run(3)
    after = [record for record in machine.records(final=None) if record.first_s > record.prolog_s]
    assert len(after) == 5 * len(jobs)
    for record in after:
        assert core(record) == pytest.approx(40, abs=0.02)


@pytest.mark.parametrize("loss", ["gone", "emptied", "rubbish"])
def test_with_a_lost_spool_earlier_activity_is_charged_to_no_job(
    machine: Machine, gpu: FakeGpu, loss: str
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 20, 80, 20 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 10)
    machine.kill()
    if loss == "gone":
        shutil.rmtree(machine.directory / "spool")
    else:
        (machine.directory / "spool" / "log").write_bytes(b"" if loss == "emptied" else b"rubbish\n")
    machine.clock.advance(0.5)
    machine.write_hook("prolog", 8, "0")
    machine.clock.advance(9.5)
    machine.write_hook("epilog", 7, "0")
    machine.clock.advance(0.5)
    machine.start()
    machine.run_until(start + 30)
    machine.hook("epilog", 8, "0")
    machine.run(3)
    (idle,) = (record for record in machine.records() if record.job_id == 8)
    assert idle.util_hist_ms is not None
    assert sum(ms for percent, ms in idle.util_hist_ms.items() if percent > 0) == 0
    assert idle.sampled_s == pytest.approx(9.5, abs=0.2)
