"""After losses and clock steps during a job, the merged record is true except for its gaps."""

import itertools
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_gpu.wire import Record
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core, mem

MIG_MINORS = """\
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu0/gi2/access 21
gpu0/gi2/ci0/access 22
gpu0/gi5/access 48
gpu0/gi5/ci0/access 49
"""
CAPS = {1: (12, 13), 2: (21, 22), 5: (48, 49)}


def merged(records: Sequence[Record]) -> tuple[float, float, float]:
    """Return the allocated and sampled seconds and mean utilisation of a run on one device."""
    allocated_s = sum(record.allocated_s for record in records)
    sampled = sum(record.sampled_s for record in records)
    weighted = [(record.sampled_s, core(record)) for record in records]
    mean = sum(seconds * percent for seconds, percent in weighted if percent is not None) / sampled
    return allocated_s, sampled, mean


@pytest.mark.parametrize("loss", ["gone", "emptied", "rubbish", "unreadable allocation"])
def test_a_lost_spool_costs_the_time_until_slurm_reports_the_job(
    machine: Machine, gpu: FakeGpu, loss: str
) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 200, 70, 8 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 60)
    before = machine.records(final=False)  # as if shipped already
    machine.kill()
    log = machine.directory / "spool" / "log"
    if loss == "gone":
        shutil.rmtree(log.parent)
    elif loss == "unreadable allocation":
        spoil_allocations(machine)
    else:
        log.write_bytes(b"" if loss == "emptied" else bytes(range(256)) * 100)
    machine.start()
    assert machine.node is not None
    assert machine.node.open_jobs() == []
    machine.run(2)
    facts = {"restart": 0, "start_s": int(before[0].first_s), "uid": 1001, "state": "RUNNING"}
    for _ in range(2):
        machine.node.update_jobs(
            {7: {**facts, "gpu_index": {"gpu": [0]}, "granted_mgpu": 1000, "age_s": 0.5}}
        )
        machine.run(10)
    machine.run_until(start + 200)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    after = [record for record in machine.records() if record.segment != before[0].segment]
    allocated_s, sampled, mean = merged([*before, *after])
    assert allocated_s == pytest.approx(188, abs=0.2)
    assert sampled == pytest.approx(188, abs=2)
    assert mean == pytest.approx(70, abs=0.5)
    assert {record.segment for record in before}.isdisjoint(record.segment for record in after)


def spoil_allocations(machine: Machine) -> None:
    """Write allocations in an unknown format, as another release might."""
    machine.start()
    assert machine.spool is not None
    for allocation in machine.spool.allocations():
        machine.spool._journal.put(f"allocation/{allocation.key.segment}", {"job": 7, "since": "ever"})
    machine.spool.commit()
    machine.kill()


def test_a_spool_removed_while_the_daemon_runs_costs_nothing(machine: Machine, gpu: FakeGpu) -> None:
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 100, 70, 8 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 50)
    shutil.rmtree(machine.directory / "spool")
    machine.run_until(start + 80)
    machine.kill()
    machine.start()
    machine.run_until(start + 100)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    records = machine.records(final=None)
    allocated_s, sampled, mean = merged(records)
    assert allocated_s == pytest.approx(100, abs=10.1)
    assert sampled == pytest.approx(allocated_s, abs=2)
    assert mean == pytest.approx(70, abs=0.5)


@pytest.mark.parametrize("killed_after_s", [0.5, 1.5, 3.9, 7.0, 9.9])
def test_a_kill_in_a_job_s_first_seconds_costs_at_most_half_of_them(
    machine: Machine, gpu: FakeGpu, killed_after_s: float
) -> None:
    start, down_s = machine.clock.now_s, 3.0
    gpu.work.append(Work(7, start, start + killed_after_s, 90, 8 * GIB))
    gpu.work.append(Work(7, start + killed_after_s, start + 100, 40, 8 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run_until(start + killed_after_s)
    machine.kill()
    machine.clock.advance(down_s)
    machine.start()
    machine.run_until(start + 100)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    *before, after = machine.records(final=None)
    allocated_s, sampled, _ = merged([*before, after])
    assert after.allocated_s == pytest.approx(100 - killed_after_s - down_s, abs=0.01)
    assert core(after) == pytest.approx(40, abs=1)
    assert allocated_s - after.allocated_s >= (killed_after_s / 2 if killed_after_s >= 1 else 0)
    for record in before:
        assert core(record) == (pytest.approx(90, abs=1) if record.sampled_s > 0 else None)
    # Coverage accounts for the missing time, because it is relative to the run's duration in Slurm.
    unseen_s = sum(record.allocated_s for record in before if record.sampled_s == 0)
    assert sampled == pytest.approx(allocated_s - unseen_s, abs=1.5)


class StampedGpu(FakeGpu):
    """A GPU whose rings keep their stamps when the clock is set."""

    def set_clock(self, seconds: float) -> None:
        self._clock_steps().append((self.clock.now_s, seconds))
        self.clock.offset_s += seconds

    def _clock_steps(self) -> list[tuple[float, float]]:
        """Return (time, step in seconds) of each clock step."""
        steps: list[tuple[float, float]] = self.__dict__.setdefault("steps", [])
        return steps

    def _ticks(self, after_us: int) -> Sequence[tuple[int, float, float]]:
        steps = self._clock_steps()
        # The largest time by which an earlier stamp is ahead of the current clock.
        least_s = min(itertools.accumulate((by_s for _, by_s in reversed(steps)), initial=0.0))
        ticks = []
        for stamp, start_s, end_s in super()._ticks(after_us + math.floor(least_s * 1e6)):
            since = sum(by_s for set_s, by_s in steps if end_s <= set_s)
            at_us = stamp - round(since * 1e6)
            if at_us > after_us:
                ticks.append((at_us, start_s, end_s))
        return sorted(ticks)


@pytest.mark.parametrize("step_s", [-86400, -3600, -31.4, -5.3, 3600])
def test_samples_stamped_before_a_clock_step_are_not_counted_later(
    tmp_path: Path, clock: FakeClock, step_s: float
) -> None:
    gpu = StampedGpu(clock)
    machine = Machine(tmp_path, gpu)
    machine.start()
    start = clock.now_s
    for second in range(160):
        gpu.work.append(Work(7, start + second, start + second + 0.5, 60, 10 * GIB))
        gpu.work.append(Work(8, start + second + 0.5, start + second + 1, 80, 5 * GIB))
    machine.hook("prolog", 7, "0")
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 103.3)
    gpu.set_clock(step_s)
    machine.run_until(start + 160)
    machine.hook("epilog", 7, "0")
    machine.hook("epilog", 8, "0")
    machine.run(2)
    for record, truth in zip(machine.records(), (30, 40), strict=True):
        assert record.allocated_s == pytest.approx(160, abs=0.1)
        assert record.sampled_s >= 150
        assert core(record) == pytest.approx(truth, abs=0.5)


@pytest.mark.parametrize("sharers", [1, 2])
@pytest.mark.parametrize("before_sample_s", [0.3, 2.3])
@pytest.mark.parametrize("step_s", [-0.5, -3, -9, 3])
def test_a_small_clock_step_during_a_job_misplaces_no_activity(
    tmp_path: Path, clock: FakeClock, step_s: float, before_sample_s: float, sharers: int
) -> None:
    """Test that busy time before a clock step and idle time after it are not mixed."""
    gpu = StampedGpu(clock)
    machine = Machine(tmp_path, gpu)
    machine.start()
    start, busy_s = clock.now_s, 110 - before_sample_s
    jobs = list(range(7, 7 + sharers))
    gpu.work = [Work(job, start, start + busy_s, 90 / sharers, 5 * GIB) for job in jobs]
    for job in jobs:
        machine.hook("prolog", job, "0")
    machine.run_until(start + busy_s)
    gpu.set_clock(step_s)
    machine.run_until(start + 160)
    for job in jobs:
        machine.hook("epilog", job, "0")
    machine.run(2)
    for record in machine.records():
        assert record.util_hist_ms is not None
        idle_s = record.util_hist_ms.get(0, 0) / 1000
        # One sample contains both busy and idle time.
        assert record.sampled_s - idle_s == pytest.approx(busy_s, abs=10.5)
        assert record.sampled_s - idle_s <= busy_s + 0.2
        assert idle_s <= 160 - busy_s + 0.2
        assert record.allocated_s == pytest.approx(160, abs=0.1)
        # At most the samples since the last reading of the ring are lost.
        assert record.sampled_s >= 160 - 11.5


@pytest.mark.parametrize("late_s", [0.002, 0.7])
@pytest.mark.parametrize("sharers", [1, 2])
@pytest.mark.parametrize("before_s", [0.5, 5])
@pytest.mark.parametrize("step_s", [-10.03, -5.33, -3.07, -0.82, -0.52])
def test_a_clock_set_back_before_a_job_adds_no_activity_of_the_previous_job(
    tmp_path: Path, clock: FakeClock, step_s: float, before_s: float, sharers: int, late_s: float
) -> None:
    """Test that the time until slurm-gpud reads the prolog's file, late on a busy machine, is a gap."""
    gpu = StampedGpu(clock)
    machine = Machine(tmp_path, gpu)
    machine.start()
    start = clock.now_s
    gpu.work = [Work(7, start, start + 20, 90, 20 * GIB)]
    machine.hook("prolog", 7, "0")
    machine.run_until(start + 20)
    machine.hook("epilog", 7, "0")
    machine.run_until(start + 22)
    gpu.set_clock(step_s)
    machine.run(before_s)
    jobs = list(range(8, 8 + sharers))
    for job in jobs[:-1]:
        machine.write_hook("prolog", job, "0")
    machine.hook("prolog", jobs[-1], "0", seen_after_s=late_s)
    machine.run(10)
    for job in jobs:
        machine.hook("epilog", job, "0")
    machine.run(3)
    for record in machine.records():
        assert core(record) == pytest.approx(90 if record.job_id == 7 else 0, abs=0.5)
        assert record.allocated_s - 0.3 - late_s <= record.sampled_s <= record.allocated_s + 0.01


def test_continual_clock_steps_are_reported_once_a_minute(machine: Machine) -> None:
    for _ in range(60):
        machine.clock.offset_s += 5
        machine.run(10)
    assert len(machine.events()) == 10
    assert sum(data["seconds"] for data in machine.event_data()) == pytest.approx(300, abs=30)


class MigGpu(FakeGpu):
    """A MIG instance on the GPU with minor number 0, without a reported utilisation."""

    def __init__(self, clock: FakeClock, gi: int) -> None:
        parts = {"parent": "GPU-0", "gpu_instance": gi, "compute_instance": 0}
        super().__init__(clock, f"MIG-{gi}", 0, total=10 * GIB, ring=False, more_facts=parts)


class MigMachine(Machine):
    """A node whose gres.conf lists the existing instances, as AutoDetect does."""

    def slurmd(self, command: Sequence[str]) -> str:
        lines = []
        for gpu in self.reader.gpus:
            gi, ci = (f"/n/nvidia-cap{minor}" for minor in CAPS[gpu.facts.gpu_instance or 0])
            lines.append(f"slurmd: Gres Name=gpu Type=1g.5gb Count=1 ID=7 File=/n/nvidia0,{gi},{ci} (null)")
        return "\n".join(lines)


def test_a_mig_reconfiguration_loses_only_the_destroyed_instance(tmp_path: Path, clock: FakeClock) -> None:
    one, two, five = (MigGpu(clock, gi) for gi in (1, 2, 5))
    (tmp_path / "mig-minors").write_text(MIG_MINORS)
    machine = MigMachine(tmp_path, one, two)
    start = clock.now_s
    for gpu in (one, two):
        gpu.work.append(Work(7 if gpu is one else 8, start, start + 100, 50, 5 * GIB))
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.hook("prolog", 8, "1")
    machine.run_until(start + 40)
    # An admin destroys instance 1 during job 7 and creates another; instance 2 is now Slurm's first.
    machine.reader.gpus = [two, five]
    machine.run_until(start + 60)
    machine.hook("prolog", 9, "1")
    machine.run_until(start + 100)
    for job, position in ((7, "0"), (8, "1"), (9, "1")):
        machine.hook("epilog", job, position)
    machine.run(2)
    seven, eight, nine = machine.records()
    assert [r.device for r in (seven, eight, nine)] == ["MIG-1", "MIG-2", "MIG-5"]
    assert seven.allocated_s == pytest.approx(100, abs=0.1)
    assert seven.mem_used_frac is not None
    assert seven.mem_used_frac.seconds == pytest.approx(40, abs=1.1)
    assert mem(seven) == pytest.approx(50, abs=0.5)
    assert eight.mem_used_frac is not None
    assert eight.mem_used_frac.seconds == pytest.approx(100, abs=0.1)
    assert mem(eight) == pytest.approx(50, abs=0.5)
    assert "gpu_lost" in machine.events()
