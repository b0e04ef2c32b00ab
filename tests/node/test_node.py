"""Records of jobs on a node contain only their own activity, and survive crashes."""

from pathlib import Path

import pytest

from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core, mem


def test_a_job_of_three_seconds_has_one_record_with_the_truth(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start + 0.3, start + 2.8, 80, 20 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 3.0)
    machine.hook("epilog", 7, "0")
    machine.run(2.0)
    (record,) = machine.records()
    assert (record.job_id, record.device, record.final) == (7, "GPU-0", True)
    assert record.allocated_s == pytest.approx(3.0, abs=0.001)
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
    assert record.sampled_s == pytest.approx(record.allocated_s, abs=0.02)
    assert record.no_process_s == pytest.approx(record.allocated_s, abs=0.02)


def test_a_job_without_gpus_has_no_record(machine: Machine) -> None:
    machine.hook("prolog", 7)
    machine.run(5.0)
    machine.hook("epilog", 7)
    machine.run(2.0)
    assert machine.records(final=None) == []
    assert machine.hook_files() == []


def test_a_requeued_job_has_two_runs_although_its_first_epilog_names_the_second(machine: Machine) -> None:
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
    assert first.allocated_s == pytest.approx(3.0, abs=0.01)
    assert second.allocated_s == pytest.approx(4.0, abs=0.01)
    assert first.segment != second.segment


def test_a_prolog_without_a_preceding_epilog_closes_the_open_run(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(3.0)
    machine.hook("prolog", 7, "0", restart=1)
    machine.run(2.0)
    (first,) = machine.records()
    assert first.allocated_s == pytest.approx(3.0, abs=0.01)
    assert machine.events() == ["epilog_missing"]


def test_positions_are_slurm_s_and_not_minor_numbers(tmp_path: Path, clock: FakeClock) -> None:
    listed = [FakeGpu(clock, f"GPU-minor-{minor}", minor) for minor in (6, 4, 5, 7)]
    machine = Machine(tmp_path, *listed)
    machine.start()
    machine.hook("prolog", 7, "0,2")
    machine.run(3.0)
    machine.hook("epilog", 7, "0,2")
    machine.run(2.0)
    assert [record.device for record in machine.records()] == ["GPU-minor-5", "GPU-minor-6"]


def test_two_jobs_on_one_gpu_share_its_activity(machine: Machine, gpu: FakeGpu) -> None:
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
    assert eight.energy_j is None  # the energy of the device is exclusive to neither job
    assert seven.energy_j is not None
    assert seven.energy_j.seconds == pytest.approx(11, abs=1.5)


def test_jobs_that_end_and_begin_within_one_sample_are_separated(machine: Machine, gpu: FakeGpu) -> None:
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


def test_a_co_runner_that_begins_soon_after_another_leaves_no_gap(machine: Machine) -> None:
    """Test that the sampling interval returns to one second when a co-runner begins."""
    machine.hook("prolog", 7, "0")
    machine.run(300)
    machine.hook("prolog", 8, "0")
    machine.run(2)
    machine.hook("epilog", 8, "0")
    machine.run(1.9)
    machine.hook("prolog", 9, "0")
    machine.run(3)
    machine.hook("epilog", 9, "0")
    machine.run(3)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    record = machine.records()[0]
    assert record.mem_used_frac is not None
    assert record.mem_used_frac.seconds == pytest.approx(record.allocated_s, abs=0.02)


def test_without_process_samples_a_shared_gpu_is_a_gap(machine: Machine, gpu: FakeGpu) -> None:
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


def test_memory_is_a_gap_while_the_daemon_is_stalled(machine: Machine, gpu: FakeGpu) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(10)
    machine.clock.advance(60)  # suspended, or swapped out
    machine.due_s = machine.clock.now_s
    machine.run(10)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(80, abs=0.1)
    assert record.mem_used_frac is not None
    assert record.mem_used_frac.seconds == pytest.approx(20, abs=1)
    assert record.sampled_s == pytest.approx(40, abs=1)  # the driver's ring reaches back 20 s


@pytest.mark.parametrize("step_s", [-86_400, -3, -0.2, 0.2, 3, 86_400])
def test_setting_the_wall_clock_costs_at_most_a_second_and_is_an_event(
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
    assert record.allocated_s == pytest.approx(30, abs=0.02)
    assert record.sampled_s == pytest.approx(30, abs=1.3)
    assert core(record) == pytest.approx(48, abs=1.5)
    assert mem(record) == pytest.approx(gpu.memory_mean(start, start + 30, 7), abs=0.5)
    assert record.last_s - record.first_s == pytest.approx(30, abs=1)
    # NTP steps the clock by fractions of a second.
    expected = [{"seconds": pytest.approx(step_s, abs=0.01)}] if abs(step_s) >= 1 else []
    assert (machine.events(), machine.event_data()) == (["clock_step"] * len(expected), expected)


def test_two_runs_within_one_driver_sample_never_exceed_the_device(machine: Machine, gpu: FakeGpu) -> None:
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


def test_a_hook_file_remains_until_its_event_is_on_disk(
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


def test_the_granted_share_of_the_database_is_in_the_next_record(machine: Machine) -> None:
    assert machine.node is not None
    machine.hook("prolog", 7, "0")
    machine.run(5)
    machine.node.update_jobs({7: {"shards": 4, "granted_mgpu": 250}, 8: {"granted_mgpu": None}})
    machine.run(5)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.granted_mgpu == 250
