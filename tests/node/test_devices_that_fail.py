"""Test the events and gaps of GPUs, drivers and readers that fail, with and without a job."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_gpu.node.gpu.reading import Failure, ReadError, Xid
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core


def test_a_lost_gpu_is_an_event_and_a_gap_and_affects_no_other(tmp_path: Path, clock: FakeClock) -> None:
    good, bad = FakeGpu(clock, "GPU-good", 0), FakeGpu(clock, "GPU-bad", 1)
    machine = Machine(tmp_path, good, bad)
    machine.start()
    machine.hook("prolog", 7, "0,1")
    machine.run(10)
    bad.lost = True
    machine.run(20)
    assert machine.events() == ["gpu_lost"]
    bad.lost = False
    machine.run(20)
    assert machine.events() == ["gpu_lost", "gpu_back"]
    machine.hook("epilog", 7, "0,1")
    machine.run(2)
    lost, healthy = machine.records()
    assert healthy.sampled_s == pytest.approx(50, abs=0.1)
    assert 20 < lost.sampled_s < 41
    assert lost.allocated_s == pytest.approx(50, abs=0.1)


def test_a_gpu_that_failed_during_a_job_is_checked_after_it_ends(machine: Machine, gpu: FakeGpu) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(10)
    gpu.failure = Failure(ReadError.HUNG, "no answer")
    machine.run(10)
    machine.hook("epilog", 7, "0")
    machine.run(20)
    gpu.failure = None
    machine.run(15)
    assert machine.events() == ["gpu_hung", "gpu_back"]
    machine.hook("prolog", 8, "0")
    machine.run(10)
    machine.hook("epilog", 8, "0")
    machine.run(2)
    next_job = machine.records()[-1]
    assert next_job.mem_used_frac is not None
    assert next_job.mem_used_frac.seconds == pytest.approx(next_job.allocated_s, abs=0.01)


def test_a_gpu_that_hangs_is_an_event_and_a_gap(machine: Machine, gpu: FakeGpu) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(10)
    gpu.failure = Failure(ReadError.HUNG, "no answer")
    machine.run(20)
    gpu.failure = None
    machine.run(20)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    assert machine.events() == ["gpu_hung", "gpu_back"]
    (record,) = machine.records()
    assert 20 < record.sampled_s < 41


def test_a_reloaded_driver_is_one_event_and_a_swapped_gpu_is_lost(tmp_path: Path, clock: FakeClock) -> None:
    stays, goes = FakeGpu(clock, "GPU-stays", 0), FakeGpu(clock, "GPU-goes", 1)
    machine = Machine(tmp_path, stays, goes)
    machine.start()
    machine.hook("prolog", 7, "0,1")
    machine.run(10)
    stays.failure = goes.failure = Failure(ReadError.DRIVER, "Uninitialized")
    machine.run(5)
    stays.failure = None
    machine.reader.gpus[1] = FakeGpu(clock, "GPU-new", 1)
    machine.run(15)
    assert machine.events() == ["driver_reloaded", "gpu_lost"]
    machine.hook("epilog", 7, "0,1")
    machine.run(2)
    gone, stayed = machine.records()
    assert stayed.sampled_s == pytest.approx(24, abs=6)
    assert gone.sampled_s == pytest.approx(10, abs=1.1)
    assert gone.allocated_s == pytest.approx(30, abs=0.1)
    machine.hook("prolog", 8, "1")
    machine.run(3)
    machine.hook("epilog", 8, "1")
    machine.run(2)
    assert [record.device for record in machine.records() if record.job_id == 8] == ["GPU-new"]


@pytest.mark.parametrize("absent_s", [0.5, 3])
def test_a_reader_restart_costs_only_its_own_duration(
    machine: Machine, gpu: FakeGpu, absent_s: float
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 60, 50, GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 30)
    machine.reader.absent.add("GPU-0")
    machine.run(absent_s)
    machine.reader.absent.clear()
    machine.run_until(start + 60)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert machine.events() == []
    assert core(record) == pytest.approx(50, abs=0.5)
    assert record.sampled_s == pytest.approx(60, abs=0.1)  # the driver's ring covers the gap
    assert record.mem_used_frac is not None
    assert record.mem_used_frac.seconds == pytest.approx(60, abs=absent_s + 0.2)


def test_a_job_ends_even_if_the_reader_never_returns(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(10)
    machine.reader.absent.add("GPU-0")
    machine.run(10)
    machine.hook("epilog", 7, "0")
    machine.run(40)
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(20, abs=0.1)
    assert record.sampled_s == pytest.approx(10, abs=1.1)


def test_an_xid_is_an_event_of_the_job(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(3)
    machine.reader.xids.append(Xid("GPU-0", 79, machine.clock.wall()))
    machine.run(2)
    assert machine.spool is not None
    (event,) = (item.wire for item in machine.spool.queue.waiting(9) if item.wire.get("kind") == "xid")
    assert (event["device"], event["job_id"], event["data"]) == ("GPU-0", 7, {"code": 79})


def test_an_unallocated_gpu_is_monitored_too(tmp_path: Path, clock: FakeClock) -> None:
    allocated, idle = FakeGpu(clock, "GPU-allocated", 0), FakeGpu(clock, "GPU-idle", 1)
    machine = Machine(tmp_path, allocated, idle)
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.reader.xids.append(Xid("GPU-idle", 79, machine.clock.wall()))
    machine.run(20)
    idle.lost = True
    machine.run(30)
    assert machine.events() == ["xid", "gpu_lost"]
    idle.lost = False
    machine.run(20)
    assert machine.events() == ["xid", "gpu_lost", "gpu_back"]
    assert 3 <= idle.reads <= 5  # every 10 s
    assert machine.spool is not None
    job_ids = {item.wire.get("job_id") for item in machine.spool.queue.waiting(9) if "kind" in item.wire}
    assert job_ids == {None}
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.sampled_s == pytest.approx(70, abs=0.1)


def test_a_starting_driver_is_polled_soon(machine: Machine, gpu: FakeGpu) -> None:
    machine.reader.starting = True
    machine.kill()
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.run(4)
    machine.reader.starting = False
    machine.run(1)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.device == "GPU-0"
    assert record.sampled_s == pytest.approx(5, abs=0.1)


def test_without_a_driver_an_allocation_is_recorded_without_samples(machine: Machine, gpu: FakeGpu) -> None:
    machine.reader.loaded = False
    machine.kill()
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.run(30)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert (record.device, record.sampled_s, record.util_hist_ms) == ("position:0", 0, None)
    assert record.allocated_s == pytest.approx(30, abs=0.01)


def test_a_driver_loaded_late_is_used_from_then_on(machine: Machine) -> None:
    machine.reader.loaded = False
    machine.kill()
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.run(15)
    machine.reader.loaded = True
    machine.run(45)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.device == "GPU-0"
    assert record.sampled_s == pytest.approx(60, abs=2)  # the ring covers the last 20 s
    assert record.mem_used_frac is not None
    assert record.mem_used_frac.seconds == pytest.approx(40, abs=2)


# GPUs that have never answered


def gpu_events(machine: Machine) -> list[tuple[str, str | None, int | None, int | None]]:
    """Return the kind, device, job and NVML index of each event."""
    assert machine.spool is not None
    events = [item.wire for item in machine.spool.queue.waiting(100) if "kind" in item.wire]
    return [
        (event["kind"], event.get("device"), event.get("job_id"), event.get("data", {}).get("index"))
        for event in events
    ]


@pytest.mark.parametrize("error", [ReadError.LOST, ReadError.HUNG])
def test_gpu_that_never_answered_is_an_event(tmp_path: Path, clock: FakeClock, error: ReadError) -> None:
    good, bad = FakeGpu(clock, "GPU-good", 0), FakeGpu(clock, "GPU-bad", 1)
    bad.failure = Failure(error, "no answer")
    machine = Machine(tmp_path, good, bad)
    machine.start()
    machine.run(60)
    kind = {ReadError.LOST: "gpu_lost", ReadError.HUNG: "gpu_hung"}[error]
    assert gpu_events(machine) == [(kind, None, None, 1)]
    bad.failure = None
    machine.run(20)
    assert gpu_events(machine)[1:] == [("gpu_back", "GPU-bad", None, 1)]
    bad.failure = Failure(error, "no answer")
    machine.run(20)
    assert gpu_events(machine)[2:] == [(kind, "GPU-bad", None, None)]


def test_a_job_on_a_gpu_that_never_answered_has_an_event(tmp_path: Path, clock: FakeClock) -> None:
    good, bad = FakeGpu(clock, "GPU-good", 0), FakeGpu(clock, "GPU-bad", 1)
    bad.lost = True
    machine = Machine(tmp_path, good, bad)
    machine.start()
    machine.hook("prolog", 7, "0,1")
    machine.run(30)
    assert gpu_events(machine) == [("gpu_lost", None, None, 1), ("gpu_lost", "position:1", 7, None)]
    bad.lost = False
    machine.run(20)
    assert gpu_events(machine)[2:] == [("gpu_back", "GPU-bad", None, 1), ("gpu_back", "GPU-bad", 7, None)]
    machine.hook("epilog", 7, "0,1")
    machine.run(2)
    bad_record, good_record = machine.records()
    assert (bad_record.device, good_record.device) == ("GPU-bad", "GPU-good")
    assert bad_record.allocated_s == pytest.approx(50, abs=0.1)
    assert 20 < good_record.sampled_s - bad_record.sampled_s < 41


def test_a_gpu_missing_from_nvml_is_lost_for_its_job(tmp_path: Path, clock: FakeClock) -> None:
    """Test a job on a GPU that Slurm lists and NVML does not."""
    good, missing = FakeGpu(clock, "GPU-good", 0), FakeGpu(clock, "GPU-missing", 1)
    machine = Machine(tmp_path, good, missing)
    machine.reader.gpus.remove(missing)
    machine.start()
    for job, position in ((7, "0"), (8, "1")):
        machine.hook("prolog", job, position)
    machine.run(30)
    for job, position in ((7, "0"), (8, "1")):
        machine.hook("epilog", job, position)
    machine.run(2)
    assert gpu_events(machine) == [("gpu_lost", "position:1", 8, None)]


def test_a_job_that_begins_on_a_lost_gpu_has_an_event(tmp_path: Path, clock: FakeClock) -> None:
    good, bad = FakeGpu(clock, "GPU-good", 0), FakeGpu(clock, "GPU-bad", 1)
    machine = Machine(tmp_path, good, bad)
    machine.start()
    machine.run(20)
    bad.lost = True
    machine.run(20)
    machine.hook("prolog", 7, "1")
    machine.run(20)
    assert gpu_events(machine) == [("gpu_lost", "GPU-bad", None, None), ("gpu_lost", "GPU-bad", 7, None)]
    bad.lost = False
    machine.run(20)
    assert gpu_events(machine)[2:] == [("gpu_back", "GPU-bad", 7, None)]


def test_without_a_driver_each_gpu_of_a_job_is_lost(machine: Machine) -> None:
    machine.reader.loaded = False
    machine.kill()
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.run(30)
    assert gpu_events(machine) == [("gpu_lost", "position:0", 7, None)]
    machine.reader.loaded = True
    machine.run(15)
    assert gpu_events(machine)[1:] == [("gpu_back", "GPU-0", 7, None)]


def test_no_position_is_assumed_while_a_gpu_has_never_answered(tmp_path: Path, clock: FakeClock) -> None:
    """Test a slurmd that names no files: a missing minor number makes all later positions ambiguous."""
    gpus = [FakeGpu(clock, f"GPU-{n}", n) for n in range(3)]
    gpus[1].lost = True
    machine = AssumedOrder(tmp_path, *gpus)
    machine.start()
    machine.hook("prolog", 7, "1")
    machine.run(20)
    machine.hook("epilog", 7, "1")
    machine.run(25)
    (record,) = machine.records()
    assert (record.device, record.sampled_s) == ("position:1", 0)


class AssumedOrder(Machine):
    """A machine whose gres.conf names no device files."""

    def slurmd(self, command: Sequence[str]) -> str:
        return f"slurmd: Gres Name=gpu Type=a100 Count={len(self.gpus)} (null)"
