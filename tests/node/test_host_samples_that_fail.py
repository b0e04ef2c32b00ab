"""A sample of a job's processes that hangs, is late or fails affects only that job."""

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.node.application.rules import NO_RULES
from slurm_gpu.node.host.host_records import STUCK_S, HostRecorder, Mounts
from slurm_gpu.node.host.host_watch import HostWatch
from slurm_gpu.node.process.node_counters import NodeReading
from slurm_gpu.node.worker_thread import Task, WorkerThread
from tests.node.hostnode import START_S, HostNode, allocation, segment
from tests.node.machine import ImmediateWorker


class Hanging:
    """A worker whose tasks never return."""

    def __init__(self) -> None:
        self.idle, self.started = True, 0

    def start(self, task: Task) -> None:
        self.idle = False
        self.started += 1

    def abandon(self) -> None:
        self.idle = True


def test_a_hung_sample_affects_only_its_own_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = Hanging()
    recorder = HostRecorder(
        "n1", NO_RULES, mounts=Mounts(proc=tmp_path, cgroup=tmp_path, sys=tmp_path), worker=worker
    )
    recorder.begin(allocation(4))
    now_s = START_S
    while worker.started < 2 and now_s < START_S + 200:
        assert not recorder.step(now_s, dict)
        if "job 4" in caplog.text and recorder.next_step_s() is None:
            recorder.begin(replace(allocation(5), uid=1002))
        now_s += 1.0
    assert (worker.started, now_s >= START_S + STUCK_S) == (2, True)
    assert caplog.text.count("they are not sampled again") == 1
    recorder.end(segment(4), now_s)
    recorder.end(segment(5), now_s)
    hosts = [host for at in (now_s, now_s + STUCK_S + 1) for host in recorder.step(at, dict)]
    assert sorted(host.job_id for host in hosts if host.final) == [4, 5]


class Late(Hanging):
    """A worker whose tasks run and return when the test calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Task] = []

    def start(self, task: Task) -> None:
        super().start(task)
        self.tasks.append(task)


def test_a_late_sample_does_not_repeat_samples_of_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[tuple[int, float]] = []

    def sample(watch: HostWatch, now_s: float, *_: object) -> None:
        sampled.append((watch.key.job_id, now_s))
        watch.next_sample_s = now_s + 10

    monkeypatch.setattr(HostWatch, "sample", sample)
    worker = Late()
    recorder = HostRecorder(
        "n1", NO_RULES, mounts=Mounts(proc=tmp_path, cgroup=tmp_path, sys=tmp_path), worker=worker
    )
    of_alice, of_bob = (replace(allocation(job), uid=uid) for job, uid in ((4, 1001), (5, 1002)))
    recorder.sync([of_alice, of_bob], START_S)
    recorder.step(START_S, dict)
    late_s = START_S + STUCK_S + 1
    recorder.step(late_s, dict)
    first, second = worker.tasks
    # While a sample of one of alice's jobs hangs, her other jobs are not sampled.
    recorder.sync([of_alice, of_bob, replace(allocation(6), uid=1001)], late_s)
    second()
    worker.idle = True
    recorder.step(late_s + 1, dict)
    assert (sampled, len(worker.tasks)) == ([(5, late_s)], 2)
    first()
    recorder.step(late_s + 2, dict)
    worker.tasks[2]()
    assert sampled == [(5, late_s), (6, late_s + 2)]


class Failing(ImmediateWorker):
    """A worker that survives exceptions of its tasks, like WorkerThread."""

    def start(self, task: Task) -> None:
        with contextlib.suppress(ValueError):
            task()


def test_a_failed_sample_affects_only_its_own_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = HostNode(tmp_path, worker=Failing())
    sample = HostWatch.sample

    def failing(watch: HostWatch, now_s: float, reading: NodeReading, on_gpu: Sequence[int]) -> None:
        if watch.key.job_id == 4:
            raise ValueError
        sample(watch, now_s, reading, on_gpu)

    monkeypatch.setattr(HostWatch, "sample", failing)
    for job_id in (4, 5):
        node.proc.process(job_id)
        node.job(job_id, job_id)
        node.recorder.begin(allocation(job_id))
    node.until(START_S + 5)
    assert (node.finished(4).cpu_s, node.finished(5).cpu_s) == (None, 0.0)
    assert caplog.text.count("failed") == 1


def test_the_thread_runs_tasks_and_survives_their_errors(caplog: pytest.LogCaptureFixture) -> None:
    worker = WorkerThread("test")
    ran = threading.Event()

    def wait_idle() -> None:
        for _ in range(1000):
            if worker.idle:
                return
            ran.wait(0.001)
        raise AssertionError("not idle")

    worker.start(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    wait_idle()
    worker.start(ran.set)
    wait_idle()
    assert ran.is_set()
    assert "ZeroDivisionError" in caplog.text
    started, go = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        go.wait(5)

    worker.start(block)
    assert started.wait(5)
    assert not worker.idle
    worker.abandon()
    assert worker.idle
    again = threading.Event()
    worker.start(again.set)
    assert again.wait(5)
    go.set()
