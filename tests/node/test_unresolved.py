"""After a loss of the spool the jobs of a shared GPU are unknown until Slurm reports them."""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.wire import Record
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core, mem


class ShardMachine(Machine):
    """A machine whose gres.conf has shards of each GPU."""

    def slurmd(self, command: Sequence[str]) -> str:
        shards = [
            f"slurmd: Gres Name=shard Count=4 File=/nowhere/nvidia{gpu.minor} (null)" for gpu in self.gpus
        ]
        return "\n".join([*shards, super().slurmd(command)])


@pytest.fixture
def machine(tmp_path: Path, gpu: FakeGpu) -> ShardMachine:
    """Return a node whose slurm-gpud was killed and lost its spool after 20 s of job 7."""
    machine = ShardMachine(tmp_path, gpu)
    machine.start()
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 100, 60, 20 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run(20)
    machine.kill()
    shutil.rmtree(machine.directory / "spool")
    machine.start()
    return machine


def report_both_jobs(machine: Machine) -> None:
    """Report jobs 7 and 8, as slurm-gpudbd does every 10 s."""
    assert machine.node is not None
    wall_s = machine.clock.wall()
    facts = {"restart": 0, "uid": 1001, "state": "RUNNING", "gpu_index": {"shard": [0]}, "age_s": 0.5}
    machine.node.update_jobs({job: {**facts, "start_s": int(wall_s) - 20} for job in (7, 8)})


def job_8(machine: Machine, gpu: FakeGpu, percent: float) -> Record:
    """Run job 8 for 40 s next to job 7, which is unknown at first, and return its record."""
    start = machine.clock.now_s
    if percent:
        gpu.work.append(Work(8, start, start + 40, percent, 4 * GIB))
    machine.hook("prolog", 8, "0")
    for _ in range(4):
        machine.run(9.5)
        report_both_jobs(machine)
    machine.run_until(start + 40)
    machine.hook("epilog", 8, "0")
    machine.run(3)
    return next(record for record in machine.records() if record.job_id == 8)


@pytest.mark.parametrize("percent", [0, 20])
def test_a_job_is_charged_only_for_its_own_processes(
    machine: ShardMachine, gpu: FakeGpu, percent: float
) -> None:
    record = job_8(machine, gpu, percent)
    assert core(record) == pytest.approx(percent, abs=0.5)
    assert mem(record) == pytest.approx(10 if percent else 0, abs=0.3)
    assert record.allocated_s == pytest.approx(40, abs=0.1)
    # The time since the last detailed sample before job 7's record began counts for no job.
    assert record.sampled_s == pytest.approx(39.5, abs=0.6)
    assert record.energy_j is None
    assert record.power_w is None


def test_without_process_samples_the_unresolved_time_is_a_gap(machine: ShardMachine, gpu: FakeGpu) -> None:
    gpu.process_ring = False
    record = job_8(machine, gpu, 20)
    assert record.util_hist_ms is None
    assert record.sampled_s == 0


def report_jobs(machine: Machine, jobs: Mapping[int, Any]) -> None:
    assert machine.node is not None
    machine.node.update_jobs(jobs)


def test_a_job_is_alone_once_slurm_has_reported_no_other(machine: ShardMachine, gpu: FakeGpu) -> None:
    gpu.work.clear()
    start = machine.clock.now_s
    gpu.work.append(Work(8, start, start + 60, 50, GIB))
    machine.hook("prolog", 8, "0")
    report_jobs(machine, {})
    machine.run(10)
    report_jobs(machine, {})
    machine.run(50)
    machine.hook("epilog", 8, "0")
    machine.run(3)
    (record,) = machine.records()
    assert core(record) == pytest.approx(50, abs=0.3)
    assert record.sampled_s == pytest.approx(60, abs=0.3)
    assert record.energy_j is not None
    assert record.energy_j.seconds == pytest.approx(50, abs=10)


@pytest.mark.parametrize("restarted", ["whole GPUs", "spool not lost"])
def test_whole_gpus_and_an_intact_spool_need_no_report_of_slurm(
    tmp_path: Path, clock: FakeClock, restarted: str
) -> None:
    gpu = FakeGpu(clock)
    machine = (Machine if restarted == "whole GPUs" else ShardMachine)(tmp_path, gpu)
    machine.start()
    if restarted == "spool not lost":
        machine.kill()
        machine.start()
    start = machine.clock.now_s
    gpu.work.append(Work(8, start, start + 20, 50, GIB))
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 20)
    machine.hook("epilog", 8, "0")
    machine.run(3)
    (record,) = machine.records()
    assert core(record) == pytest.approx(50, abs=0.5)
    assert record.energy_j is not None
    assert math.isclose(record.energy_j.seconds, 20, abs_tol=0.1)


def test_a_job_alone_on_a_new_node_has_all_activity_of_its_gpu(tmp_path: Path, gpu: FakeGpu) -> None:
    """Test that a new spool needs no report of Slurm if there are no foreign processes."""
    machine = ShardMachine(tmp_path, gpu)
    machine.start()
    machine.run(3)
    start = machine.clock.now_s
    gpu.work.append(Work(8, start, start + 5, 60, 20 * GIB))
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 5)
    machine.hook("epilog", 8, "0")
    machine.run(3)
    (record,) = machine.records()
    assert record.energy_j is not None
    assert record.energy_j.seconds == pytest.approx(5, abs=0.2)
    assert record.power_w is not None
    assert core(record) == pytest.approx(60, abs=1)


def test_a_requeued_job_without_a_prolog_does_not_affect_its_co_runner(tmp_path: Path, gpu: FakeGpu) -> None:
    """Test a requeued job that Slurm runs without a prolog, and that slurm-gpudbd reports later."""
    machine = ShardMachine(tmp_path, gpu)
    machine.start()
    start = machine.clock.now_s
    gpu.work += [Work(7, start, start + 10, 50, GIB), Work(7, start + 12, start + 80, 50, GIB, 1)]
    gpu.work.append(Work(8, start, start + 80, 20, GIB))
    machine.hook("prolog", 7, "0")
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 10)
    machine.hook("epilog", 7, "0", restart=1)
    assert machine.node is not None
    for at_s in (14, 24, 34, 44):
        machine.run_until(start + at_s)
        facts = {"uid": 1001, "state": "RUNNING", "gpu_index": {"shard": [0]}, "age_s": 0.5}
        start_s = int(machine.clock.wall()) - at_s
        machine.node.update_jobs(
            {
                7: {**facts, "restart": 1, "start_s": start_s + 12},
                8: {**facts, "restart": 0, "start_s": start_s},
            }
        )
    machine.run_until(start + 80)
    machine.hook("epilog", 7, "0", restart=1)
    machine.hook("epilog", 8, "0")
    machine.run(3)
    *_, again, co_runner = machine.records()
    assert (again.job_id, again.restart) == (7, 1)
    assert core(again) == pytest.approx(50, abs=1)
    assert co_runner.allocated_s == pytest.approx(80, abs=0.1)
    assert co_runner.sampled_s == pytest.approx(80, abs=1.5)
    assert core(co_runner) == pytest.approx(20, abs=1)
