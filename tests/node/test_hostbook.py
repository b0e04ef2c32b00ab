"""A segment's host record: looked at in time, aside, and right about whose the node's traffic was."""

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.node.application.rules import NO_RULES, Rules, check_rules
from slurm_gpu.node.held.allocations import Allocation
from slurm_gpu.node.host.hostbook import STUCK_S, HostBook, Mounts
from slurm_gpu.node.host.hostwatch import HostWatch
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.process.nodecounters import NodeReading
from slurm_gpu.node.process.procfs import TICKS_PER_S
from slurm_gpu.node.workthread import Task, Worker, WorkThread
from slurm_gpu.records import Host
from slurm_gpu.yamlsource import parse_yaml
from tests.node.fakeproc import FakeProc, write
from tests.node.machine import AtOnce

START_S, WALL_S = 1000.0, 1_795_000_000.0
RULES = check_rules(
    parse_yaml(
        "version: 1\napplications:\n"
        "  App: {field: tests, any: [{executable: app}], parameters: {n: '-n (.)'}}\n",
        "f",
    )
)


class Hanging:
    """A worker whose tasks do not come back."""

    def __init__(self) -> None:
        self.idle, self.started = True, 0

    def start(self, task: Task) -> None:
        self.idle = False
        self.started += 1

    def abandon(self) -> None:
        self.idle = True


class Node:
    """Made-up trees, and the book that looks at them."""

    def __init__(self, root: Path, rules: Rules = NO_RULES, worker: Worker | None = None) -> None:
        self.root, self.proc = root, FakeProc(root / "proc")
        mounts = Mounts(proc=root / "proc", cgroup=root / "cgroup", sys=root / "sys")
        self.book = HostBook("n1", rules, mounts=mounts, worker=worker or AtOnce())
        self.now_s = START_S
        self.on_gpu: Mapping[int, Sequence[int]] = {}
        write(root / "sys/class/net/eth0/type", "1\n")
        (root / "sys/class/net/eth0/device").mkdir()
        self.traffic(0)

    def traffic(self, received: int) -> None:
        write(self.root / "proc/net/dev", f"eth0: {received} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")

    def job(self, job_id: int, *pids: int) -> None:
        write(
            self.root / f"cgroup/freezer/slurm_n1/uid_{os.geteuid()}/job_{job_id}/step_0/cgroup.procs",
            "".join(f"{pid}\n" for pid in pids),
        )

    def counted(self, job_id: int, cpu_s: float) -> None:
        """What the job's cgroup shows."""
        group = self.root / f"cgroup/cpuacct/slurm_n1/uid_{os.geteuid()}/job_{job_id}"
        write(group / "cpuacct.usage", f"{round(cpu_s * 1e9)}\n")

    def end_job(self, job_id: int, pid: int) -> None:
        """Nothing is left of it."""
        self.proc.end(pid)
        for controller in ("cpuacct", "freezer"):
            group = self.root / f"cgroup/{controller}/slurm_n1/uid_{os.geteuid()}/job_{job_id}"
            group.rename(self.root / f"ended-{controller}-{job_id}")

    def until(self, at_s: float) -> list[Host]:
        hosts: list[Host] = []
        while (due := self.book.next_step_s()) is not None and due <= at_s:
            self.now_s = max(self.now_s, due)
            assert not self.book.step(self.now_s, lambda: self.on_gpu)
            hosts.extend(self.book.hosts(self.now_s))
        self.now_s = at_s
        return hosts

    def finished(self, job_id: int) -> Host:
        self.book.end(segment(job_id), self.now_s)
        (host,) = [host for host in self.book.step(self.now_s, dict) if host.final]
        return host


def segment(job_id: int) -> str:
    return f"{job_id:016x}"


def allocation(job_id: int, *, continued: bool = False) -> Allocation:
    return Allocation(
        key=SegmentKey(
            cluster="lab",
            job_id=job_id,
            restart=0,
            prolog_s=int(WALL_S),
            node="n1",
            boot_id="b",
            segment=segment(job_id),
        ),
        prolog_at_s=WALL_S - 500 if continued else WALL_S,
        begun_s=START_S - 500 if continued else START_S,
        start_s=START_S,
        start_wall_s=WALL_S,
        positions=(0,),
        uid=os.geteuid(),
    )


def requeued(before: Allocation, at_s: float) -> Allocation:
    key = replace(before.key, restart=1, segment="f" * 16)
    wall_s = WALL_S + at_s - START_S
    return replace(before, key=key, prolog_at_s=wall_s, begun_s=at_s, start_s=at_s, start_wall_s=wall_s)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, RULES)


def test_a_job_s_record(node: Node) -> None:
    node.proc.process(5, own=0)
    node.job(4, 5)
    node.book.begin(allocation(4))
    node.until(START_S + 50)
    node.proc.process(5, own=40 * TICKS_PER_S, io=(100, 200), pages=512)
    node.traffic(3000)
    hosts = node.until(START_S + 60)
    assert hosts[-1].cpu_s == 40.0
    host = node.finished(4)
    assert (host.cpu_s, host.read_bytes, host.write_bytes, host.rss_max_mib) == (40.0, 100, 200, 2.0)
    assert (host.net_rx_bytes, host.net_tx_bytes, host.ib_rx_bytes) == (3000, 0, None)
    assert (host.first_s, host.last_s, host.final) == (int(WALL_S), int(WALL_S) + 60, True)
    assert Host.from_wire(host.to_wire()) == host
    assert host.seq == hosts[-1].seq + 1
    assert node.book.next_step_s() is None


def test_looks_come_often_at_first_and_each_ten_seconds_later(node: Node) -> None:
    node.book.begin(allocation(4))
    assert len(node.until(START_S + 1)) == 5
    node.until(START_S + 1000)
    assert len(node.until(START_S + 2000)) == 100
    for pid in range(10, 250):
        node.proc.process(pid)
    node.job(4, *range(10, 250))
    node.until(START_S + 2010)
    assert len(node.until(START_S + 2310)) == 10


def test_a_job_so_short_that_nothing_was_seen_has_a_record_of_gaps(node: Node) -> None:
    node.book.begin(allocation(4))
    host = node.finished(4)
    assert (host.cpu_s, host.rss_max_mib, host.net_rx_bytes, host.app, host.container) == (None,) * 5


def test_traffic_is_nobody_s_once_another_job_has_been_there(node: Node) -> None:
    node.proc.process(5)
    node.job(4, 5)
    node.book.begin(allocation(4))
    node.until(START_S + 20)
    node.book.meet(7)  # a job without GPUs, there and gone between two looks
    node.traffic(999)
    node.until(START_S + 40)
    assert node.finished(4).net_rx_bytes is None


def test_traffic_is_nobody_s_where_another_job_was_there_before(node: Node) -> None:
    node.proc.process(5)
    node.job(4, 5)
    node.job(3, 6)
    node.book.begin(allocation(4))
    node.until(START_S + 20)
    assert node.finished(4).net_rx_bytes is None


def test_two_watched_jobs_are_not_alone(node: Node) -> None:
    for job_id in (4, 5):
        node.proc.process(job_id)
        node.job(job_id, job_id)
        node.book.begin(allocation(job_id))
    node.until(START_S + 20)
    assert node.finished(4).net_rx_bytes is None
    assert node.finished(5).net_rx_bytes is None


def test_without_cgroups_nobody_knows_who_is_alone(node: Node) -> None:
    node.proc.process(5, environ=b"SLURM_JOB_ID=4\0", own=100)
    node.book.begin(allocation(4))
    node.until(START_S + 20)
    host = node.finished(4)
    assert host.cpu_s == 100 / TICKS_PER_S
    assert host.net_rx_bytes is None


def test_a_segment_after_a_restart_counts_from_its_beginning(node: Node) -> None:
    node.proc.process(5, own=100 * TICKS_PER_S, started=10)
    node.job(4, 5)
    node.book.begin(allocation(4, continued=True))
    node.until(START_S + 20)
    node.proc.process(5, own=103 * TICKS_PER_S, started=10)
    node.until(START_S + 40)
    assert node.finished(4).cpu_s == 3.0


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("survives", [False, True])
def test_a_run_is_not_charged_with_what_the_run_before_it_left_in_its_cgroup(
    node: Node, *, at_once: bool, survives: bool
) -> None:
    first, second = allocation(4), requeued(allocation(4), START_S + 40)
    node.job(4, 5)
    node.counted(4, 0)
    node.proc.process(5, own=0, io=(0, 0), started=int(START_S * TICKS_PER_S) + 5)
    node.book.sync([first], node.now_s)
    node.until(START_S + 20)
    node.proc.process(5, own=70 * TICKS_PER_S, io=(70, 7), started=int(START_S * TICKS_PER_S) + 5)
    node.counted(4, 70)
    node.until(START_S + 40)
    if not at_once:
        node.book.sync([], node.now_s)
        (host,) = node.book.step(node.now_s, dict)
    if not survives:
        node.end_job(4, 5)
    node.book.sync([second], node.now_s)
    if at_once:
        node.book.step(node.now_s, dict)
    node.until(START_S + 41)
    used = 73 if survives else 3
    node.job(4, 6, *([5] if survives else []))
    node.counted(4, used)
    node.proc.process(6, own=3 * TICKS_PER_S, io=(3, 1), started=int((START_S + 40.5) * TICKS_PER_S))
    node.until(START_S + 90)
    node.book.sync([], node.now_s)
    (host,) = node.book.step(node.now_s, dict)
    assert (host.restart, host.cpu_s, host.read_bytes, host.write_bytes) == (1, 3.0, 3, 1)


def executable(node: Node, pid: int, name: str, arguments: str = "") -> None:
    node.proc.process(pid)
    (node.proc.root / str(pid) / "exe").symlink_to(f"/opt/{name}")
    write(node.proc.root / str(pid) / "cmdline", "\0".join([name, *arguments.split()]) + "\0")


def test_the_application_is_recognised_when_it_appears(node: Node) -> None:
    executable(node, 5, "bash")
    node.job(4, 5)
    node.book.begin(allocation(4))
    node.until(START_S + 20)
    executable(node, 6, "app", "-n 3 --token secret")
    node.job(4, 5, 6)
    hosts = node.until(START_S + 29)
    assert hosts[-1].app is None
    hosts = node.until(START_S + 40)
    assert (hosts[-1].app, hosts[-1].app_field, hosts[-1].app_params) == ("App", "tests", {"n": "3"})
    assert "secret" not in str(hosts)


def test_in_a_job_of_many_processes_each_look_goes_on_until_one_is_recognised(node: Node) -> None:
    for pid in range(10, 65):
        executable(node, pid, "worker")
    executable(node, 65, "app")
    node.job(4, *range(10, 66))
    node.book.begin(allocation(4))
    assert node.until(START_S + 1.7)[-1].app == "App"


def test_processes_on_a_gpu_are_looked_at_first(node: Node) -> None:
    for pid in range(10, 100):
        executable(node, pid, "worker")
    executable(node, 99_000, "app")
    node.job(4, *range(10, 100), 99_000)
    node.on_gpu = {4: [99_000]}
    node.book.begin(allocation(4))
    assert node.until(START_S + 2)[-1].app == "App"


def test_a_job_without_cgroup_or_environment_is_known_by_its_processes_on_gpus(node: Node) -> None:
    executable(node, 6, "app")
    node.proc.process(6, own=200)
    node.on_gpu = {4: [6]}
    node.book.begin(allocation(4))
    node.until(START_S + 2)
    host = node.finished(4)
    assert (host.cpu_s, host.app) == (200 / TICKS_PER_S, "App")


def test_a_job_of_twenty_thousand_processes_costs_no_more_than_a_large_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(node, 77, "app")
    node.job(4, 77, *range(100_000, 120_000))
    write(
        node.root / f"cgroup/cpuacct/slurm_n1/uid_{os.geteuid()}/job_4/cpuacct.usage",
        "5000000000\n",
    )
    opened: list[object] = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda path, *more: opened.append(path) or real_open(path, *more))
    node.book.begin(allocation(4))
    node.until(START_S + 2)
    assert 0 < len(opened) < 2000
    host = node.finished(4)
    assert (host.cpu_s, host.app) == (5.0, "App")
    assert (host.read_bytes, host.rss_max_mib) == (None, None)


def test_a_look_that_does_not_come_back_costs_that_job_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Hanging()
    book = HostBook(
        "n1", NO_RULES, mounts=Mounts(proc=tmp_path, cgroup=tmp_path, sys=tmp_path), worker=worker
    )
    book.begin(allocation(4))
    now_s = START_S
    while worker.started < 2 and now_s < START_S + 200:
        assert not book.step(now_s, dict)
        if "job 4" in caplog.text and book.next_step_s() is None:
            book.begin(replace(allocation(5), uid=1002))
        now_s += 1.0
    assert (worker.started, now_s >= START_S + STUCK_S) == (2, True)
    assert caplog.text.count("does not come back") == 1
    book.end(segment(4), now_s)
    book.end(segment(5), now_s)
    hosts = [host for at in (now_s, now_s + STUCK_S + 1) for host in book.step(at, dict)]
    assert sorted(host.job_id for host in hosts if host.final) == [4, 5]


class Late(Hanging):
    """A worker whose tasks come back when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Task] = []

    def start(self, task: Task) -> None:
        super().start(task)
        self.tasks.append(task)


def test_a_look_that_comes_back_late_leaves_to_others_what_others_look_at_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[int, float]] = []

    def look(watch: HostWatch, now_s: float, *_: object) -> None:
        looked.append((watch.key.job_id, now_s))
        watch.next_look_s = now_s + 10

    monkeypatch.setattr(HostWatch, "look", look)
    worker = Late()
    book = HostBook(
        "n1", NO_RULES, mounts=Mounts(proc=tmp_path, cgroup=tmp_path, sys=tmp_path), worker=worker
    )
    of_alice, of_bob = (replace(allocation(job), uid=uid) for job, uid in ((4, 1001), (5, 1002)))
    book.sync([of_alice, of_bob], START_S)
    book.step(START_S, dict)
    late_s = START_S + STUCK_S + 1
    book.step(late_s, dict)
    first, second = worker.tasks
    # While one look at a job of Alice's hangs, none is risked at another of hers.
    book.sync([of_alice, of_bob, replace(allocation(6), uid=1001)], late_s)
    second()
    worker.idle = True
    book.step(late_s + 1, dict)
    assert (looked, len(worker.tasks)) == ([(5, late_s)], 2)
    first()
    book.step(late_s + 2, dict)
    worker.tasks[2]()
    assert looked == [(5, late_s), (6, late_s + 2)]


class Failing(AtOnce):
    """A worker whose thread survives what a task raises, as WorkThread's does."""

    def start(self, task: Task) -> None:
        with contextlib.suppress(ValueError):
            task()


def test_a_look_that_fails_costs_that_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path, worker=Failing())
    look = HostWatch.look

    def failing(watch: HostWatch, now_s: float, reading: NodeReading, on_gpu: Sequence[int]) -> None:
        if watch.key.job_id == 4:
            raise ValueError
        look(watch, now_s, reading, on_gpu)

    monkeypatch.setattr(HostWatch, "look", failing)
    for job_id in (4, 5):
        node.proc.process(job_id)
        node.job(job_id, job_id)
        node.book.begin(allocation(job_id))
    node.until(START_S + 5)
    assert (node.finished(4).cpu_s, node.finished(5).cpu_s) == (None, 0.0)
    assert caplog.text.count("failed") == 1


def test_the_thread_runs_tasks_and_survives_their_errors(caplog: pytest.LogCaptureFixture) -> None:
    worker = WorkThread("test")
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
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go.wait(5)

    worker.start(hold)
    assert held.wait(5)
    assert not worker.idle
    worker.abandon()
    assert worker.idle
    again = threading.Event()
    worker.start(again.set)
    assert again.wait(5)
    go.set()
