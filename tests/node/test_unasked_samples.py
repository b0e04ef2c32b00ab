"""Unasked samples of the reader while slurm-gpud sleeps change no record."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.wire import Record
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine

OLD_S = 250.0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a node with two GPUs and job 7, old enough for sampling at the full interval."""
    machine = node(tmp_path)
    machine.hook("prolog", 7, "0")
    machine.run(OLD_S)
    return machine


def node(directory: Path, *, follows: bool = True) -> Machine:
    clock = FakeClock()
    machine = Machine(directory, *(FakeGpu(clock, f"GPU-{n}", minor=n) for n in range(2)))
    machine.follows = follows
    machine.start()
    return machine


def changing_work(job_id: int, start_s: float, end_s: float, seed: int) -> list[Work]:
    """Return the work of a job whose load and memory change every few seconds."""
    dice, work = random.Random(seed), []
    while start_s < end_s:
        until_s = min(end_s, start_s + dice.uniform(0.5, 9))
        work.append(Work(job_id, start_s, until_s, dice.uniform(0, 50), round(dice.uniform(1, 20) * GIB)))
        start_s = until_s
    return work


def story(machine: Machine) -> list[Record]:
    """Run two long jobs and a third that shares a GPU with one of them, and return their records."""
    gpus, start_s = machine.gpus, machine.clock.now_s
    for seed, (gpu, job_id, begin_s, end_s) in enumerate(
        [(0, 7, 0.0, 700.0), (1, 8, 3.7, 655.3), (0, 9, 401.3, 452.9)]
    ):
        gpus[gpu].work += changing_work(job_id, start_s + begin_s, start_s + end_s, seed)
    for at_s, kind, job_id, position in [
        (0.0, "prolog", 7, "0"),
        (3.7, "prolog", 8, "1"),
        (401.3, "prolog", 9, "0"),
        (452.9, "epilog", 9, "0"),
        (655.3, "epilog", 8, "1"),
        (700.0, "epilog", 7, "0"),
    ]:
        machine.run_until(start_s + at_s)
        machine.hook(kind, job_id, position)
    machine.run(5)
    return machine.records()


def test_records_do_not_depend_on_the_source_of_samples(tmp_path: Path) -> None:
    of_reader = story(node(tmp_path / "reader"))
    of_slurm_gpud = story(node(tmp_path / "slurm-gpud", follows=False))
    assert len(of_reader) == 3
    for one, other in zip(of_reader, of_slurm_gpud, strict=True):
        unlike = {"segment": "", "seq": 0}
        assert one.to_wire() | unlike == other.to_wire() | unlike


def test_slurm_gpud_reads_only_every_ten_seconds(machine: Machine) -> None:
    before_s, reads = machine.clock.now_s, machine.reader.reads
    gpu_reads = machine.gpus[0].reads
    machine.run(100)
    assert machine.reader.reads - reads == (machine.clock.now_s - before_s) // 10
    assert machine.gpus[0].reads - gpu_reads == 100


def test_a_job_that_begins_is_sampled_immediately(machine: Machine) -> None:
    machine.run(3.3)
    reads = machine.gpus[1].reads
    machine.hook("prolog", 8, "1")
    machine.run(0.5)
    assert machine.gpus[1].reads > reads + 10


def test_a_gpu_lost_between_two_reads_is_reported_within_seconds(machine: Machine) -> None:
    machine.run(1.5)
    lost_s = machine.clock.wall()
    machine.gpus[0].lost = True
    machine.run(4)
    assert machine.spool is not None
    (event,) = [i.wire for i in machine.spool.queue.waiting(100) if i.wire.get("kind") == "gpu_lost"]
    assert event["at_s"] - lost_s < 3


def test_samples_after_the_end_of_a_job_are_not_counted_if_the_epilog_is_noticed_late(
    machine: Machine,
) -> None:
    begin_s = machine.clock.now_s - OLD_S
    machine.gpus[0].work.append(Work(7, begin_s, math.inf, 50, GIB))
    machine.run_until(machine.clock.now_s // 10 * 10 + 10.1)
    machine.clock.advance(0.4)
    machine.write_hook("epilog", 7, "0")
    end_s = machine.clock.now_s
    machine.clock.advance(11.5)  # slurm-gpud was stalled, but its reader was not
    machine.run(3)
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(end_s - begin_s, abs=0.02)
    assert record.mem_used_frac is not None
    assert record.mem_used_frac.seconds == pytest.approx(record.allocated_s, abs=0.02)


@pytest.mark.parametrize("late_s", [0.3, 4.0, 7.0, 60.0])
def test_a_record_ends_at_the_stamp_of_a_late_epilog(machine: Machine, tmp_path: Path, late_s: float) -> None:
    begin_s = machine.clock.now_s - OLD_S
    machine.gpus[0].work.append(Work(7, begin_s, begin_s + OLD_S + 3, 50, GIB))
    machine.run(3.2)
    end_s = machine.clock.now_s
    path = machine.write_hook("epilog", 7, "0")
    elsewhere = path.rename(tmp_path / "on-its-way")
    machine.run(late_s)
    elsewhere.rename(path)
    machine.run(3)
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(end_s - begin_s, abs=0.02)
    for histogram in (record.util_hist_ms, record.mem_hist_ms):
        assert histogram is not None
        # If too much was counted, the time since the last checkpoint is a gap.
        assert record.allocated_s - (0.02 if late_s < 5 else 11) <= sum(histogram.values()) / 1000
        assert sum(histogram.values()) / 1000 <= record.allocated_s + 0.02


@pytest.mark.parametrize("interval_s", [0.25, 1.0, 4.0])
def test_details_are_as_frequent_as_without_unasked_samples(tmp_path: Path, interval_s: float) -> None:
    """Test that details are read every ten seconds, or every ten samples if the interval is short."""
    reads = []
    for follows in (True, False):
        machine = Machine(tmp_path / str(follows), FakeGpu(FakeClock(), minor=0))
        machine.follows, machine.interval_s = follows, interval_s
        details: list[float] = []

        def detail(machine: Machine = machine, details: list[float] = details) -> dict[str, Any]:
            details.append(machine.clock.now_s)
            return {}

        machine.gpus[0].more_detail = detail
        machine.start()
        machine.hook("prolog", 7, "0")
        machine.run(1000)
        details.clear()
        machine.run(60)
        reads.append(len(details))
    assert reads[0] == reads[1]


def test_unasked_samples_are_stored_when_slurm_gpud_stops(machine: Machine) -> None:
    machine.run_until(machine.clock.now_s // 10 * 10 + 18.5)
    assert machine.node is not None
    machine.node.stop()
    (record,) = machine.records(final=None)
    assert record.mem_used_frac is not None
    assert record.mem_used_frac.seconds == pytest.approx(record.allocated_s, abs=0.6)
