"""Without Slurm, each period in which NVML lists a user's processes on a set of GPUs is a job."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_gpu.node.daemon import NodeDaemon
from slurm_gpu.node.gpu.reading import ReadRequest, Results
from slurm_gpu.node.host_mode import HostJobs, HostOrder, HostProcesses, HostSource
from slurm_gpu.node.live import CachingReader
from slurm_gpu.node.process.cgroup import JobOwner
from slurm_gpu.node.process.environment_jobs import HostTree
from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName
from slurm_gpu.node.process.node_counters import NodeCounters
from slurm_gpu.node.process.process_jobs import ProcessOrigin
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.wire import HostRun
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core, mem

ALICE, BOB = 11, 22


class Processes(HostProcesses):
    """Running processes; process 10_000 + 100 × user + n belongs to `user`."""

    def __init__(self, gpus: Sequence[FakeGpu]) -> None:
        super().__init__()
        self._gpus = gpus

    def origin(self, pid: int) -> ProcessOrigin | None:
        if pid not in {process.pid for gpu in self._gpus for process in gpu.processes() or ()}:
            return None
        return ProcessOrigin(b"1", (pid - 10_000) // 100, None, None, None)


class HostMachine(Machine):
    """A machine without Slurm."""

    jobs: HostJobs

    def start(self) -> None:
        self.spool = Spool(self.directory / "spool")
        seen, order, processes = CachingReader(self.reader), HostOrder(), Processes(self.gpus)
        self.jobs = HostJobs("ws1", self.clock, seen, order, processes, self.spool)
        self.node = NodeDaemon(
            name="ws1",
            cluster="host:ws1",
            clock=self.clock,
            hooks=self.jobs,
            reader=seen,
            order=order,
            spool=self.spool,
            processes=processes,
            cgroups=JobCgroups("ws1", self.directory / "cgroup"),
            interval_s=1.0,
        )
        self.source = HostSource("ws1", self.clock, self.node, seen, NodeCounters())
        self.node.start()
        self.node.step()
        self.due_s = self.node.due_s()

    def run_until(self, at_s: float) -> None:
        while self.node is not None and (due_s := min(self.due_s, self.jobs.due_s)) <= at_s:
            self.clock.now_s = max(self.clock.now_s, due_s)
            self.node.step()
            self.due_s = self.node.due_s()
        self.clock.now_s = max(self.clock.now_s, at_s)

    def runs(self) -> list[HostRun]:
        assert self.spool is not None
        items = self.spool.queue.waiting(10_000)
        return [HostRun.from_wire(item.wire) for item in items if item.kind == "runs"]

    def n(self, job_id: int) -> int:
        """Return the ordinal of the job on this machine."""
        return job_id - min(run.job_id for run in self.runs()) + 1

    def open(self) -> list[tuple[str, list[str]]]:
        return [(run.user, list(run.devices)) for run in self.runs() if run.end_s is None]


def work(user: int, start_s: float, end_s: float, percent: float = 50, n: int = 0) -> Work:
    return Work(100 * user + n, start_s, end_s, percent, 8 * GIB)


@pytest.fixture
def gpus(clock: FakeClock) -> list[FakeGpu]:
    return [FakeGpu(clock, f"GPU-{n}", n) for n in range(4)]


@pytest.fixture
def host(tmp_path: Path, gpus: list[FakeGpu]) -> HostMachine:
    host = HostMachine(tmp_path, *gpus)
    host.start()
    return host


def test_a_job_lasts_from_the_user_s_first_process_to_the_last(
    host: HostMachine, gpus: list[FakeGpu]
) -> None:
    start = host.clock.now_s
    gpus[1].work.append(work(ALICE, start + 10, start + 110, 60))
    host.run_until(start + 300)
    (run,) = host.runs()
    assert (run.cluster, host.n(run.job_id), run.uid, list(run.devices)) == ("host:ws1", 1, ALICE, ["GPU-1"])
    assert run.end_s is not None
    assert run.end_s - run.start_s == pytest.approx(102, abs=3)
    (record,) = host.records()
    assert (record.cluster, record.job_id, record.device) == ("host:ws1", run.job_id, "GPU-1")
    assert record.allocated_s == pytest.approx(102, abs=3)
    assert core(record) == pytest.approx(60, abs=2)
    assert mem(record) == pytest.approx(20, abs=1)
    assert record.sampled_s == pytest.approx(record.allocated_s, abs=3)
    assert host.events() == []


def test_a_process_of_two_seconds_is_a_job_too(host: HostMachine, gpus: list[FakeGpu]) -> None:
    start = host.clock.now_s
    gpus[0].work.append(work(ALICE, start + 10, start + 12, 90))
    host.run_until(start + 100)
    (record,) = host.records()
    assert record.allocated_s < 6
    assert record.util_hist_ms is not None
    assert core(record) == pytest.approx(90 * 2 / record.allocated_s, abs=25)


def test_a_new_user_of_a_gpu_is_noticed_even_with_equal_memory(
    host: HostMachine, gpus: list[FakeGpu]
) -> None:
    start = host.clock.now_s
    gpus[0].work.append(work(ALICE, start + 10, start + 60.5))
    gpus[0].work.append(work(BOB, start + 60.5, start + 110))
    host.run_until(start + 200)
    alice, bob = host.records()
    assert alice.allocated_s == pytest.approx(50.5 + 2.5, abs=1.1)  # LEFT_S
    assert bob.allocated_s == pytest.approx(49.5 + 2.5, abs=2.1)


def test_processes_are_listed_only_where_something_changed(
    host: HostMachine, gpus: list[FakeGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, gpu in enumerate(gpus):
        gpu.work.append(work(ALICE, host.clock.now_s, host.clock.now_s + 1000, n=n))
    host.run(300)
    queried: list[str] = []
    read = host.reader.read

    def counted(requests: Sequence[ReadRequest]) -> Results:
        queried.extend(request.uuid for request in requests if request.processes)
        return read(requests)

    monkeypatch.setattr(host.reader, "read", counted)
    host.run(100)
    # Samples of allocated GPUs and the search for users each read a GPU every 10 s.
    assert len(queried) <= 2 * len(gpus) * 11


def test_one_program_on_several_gpus_is_one_job_however_slowly_it_starts(
    host: HostMachine, gpus: list[FakeGpu]
) -> None:
    start = host.clock.now_s
    for n, gpu in enumerate(gpus):
        gpu.work.append(work(ALICE, start + 10 + n, start + 100, n=n))
    host.run_until(start + 50)
    (run,) = host.runs()
    assert list(run.devices) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]


def test_a_user_back_within_a_minute_continues_the_job_without_the_pause(
    host: HostMachine, gpus: list[FakeGpu]
) -> None:
    start = host.clock.now_s
    gpus[0].work += [work(ALICE, start + 10, start + 50), work(ALICE, start + 80, start + 120, n=1)]
    host.run_until(start + 70)
    assert [run.end_s is not None for run in host.runs()] == [True]
    host.run_until(start + 100)
    assert [run.end_s for run in host.runs()] == [None]
    host.run_until(start + 300)
    (run,) = host.runs()
    assert run.end_s is not None
    assert run.end_s - run.start_s == pytest.approx(112, abs=4)
    first, second = host.records()
    assert first.job_id == second.job_id
    assert first.segment != second.segment
    assert first.allocated_s + second.allocated_s == pytest.approx(84, abs=6)
    assert core(second) == pytest.approx(50, abs=4)


def test_a_user_who_returns_later_begins_a_new_job(host: HostMachine, gpus: list[FakeGpu]) -> None:
    start = host.clock.now_s
    gpus[0].work += [work(ALICE, start + 10, start + 50), work(ALICE, start + 150, start + 190)]
    host.run_until(start + 300)
    assert [host.n(run.job_id) for run in host.runs()] == [1, 2]
    assert [host.n(record.job_id) for record in host.records()] == [1, 2]


def test_a_change_of_gpus_begins_another_job(host: HostMachine, gpus: list[FakeGpu]) -> None:
    start = host.clock.now_s
    gpus[0].work.append(work(ALICE, start + 10, start + 400))
    gpus[2].work.append(work(ALICE, start + 100, start + 200, n=1))
    host.run_until(start + 500)
    assert [list(run.devices) for run in host.runs()] == [["GPU-0"], ["GPU-0", "GPU-2"], ["GPU-0"]]
    first, second, third = host.runs()
    assert (first.end_s, second.end_s) == (second.start_s, third.start_s)
    allocated_s = sum(record.allocated_s for record in host.records() if record.device == "GPU-0")
    assert allocated_s == pytest.approx(392, abs=4)


def test_users_on_one_gpu_are_distinguished(host: HostMachine, gpus: list[FakeGpu]) -> None:
    start = host.clock.now_s
    gpus[0].work += [work(ALICE, start + 10, start + 210, 30), work(BOB, start + 60, start + 160, 50)]
    host.run_until(start + 400)
    assert [(host.n(run.job_id), run.uid) for run in host.runs()] == [(1, ALICE), (2, BOB)]
    alice, bob = host.records()
    assert core(alice) == pytest.approx(30, abs=2)
    assert core(bob) == pytest.approx(49, abs=3)
    assert mem(bob) == pytest.approx(20, abs=2)


def test_a_restart_continues_open_jobs(host: HostMachine, gpus: list[FakeGpu]) -> None:
    start = host.clock.now_s
    gpus[0].work.append(work(ALICE, start + 10, start + 200))
    gpus[1].work.append(work(BOB, start + 10, start + 95))
    host.run_until(start + 90)
    host.kill()
    host.clock.advance(10)
    host.start()
    host.run_until(start + 400)
    assert sorted((host.n(run.job_id), run.uid) for run in host.runs()) == [(1, ALICE), (2, BOB)]
    assert all(run.end_s is not None for run in host.runs())
    alice = [record for record in host.records(final=None) if host.n(record.job_id) == 1]
    assert sum(record.allocated_s for record in alice) == pytest.approx(180, abs=14)


def test_jobs_open_at_a_shutdown_have_ended(host: HostMachine, gpus: list[FakeGpu]) -> None:
    start = host.clock.now_s
    gpus[0].work.append(work(ALICE, start + 10, start + 200))
    host.run_until(start + 100)
    wall = host.clock.wall()
    host.kill()
    clock = FakeClock("boot-2", 30.0)
    clock.offset_s = wall + 600 - 30
    host.clock = clock
    for gpu in gpus:
        gpu.clock = clock
    host.start()
    host.run(10)
    (run,) = host.runs()
    assert run.end_s == pytest.approx(wall, abs=12)
    host.gpus[0].work.append(work(ALICE, clock.now_s, clock.now_s + 100))
    host.run(10)
    assert [host.n(run.job_id) for run in host.runs()] == [1, 2]


def test_an_unreadable_gpu_ends_no_job(host: HostMachine, gpus: list[FakeGpu]) -> None:
    start = host.clock.now_s
    gpus[0].work.append(work(ALICE, start + 10, start + 400))
    host.run_until(start + 50)
    gpus[0].lost = True
    host.run_until(start + 200)
    gpus[0].lost = False
    host.run_until(start + 300)
    assert [(host.n(run.job_id), run.end_s) for run in host.runs()] == [(1, None)]
    assert host.events()[0] == "gpu_lost"


def test_open_jobs_are_not_sent_and_answers_about_jobs_are_ignored(
    host: HostMachine, gpus: list[FakeGpu]
) -> None:
    gpus[0].work.append(work(ALICE, host.clock.now_s, host.clock.now_s + 400))
    host.run(50)
    assert host.source.open_jobs() == ()
    (run,) = host.runs()
    host.source.end_jobs({run.job_id: {"restart": 0, "end_s": 1}})
    host.source.update_jobs({run.job_id: {"restart": 0, "state": "RUNNING"}})
    host.run(10)
    assert host.node is not None
    assert host.node.jobs_by_device() == {"GPU-0": [run.job_id]}
    assert host.source.live()["devices"]["GPU-0"]["jobs"] == [run.job_id]


def test_an_exited_process_remains_assigned_to_its_job(host: HostMachine, gpus: list[FakeGpu]) -> None:
    start = host.clock.now_s
    gpus[0].work.append(work(ALICE, start, start + 10))
    processes = Processes(gpus)
    pid = 10_000 + 100 * ALICE
    host.clock.advance(5)
    assert processes.job_of(pid, {7: JobOwner(BOB), 8: JobOwner(ALICE)}) == 8
    host.clock.advance(10)
    assert processes.job_of(pid, {7: JobOwner(BOB)}) == 8
    assert processes.job_of(pid + 1, {7: JobOwner(BOB)}) is None


def test_a_job_s_processes_are_those_on_gpus_and_their_children() -> None:
    script = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as on_gpu:
        assert on_gpu.stdout is not None
        child = int(on_gpu.stdout.readline())
        tree = HostTree({ALICE: {on_gpu.pid}, BOB: frozenset()}.__getitem__)
        assert set(tree.pids(JobName(1, ALICE, None), 100.0)) == {on_gpu.pid, child}
        assert tree.pids(JobName(2, BOB, None), 100.0) == []
        os.kill(child, signal.SIGKILL)


def test_a_lost_spool_does_not_reuse_job_ids(
    host: HostMachine, gpus: list[FakeGpu], clock: FakeClock
) -> None:
    """Test that IDs are not reused, because bob's records would then be added to alice's job."""
    gpus[0].work.append(work(ALICE, clock.now_s + 5, clock.now_s + 15))
    host.run(60)
    ids = {run.job_id for run in host.runs()}
    host.kill()
    shutil.rmtree(host.directory / "spool")
    host.start()
    gpus[0].work.append(work(BOB, clock.now_s + 5, clock.now_s + 15))
    host.run(60)
    assert len(ids) == 1
    assert ids.isdisjoint(run.job_id for run in host.runs())
