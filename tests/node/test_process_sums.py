"""A job's CPU time and traffic are correct, in whatever order its processes end and are reaped."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.node.process import process_sums as processsums
from slurm_gpu.node.process.process_sums import MAX_PROCESSES, PER_SAMPLE, ProcessSums
from slurm_gpu.node.process.procfs import PAGE_BYTES, TICKS_PER_S, Processes, ProcessIo
from tests.node.fakeproc import FakeProc


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def sums(proc: FakeProc, since_s: float = 0.0) -> ProcessSums:
    return ProcessSums(Processes(proc.root), since_s)


def test_without_processes_all_sums_are_none(proc: FakeProc) -> None:
    job = sums(proc)
    job.sample([])
    assert (job.cpu_s, job.read_bytes, job.write_bytes, job.resident_mib) == (None, None, None, None)


def test_an_idle_process_is_measured_as_zero(proc: FakeProc) -> None:
    job = sums(proc)
    proc.process(5)
    job.sample([5])
    assert (job.cpu_s, job.read_bytes, job.write_bytes, job.resident_mib) == (0.0, 0, 0, 0.0)


def test_the_usage_of_all_processes_of_a_job_is_added(proc: FakeProc) -> None:
    job = sums(proc)
    proc.process(5, own=3 * TICKS_PER_S, io=(10, 20), pages=256)
    proc.process(6, own=TICKS_PER_S, io=(1, 2), pages=256)
    job.sample([5, 6])
    assert (job.cpu_s, job.read_bytes, job.write_bytes) == (4.0, 11, 22)
    assert job.resident_mib == 512 * PAGE_BYTES / 2**20
    assert job.busiest() == [5, 6]


def test_an_ended_process_remains_counted(proc: FakeProc) -> None:
    job = sums(proc)
    proc.process(5, own=300, io=(10, 20))
    job.sample([5])
    proc.end(5)
    job.sample([])
    assert (job.cpu_s, job.read_bytes) == (300 / TICKS_PER_S, 10)


def test_usage_that_a_parent_inherits_counts_once(proc: FakeProc) -> None:
    job = sums(proc)
    proc.process(5, own=100)
    proc.process(6, ppid=5, own=300, io=(10, 20))
    job.sample([5, 6])
    proc.end(6)  # after 50 more ticks and 5 more bytes; another child ran unobserved
    proc.process(5, own=120, children=350 + 40, io=(15 + 3, 20))
    job.sample([5])
    assert (job.cpu_s, job.read_bytes, job.write_bytes) == ((120 + 350 + 40) / TICKS_PER_S, 18, 20)


def test_a_child_that_is_reaped_later_counts_once(proc: FakeProc) -> None:
    job = sums(proc)
    proc.process(5, own=100)
    proc.process(6, ppid=5, own=300)
    job.sample([5, 6])
    proc.end(6)
    job.sample([5])  # sampled just before the parent waits
    proc.process(5, own=100, children=300)
    job.sample([5])
    assert job.cpu_s == 400 / TICKS_PER_S


def test_grandchildren_are_inherited_through_a_dead_parent(proc: FakeProc) -> None:
    job = sums(proc)
    proc.process(5)
    proc.process(6, ppid=5, own=10)
    proc.process(7, ppid=6, own=200)
    job.sample([5, 6, 7])
    proc.end(6)
    proc.end(7)
    proc.process(5, children=215)
    job.sample([5])
    assert job.cpu_s == 215 / TICKS_PER_S


def test_usage_of_processes_with_the_same_id_is_added(proc: FakeProc) -> None:
    job = sums(proc)
    proc.process(5, own=100, started=100)
    job.sample([5])
    proc.process(5, own=30, started=900)
    job.sample([5])
    assert job.cpu_s == 130 / TICKS_PER_S


def test_a_segment_counts_from_its_own_start(proc: FakeProc) -> None:
    job = sums(proc, since_s=50.0)
    proc.process(5, own=1000, io=(1000, 0), started=100)
    job.sample([5])
    assert (job.cpu_s, job.read_bytes) == (0.0, 0)
    proc.process(5, own=1100, io=(1001, 0), started=100)
    proc.process(6, own=7, started=50 * TICKS_PER_S + 1)
    job.sample([5, 6])
    assert (job.cpu_s, job.read_bytes) == (107 / TICKS_PER_S, 1)


def test_storage_traffic_may_be_left_for_later_samples(proc: FakeProc) -> None:
    job = sums(proc)
    proc.process(5, io=(10, 0))
    job.sample([5], storage=False)
    assert (job.cpu_s, job.read_bytes) == (0.0, None)
    proc.process(6, ppid=5, io=(30, 0))
    job.sample([5, 6])
    assert job.read_bytes == 40
    proc.end(6)
    for _ in range(4):
        job.sample([5], storage=False)
    proc.process(5, io=(10 + 30 + 7, 0))  # its own 10, the child's 30, and the child's last 7
    job.sample([5])
    assert job.read_bytes == 47


def test_processes_that_exit_while_being_read_are_skipped(proc: FakeProc) -> None:
    job = sums(proc)
    (proc.root / "5").mkdir()
    (proc.root / "6").mkdir()
    (proc.root / "6" / "stat").write_text("6 (x) nonsense")
    proc.process(7, own=5, io=None)
    job.sample([5, 6, 7, 8])
    assert job.cpu_s == 5 / TICKS_PER_S


def test_traffic_that_is_not_readable_is_a_gap(proc: FakeProc) -> None:
    class Denying(Processes):
        def io(self, pid: int) -> ProcessIo:
            raise PermissionError

    job = ProcessSums(Denying(proc.root), 0.0)
    proc.process(5, own=100)
    job.sample([5])
    assert (job.cpu_s, job.read_bytes, job.write_bytes) == (100 / TICKS_PER_S, None, None)


@given(st.binary(max_size=300))
def test_a_stat_of_any_kind_is_a_process_or_none(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    root = tmp_path_factory.getbasetemp() / "any"
    (root / "5").mkdir(parents=True, exist_ok=True)
    (root / "5" / "stat").write_bytes(data)
    with contextlib.suppress(OSError):
        assert Processes(root).stat(5).started is not None
    (root / "5" / "io").write_bytes(data)
    with contextlib.suppress(OSError):
        assert Processes(root).io(5).read_bytes is not None


def test_a_large_job_is_read_in_parts_and_a_huge_one_not_at_all(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processsums, "PER_SAMPLE", 8)
    reads = []
    processes = Processes(proc.root)
    stat = processes.stat
    monkeypatch.setattr(processes, "stat", lambda pid: reads.append(pid) or stat(pid))  # type: ignore[func-returns-value]
    job = ProcessSums(processes, 0.0)
    for pid in range(1, 31):
        proc.process(pid, own=1)
    for _ in range(4):
        reads.clear()
        job.sample(range(1, 31))
        assert len(reads) <= 8
    assert job.cpu_s == 30 / TICKS_PER_S
    reads.clear()
    job.sample(range(1, MAX_PROCESSES + 2))
    assert reads == []
    assert (job.cpu_s, job.read_bytes, job.resident_mib) == (None, None, None)
    assert PER_SAMPLE < MAX_PROCESSES


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["work", "fork", "end", "orphan"]), st.integers(0, 50), st.integers(0, 7)),
        max_size=60,
    )
)
def test_sums_are_monotone_and_never_exceed_the_truth(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """Simulate a kernel: living parents reap ended children; usage of orphans disappears."""
    proc = FakeProc(tmp_path_factory.mktemp("p") / "proc")
    job = ProcessSums(Processes(proc.root), 0.0)
    alive: dict[int, list[int]] = {1000: [1, 0, 0]}  # pid: [ppid, own, children]
    truth, last, following = 0, 0.0, 1001
    for action, amount, which in steps:
        pid = sorted(alive)[which % len(alive)]
        if action == "work":
            alive[pid][1] += amount
            truth += amount
        elif action == "fork":
            alive[following] = [pid, 0, 0]
            following += 1
        elif pid != 1000:
            ppid, own, children = alive.pop(pid)
            for other in alive.values():
                other[0] = 1 if other[0] == pid else other[0]
            if action == "end" and ppid in alive:
                alive[ppid][2] += own + children
            proc.end(pid) if (proc.root / str(pid)).exists() else None
        for number, (ppid, own, children) in alive.items():
            proc.process(number, ppid=ppid, own=own, children=children)
        if amount % 3 == 0:
            job.sample(sorted(alive))
            assert job.cpu_s is not None
            assert last <= job.cpu_s <= truth / TICKS_PER_S + 1e-9
            last = job.cpu_s


BURN = """
import os, sys, time
def burn(s):
    while time.process_time() < s: pass
for _ in range(4):
    if os.fork() == 0:
        burn(0.05); os._exit(0)
    os.wait()
burn(0.15)
print("done", flush=True)
sys.stdin.read()
"""


def test_real_processes_with_children_too_short_to_be_sampled() -> None:
    processes = Processes()
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        job = ProcessSums(processes, 0.0)
        job.sample([run.pid])
        assert run.stdout is not None
        assert run.stdout.readline() == b"done\n"
        job.sample([run.pid])
        assert job.cpu_s == pytest.approx(0.35, abs=0.1)
        assert job.resident_mib is not None
        assert job.resident_mib > 3
        assert processes.uid(run.pid) == os.geteuid()
        assert processes.stat(run.pid).started <= time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S
        run.communicate()
