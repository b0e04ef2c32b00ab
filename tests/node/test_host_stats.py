"""Usage of a job on the node comes from its cgroup or its processes, and never decreases."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.node.process.environment_jobs import EnvironmentJobs
from slurm_gpu.node.process.host_stats import CgroupGrowth, HostStats
from slurm_gpu.node.process.job_cgroups import CgroupCounter, JobCgroups, JobName
from slurm_gpu.node.process.procfs import PAGE_BYTES, TICKS_PER_S, Processes
from tests.node.fakeproc import FakeProc, write

JOB = JobName(4, os.geteuid())
SCOPE = "cgroup/system.slice/slurmstepd.scope/job_4"


def watch(tmp_path: Path, *, since_s: float = 0.0, from_start: bool = True) -> HostStats:
    processes = Processes(tmp_path / "proc")
    return HostStats(
        JOB,
        cgroups=JobCgroups("n1", tmp_path / "cgroup"),
        environments=EnvironmentJobs(processes),
        processes=processes,
        since_s=since_s,
        from_start=from_start,
    )


def group(tmp_path: Path, *, usage_us: int | None = None, anon: int | None = None, pids: str = "") -> None:
    write(tmp_path / "cgroup" / "cgroup.controllers", "")
    write(tmp_path / SCOPE / "cgroup.procs", pids)
    if usage_us is not None:
        write(tmp_path / SCOPE / "cpu.stat", f"usage_usec {usage_us}\n")
    if anon is not None:
        write(tmp_path / SCOPE / "memory.stat", f"anon {anon}\nfile 1000000000\n")


def test_counters_of_the_cgroup_are_preferred(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.process(5, own=100, io=(10, 20), pages=1 << 20)
    group(tmp_path, usage_us=7_000_000, anon=3 << 20, pids="5\n")
    stats = watch(tmp_path)
    stats.sample(1.0)
    group(tmp_path, usage_us=9_000_000, anon=1 << 20, pids="5\n")
    stats.sample(11.0)
    assert (stats.cpu_s, stats.rss_max_mib) == (9.0, 3.0)
    assert (stats.read_bytes, stats.write_bytes, stats.process_count) == (10, 20, 1)


def test_without_cgroup_counters_the_processes_are_added_up(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.process(5, own=100, pages=512)
    proc.process(6, own=100, pages=512)
    group(tmp_path, pids="5\n6\n")
    stats = watch(tmp_path)
    stats.sample(1.0)
    assert (stats.cpu_s, stats.rss_max_mib) == (200 / TICKS_PER_S, 1024 * PAGE_BYTES / 2**20)


def test_without_cgroups_processes_are_found_by_their_environment(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.process(5, own=100, environ=b"SLURM_JOB_ID=4\0")
    proc.process(6, own=100, environ=b"SLURM_JOB_ID=3\0")
    proc.process(7, own=100)
    stats = watch(tmp_path)
    stats.sample(1.0)
    assert stats.process_count == 1
    proc.process(7, own=100, environ=b"SLURM_JOB_ID=4\0")  # after its exec
    proc.process(8, own=5, environ=b"SLURM_JOB_ID=4\0")
    stats.sample(2.0)  # too soon to walk through /proc again
    assert stats.process_count == 1
    stats.sample(11.0)
    assert stats.process_count == 3
    assert stats.cpu_s == 205 / TICKS_PER_S


def test_processes_of_other_users_are_scanned_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = FakeProc(tmp_path / "proc")
    for pid in range(10, 60):
        proc.process(pid)
    proc.process(5, environ=b"SLURM_JOB_ID=4\0")
    processes = Processes(proc.root)
    queried: list[int] = []
    own = {5}

    def uid(pid: int) -> int:
        queried.append(pid)
        return os.geteuid() if pid in own else 99_999

    monkeypatch.setattr(processes, "uid", uid)
    environments = EnvironmentJobs(processes)
    found = [environments.pids(JOB, 10.0 * walk) for walk in range(60)]
    assert all(5 in pids for pids in found)
    assert len(queried) < 60 * 51 / 3
    own.add(59)
    proc.process(59, environ=b"SLURM_JOB_ID=4\0")
    assert any(59 in environments.pids(JOB, 1000.0 + 10 * walk) for walk in range(7))


def test_with_too_many_processes_those_of_jobs_and_new_ones_are_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("slurm_gpu.node.process.environment_jobs._MOST_PROCESSES", 3)
    proc = FakeProc(tmp_path / "proc")
    proc.process(10, environ=b"SLURM_JOB_ID=4\0")
    environments = EnvironmentJobs(Processes(proc.root))
    assert environments.pids(JOB, 0.0) == [10]
    for pid in range(11, 19):
        proc.process(pid)
    proc.process(99, environ=b"SLURM_JOB_ID=4\0")
    for walk in range(1, 4):
        assert set(environments.pids(JOB, 10.0 * walk)) == {10, 99}
    assert [
        message for message in caplog.messages if "processes run here, but only 3 are scanned" in message
    ] == [caplog.messages[0]]


def test_a_job_without_visible_processes_is_a_gap(tmp_path: Path) -> None:
    FakeProc(tmp_path / "proc")
    stats = watch(tmp_path)
    stats.sample(1.0)
    assert (stats.cpu_s, stats.rss_max_mib, stats.read_bytes, stats.write_bytes) == (None, None, None, None)


def test_after_a_restart_a_new_segment_counts_from_its_own_start(tmp_path: Path) -> None:
    FakeProc(tmp_path / "proc")
    group(tmp_path, usage_us=100_000_000)
    stats = watch(tmp_path, since_s=500.0, from_start=False)
    stats.sample(500.1)
    assert stats.cpu_s == 0.0
    group(tmp_path, usage_us=103_000_000)
    stats.sample(510.0)
    assert stats.cpu_s == 3.0


def test_a_cgroup_created_after_the_restart_counts_completely() -> None:
    growth = CgroupGrowth(from_zero=False)
    growth.feed(None)
    growth.feed(CgroupCounter(1, 5.0))
    assert growth.total == 5.0


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0, 100)), min_size=1), st.booleans())
def test_growth_is_monotone_over_groups_that_come_and_go(
    seen: list[tuple[int, float]], from_zero: bool
) -> None:
    growth, last = CgroupGrowth(from_zero=from_zero), 0.0
    for identity, value in seen:
        growth.feed(CgroupCounter(identity, value))
        assert growth.total is not None
        assert growth.total >= last
        last = growth.total


def test_real_processes_found_by_their_environment() -> None:
    processes = Processes()
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; x = bytearray(30 << 20); print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"SLURM_JOB_ID": "987654321"},
    ) as run:
        assert run.stdout is not None
        run.stdout.readline()
        stats = HostStats(
            JobName(987654321, os.geteuid()),
            cgroups=JobCgroups("n1", Path("/nonexistent")),
            environments=EnvironmentJobs(processes),
            processes=processes,
            since_s=0.0,
            from_start=True,
        )
        stats.sample(time.monotonic())
        assert stats.busiest() == [run.pid]
        assert stats.rss_max_mib is not None
        assert 30 < stats.rss_max_mib < 80
        run.communicate()
