"""What becomes of a job on a node: who is charged for what, and what survives a crash."""

from pathlib import Path

import pytest

from slurm_gpu.node.gpu.reading import Failure, Trouble, Xid
from tests.node.fakes import GIB, FakeClock, FakeGpu, Machine, Work, core, mem


def test_a_job_of_three_seconds_has_one_record_with_the_truth(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start + 0.3, start + 2.8, 80, 20 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 3.0)
    machine.hook("epilog", 7, "0")
    machine.run(2.0)
    (record,) = machine.records()
    assert (record.job_id, record.device, record.final) == (7, "GPU-0", True)
    assert record.held_s == pytest.approx(3.0, abs=0.001)
    assert record.sampled_s == pytest.approx(3.0, abs=0.02)
    assert core(record) == pytest.approx(gpu.mean(start, start + 3.0, 7), abs=1)
    assert mem(record) == pytest.approx(gpu.memory_mean(start, start + 3.0, 7), abs=1)
    assert record.energy_j is not None
    assert record.energy_j.total == pytest.approx(300, abs=2)
    assert record.no_process_s == pytest.approx(0.5, abs=0.2)
    assert machine.hook_files() == []


def test_an_idle_gpu_is_measured_as_zero_and_not_as_a_gap(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(5.0)
    machine.hook("epilog", 7, "0")
    machine.run(2.0)
    (record,) = machine.records()
    assert record.util_hist_ms is not None
    assert set(record.util_hist_ms) == {0}
    assert core(record) == 0
    assert mem(record) == 0
    assert record.sampled_s == pytest.approx(record.held_s, abs=0.02)
    assert record.no_process_s == pytest.approx(record.held_s, abs=0.02)


def test_a_job_without_gpus_has_no_record(machine: Machine) -> None:
    machine.hook("prolog", 7)
    machine.run(5.0)
    machine.hook("epilog", 7)
    machine.run(2.0)
    assert machine.records(final=None) == []
    assert machine.hook_files() == []


def test_a_requeued_job_has_two_runs_though_its_first_epilog_names_the_second(machine: Machine) -> None:
    machine.hook("prolog", 7, "0", restart=0)
    machine.run(3.0)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(11.0)
    machine.hook("prolog", 7, "0", restart=1)
    machine.run(4.0)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(2.0)
    first, second = machine.records()
    assert (first.restart, second.restart) == (0, 1)
    assert first.held_s == pytest.approx(3.0, abs=0.01)
    assert second.held_s == pytest.approx(4.0, abs=0.01)
    assert first.segment != second.segment


def test_a_prolog_without_the_epilog_before_it_closes_the_open_run(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(3.0)
    machine.hook("prolog", 7, "0", restart=1)
    machine.run(2.0)
    (first,) = machine.records()
    assert first.held_s == pytest.approx(3.0, abs=0.01)
    assert machine.events() == ["epilog_missing"]


def test_positions_are_those_of_slurm_and_not_minor_numbers(tmp_path: Path, clock: FakeClock) -> None:
    listed = [FakeGpu(clock, f"GPU-minor-{minor}", minor) for minor in (6, 4, 5, 7)]
    machine = Machine(tmp_path, *listed)
    machine.start()
    machine.hook("prolog", 7, "0,2")
    machine.run(3.0)
    machine.hook("epilog", 7, "0,2")
    machine.run(2.0)
    assert [record.device for record in machine.records()] == ["GPU-minor-5", "GPU-minor-6"]


def test_two_jobs_on_one_gpu_share_what_it_did(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start + 0.5, start + 20.0, 30, 4 * GIB))
    gpu.work.append(Work(8, start + 6.0, start + 14.0, 60, 10 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 5.0)
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 15.0)
    machine.hook("epilog", 8, "0")
    machine.run_until(start + 21.0)
    machine.hook("epilog", 7, "0")
    machine.run(2.0)
    seven, eight = machine.records()
    assert core(seven) == pytest.approx(gpu.mean(start, start + 21, 7), abs=1)
    assert core(eight) == pytest.approx(gpu.mean(start + 5, start + 15, 8), abs=1)
    assert mem(seven) == pytest.approx(gpu.memory_mean(start, start + 21, 7), abs=1)
    assert mem(eight) == pytest.approx(gpu.memory_mean(start + 5, start + 15, 8), abs=1)
    assert eight.device_util_pct is not None
    assert eight.device_util_pct.mean == pytest.approx(gpu.mean(start + 5, start + 15), abs=1)
    assert eight.energy_j is None  # what the device took belongs to neither alone
    assert seven.energy_j is not None
    assert seven.energy_j.seconds == pytest.approx(11, abs=1.5)


def test_a_job_that_begins_in_the_sample_in_which_another_ends_has_its_own(
    machine: Machine, gpu: FakeGpu
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start + 0.2, start + 4.05, 100, GIB))
    gpu.work.append(Work(8, start + 4.11, start + 8.0, 50, GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 4.06)
    machine.hook("epilog", 7, "0")
    machine.run_until(start + 4.09)
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 8.1)
    machine.hook("epilog", 8, "0")
    machine.run(2)
    seven, eight = machine.records()
    assert core(seven) == pytest.approx(gpu.mean(start, start + 4.06, 7), abs=0.5)
    assert core(eight) == pytest.approx(gpu.mean(start + 4.09, start + 8.1, 8), abs=0.5)


def test_where_processes_cannot_be_told_apart_a_shared_gpu_is_a_gap(machine: Machine, gpu: FakeGpu) -> None:
    gpu.process_ring = False
    machine.hook("prolog", 7, "0")
    machine.hook("prolog", 8, "0")
    machine.run(10.0)
    machine.hook("epilog", 7, "0")
    machine.run(3.0)
    (seven,) = machine.records()
    assert seven.util_hist_ms is None or sum(seven.util_hist_ms.values()) < 100
    assert seven.device_util_pct is not None
    assert seven.device_util_pct.seconds == pytest.approx(10, abs=0.2)


def test_without_a_ring_the_current_value_is_polled(machine: Machine, gpu: FakeGpu) -> None:
    gpu.ring = False
    start = machine.clock.now_s
    gpu.work.append(Work(7, start + 1, start + 9, 70, GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 10)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert core(record) == pytest.approx(56, abs=1.5)
    assert record.sampled_s == pytest.approx(10, abs=0.05)


def test_a_stalled_daemon_measured_no_memory_meanwhile(machine: Machine, gpu: FakeGpu) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(10)
    machine.clock.advance(60)  # suspended, or swapped out
    machine.due_s = machine.clock.now_s
    machine.run(10)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.held_s == pytest.approx(80, abs=0.1)
    assert record.mem_used_frac is not None
    assert record.mem_used_frac.seconds == pytest.approx(20, abs=1)
    assert record.sampled_s == pytest.approx(40, abs=1)  # the driver's ring reaches back 20 s


@pytest.mark.parametrize("step_s", [-86_400, -3, -0.2, 0.2, 3, 86_400])
def test_setting_the_wall_clock_costs_a_second_at_most_and_is_told(
    machine: Machine, gpu: FakeGpu, step_s: float
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start + 1, start + 25, 60, GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 15)
    machine.clock.offset_s += step_s
    machine.run_until(start + 30)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.held_s == pytest.approx(30, abs=0.02)
    assert record.sampled_s == pytest.approx(30, abs=1.3)
    assert core(record) == pytest.approx(48, abs=1.5)
    assert mem(record) == pytest.approx(gpu.memory_mean(start, start + 30, 7), abs=0.5)
    assert record.last_s - record.first_s == pytest.approx(30, abs=1)
    # Fractions of a second are what NTP does.
    told = [{"seconds": pytest.approx(step_s, abs=0.01)}] if abs(step_s) >= 1 else []
    assert (machine.events(), machine.event_data()) == (["clock_step"] * len(told), told)


def test_a_lost_gpu_is_an_event_and_a_gap_and_costs_no_other(tmp_path: Path, clock: FakeClock) -> None:
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
    assert lost.held_s == pytest.approx(50, abs=0.1)


def test_two_runs_of_a_job_within_one_sample_of_the_driver_are_never_more_than_the_device(
    machine: Machine, gpu: FakeGpu
) -> None:
    gpu.tick_s = 1.0
    machine.run_until(1010.0)
    gpu.work.append(Work(7, 1010.0, 1013.5, 100, GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(1013.5)
    machine.hook("epilog", 7, "0")
    machine.hook("prolog", 7, "0", restart=1)
    machine.run_until(1015.0)
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(2)
    records = machine.records()
    busy_s = sum((record.sampled_s * (core(record) or 0)) / 100 for record in records)
    assert [record.restart for record in records] == [0, 1]
    assert busy_s == pytest.approx(3.5, abs=0.02)


@pytest.mark.parametrize("epilog", [True, False])
def test_a_kill_while_one_run_is_closed_and_the_next_has_begun_mixes_up_neither(
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
    assert one.held_s == pytest.approx(15, abs=0.1)
    assert two.held_s == pytest.approx(20, abs=0.1)
    machine.kill()
    machine.start()
    assert machine.node is not None
    assert not machine.node.open_jobs()


def test_a_gpu_that_failed_under_a_job_is_looked_for_when_that_job_is_gone(
    machine: Machine, gpu: FakeGpu
) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(10)
    gpu.failure = Failure(Trouble.HUNG, "no answer")
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
    assert next_job.mem_used_frac.seconds == pytest.approx(next_job.held_s, abs=0.01)


def test_a_gpu_that_hangs_is_an_event_and_a_gap(machine: Machine, gpu: FakeGpu) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(10)
    gpu.failure = Failure(Trouble.HUNG, "no answer")
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
    stays.failure = goes.failure = Failure(Trouble.DRIVER, "Uninitialized")
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
    assert gone.held_s == pytest.approx(30, abs=0.1)
    machine.hook("prolog", 8, "1")
    machine.run(3)
    machine.hook("epilog", 8, "1")
    machine.run(2)
    assert [record.device for record in machine.records() if record.job_id == 8] == ["GPU-new"]


@pytest.mark.parametrize("away_s", [0.5, 3])
def test_a_reader_that_restarts_costs_no_more_than_that_time(
    machine: Machine, gpu: FakeGpu, away_s: float
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 60, 50, GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 30)
    machine.reader.absent.add("GPU-0")
    machine.run(away_s)
    machine.reader.absent.clear()
    machine.run_until(start + 60)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert machine.events() == []
    assert core(record) == pytest.approx(50, abs=0.5)
    assert record.sampled_s == pytest.approx(60, abs=0.1)  # the driver's ring has it all
    assert record.mem_used_frac is not None
    assert record.mem_used_frac.seconds == pytest.approx(60, abs=away_s + 0.2)


def test_a_job_ends_though_the_reader_never_comes_back(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(10)
    machine.reader.absent.add("GPU-0")
    machine.run(10)
    machine.hook("epilog", 7, "0")
    machine.run(40)
    (record,) = machine.records()
    assert record.held_s == pytest.approx(20, abs=0.1)
    assert record.sampled_s == pytest.approx(10, abs=1.1)


def test_an_xid_is_an_event_of_the_job(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(3)
    machine.reader.xids.append(Xid("GPU-0", 79, machine.clock.wall()))
    machine.run(2)
    assert machine.spool is not None
    (event,) = (item.wire for item in machine.spool.waiting(9) if item.wire.get("kind") == "xid")
    assert (event["device"], event["job_id"], event["data"]) == ("GPU-0", 7, {"code": 79})


def test_a_gpu_that_nobody_holds_is_looked_at_too(tmp_path: Path, clock: FakeClock) -> None:
    held, idle = FakeGpu(clock, "GPU-held", 0), FakeGpu(clock, "GPU-idle", 1)
    machine = Machine(tmp_path, held, idle)
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
    assert 3 <= idle.reads <= 5  # each 10 s
    assert machine.spool is not None
    told = {item.wire.get("job_id") for item in machine.spool.waiting(9) if "kind" in item.wire}
    assert told == {None}
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.sampled_s == pytest.approx(70, abs=0.1)


def test_a_driver_that_is_starting_is_asked_soon(machine: Machine, gpu: FakeGpu) -> None:
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


def test_without_a_driver_the_hold_is_recorded_without_samples(machine: Machine, gpu: FakeGpu) -> None:
    machine.reader.loaded = False
    machine.kill()
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.run(30)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert (record.device, record.sampled_s, record.util_hist_ms) == ("position:0", 0, None)
    assert record.held_s == pytest.approx(30, abs=0.01)


def test_a_driver_that_comes_late_is_used_from_then_on(machine: Machine) -> None:
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
    assert record.sampled_s == pytest.approx(60, abs=2)  # the ring tells 20 s of before
    assert record.mem_used_frac is not None
    assert record.mem_used_frac.seconds == pytest.approx(40, abs=2)


def test_after_kill_9_the_job_goes_on_in_a_new_segment(machine: Machine) -> None:
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
    assert first.held_s == pytest.approx(60, abs=10)
    assert first.sampled_s == pytest.approx(first.held_s, abs=1.1)
    assert second.held_s == pytest.approx(30, abs=0.1)
    assert first.last_s <= second.first_s


def test_a_job_that_ended_while_the_daemon_was_away_is_closed_at_its_end(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(60)
    machine.kill()
    machine.clock.advance(5)
    machine.hook("epilog", 7, "0")
    machine.clock.advance(100)
    machine.start()
    (record,) = machine.records(final=None)
    assert record.final
    assert record.held_s == pytest.approx(65, abs=0.02)
    assert 49 < record.sampled_s <= 60
    assert machine.hook_files() == []


def test_a_job_that_lies_wholly_in_an_outage_has_a_record_without_samples(machine: Machine) -> None:
    machine.kill()
    machine.hook("prolog", 7, "0")
    machine.clock.advance(3)
    machine.hook("epilog", 7, "0")
    machine.clock.advance(10)
    machine.start()
    (record,) = machine.records(final=None)
    assert (record.final, record.sampled_s, record.device) == (True, 0, "GPU-0")
    assert record.held_s == pytest.approx(3, abs=0.01)
    assert machine.hook_files() == []


def test_a_job_that_began_in_an_outage_is_held_since_its_prolog(machine: Machine, gpu: FakeGpu) -> None:
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
    assert record.held_s == pytest.approx(30, abs=0.02)
    assert record.sampled_s == pytest.approx(30, abs=0.2)
    assert core(record) == pytest.approx(50, abs=0.5)


def test_a_reboot_closes_what_was_open(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(60)
    machine.kill()
    machine.clock = FakeClock("boot-2", monotonic_s=20.0)
    machine.clock.offset_s += 1200
    machine.start()
    (record,) = machine.records(final=None)
    assert (record.boot_id, record.final) == ("boot-1", True)
    assert record.held_s == pytest.approx(60, abs=10.1)
    machine.run(30)
    assert machine.records() == [record]


def test_a_hook_file_stays_until_what_it_says_is_on_disk(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.spool is not None
    monkeypatch.setattr(machine.spool, "commit", lambda: False)
    machine.hook("prolog", 7, "0")
    machine.run(5)
    machine.hook("epilog", 7, "0")
    machine.run(5)
    assert len(machine.hook_files()) == 2
    monkeypatch.undo()
    machine.run(5)
    assert machine.hook_files() == []
    assert len(machine.records()) == 1


def test_what_the_database_tells_of_shards_is_in_the_next_record(machine: Machine) -> None:
    assert machine.node is not None
    machine.hook("prolog", 7, "0")
    machine.run(5)
    machine.node.learn({7: {"shards": 4, "granted_mgpu": 250}, 8: {"granted_mgpu": None}})
    machine.run(5)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.granted_mgpu == 250


def test_a_stop_writes_down_all_that_is_known(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(7)
    assert machine.node is not None
    machine.node.stop()
    machine.kill()
    machine.start()
    (record,) = machine.records(final=None)
    assert record.held_s == pytest.approx(7, abs=0.01)
    assert record.sampled_s == pytest.approx(7, abs=0.3)
