"""slurm-gpud stores a host record of each segment, despite crashes and next to other jobs."""

from pathlib import Path

import pytest

from slurm_gpu.node.application.rules import NO_RULES
from slurm_gpu.node.host.host_records import HostRecorder, Mounts
from slurm_gpu.node.process.procfs import TICKS_PER_S
from slurm_gpu.wire import Host
from tests.node.fakeproc import FakeProc, write
from tests.node.fakes import FakeGpu
from tests.node.machine import ImmediateWorker, Machine


class WholeMachine(Machine):
    """A node with one fake process for each job; the process ID is the job ID plus 100."""

    def __init__(self, directory: Path, *gpus: FakeGpu) -> None:
        super().__init__(directory, *gpus)
        self.proc = FakeProc(directory / "proc")
        write(directory / "sys/class/net/eth0/type", "1\n")
        (directory / "sys/class/net/eth0/device").mkdir()
        self.received(0)

    def hosts(self) -> HostRecorder:
        root = self.directory
        mounts = Mounts(proc=root / "proc", cgroup=root / "cgroup", sys=root / "sys")
        return HostRecorder("n1", NO_RULES, mounts=mounts, worker=ImmediateWorker())

    def received(self, count: int) -> None:
        write(self.directory / "proc/net/dev", f"eth0: {count} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")

    def set_cpu_time(self, job_id: int, cpu_s: float, *, started: int = 100) -> None:
        pid = 100 + job_id
        self.proc.process(pid, own=round(cpu_s * TICKS_PER_S), started=started)
        write(self.directory / f"cgroup/freezer/slurm/uid_1001/job_{job_id}/cgroup.procs", f"{pid}\n")

    def host_records(self) -> list[Host]:
        assert self.spool is not None
        items = self.spool.queue.waiting(10_000, set(self.spool.queue.waiting_keys()))
        return [Host.from_wire(item.wire) for item in items if item.key.startswith("host/")]


@pytest.fixture
def node(tmp_path: Path, gpu: FakeGpu) -> WholeMachine:
    node = WholeMachine(tmp_path, gpu)
    node.start()
    return node


def test_a_host_record_is_stored_at_checkpoints_and_final_at_the_epilog(
    node: WholeMachine,
) -> None:
    node.hook("prolog", 7, "0")
    node.set_cpu_time(7, 3)
    node.run(15)
    (host,) = node.host_records()
    assert (host.final, host.cpu_s) == (False, 3.0)
    node.set_cpu_time(7, 20)
    node.received(500)
    node.run(15)
    node.hook("epilog", 7, "0")
    node.run(5)
    (host,) = node.host_records()
    assert (host.final, host.cpu_s, host.net_rx_bytes, host.job_id) == (True, 20.0, 500, 7)
    assert host.last_s - host.first_s in (30, 31)


def test_after_a_kill_the_segments_add_up(node: WholeMachine) -> None:
    node.hook("prolog", 7, "0")
    node.set_cpu_time(7, 5)
    node.run(60)
    node.kill()
    node.set_cpu_time(7, 8)  # not observed
    node.start()
    node.run(1)
    node.set_cpu_time(7, 12)
    node.run(60)
    node.hook("epilog", 7, "0")
    node.run(5)
    first, second = sorted(node.host_records(), key=lambda host: host.first_s)
    assert (first.final, first.cpu_s) == (True, 5.0)
    assert (second.final, second.cpu_s) == (True, 4.0)
    assert first.segment != second.segment


def test_a_job_that_ended_while_the_daemon_was_down_keeps_its_host_record(node: WholeMachine) -> None:
    node.hook("prolog", 7, "0")
    node.set_cpu_time(7, 5)
    node.run(60)
    node.kill()
    node.write_hook("epilog", 7, "0")
    node.start()
    node.run(5)
    (host,) = node.host_records()
    assert (host.final, host.cpu_s) == (True, 5.0)


def test_a_job_without_gpus_makes_the_traffic_unknown(node: WholeMachine) -> None:
    node.hook("prolog", 7, "0")
    node.set_cpu_time(7, 5)
    node.run(12)
    node.hook("prolog", 8)
    node.hook("epilog", 8)
    node.run(12)
    node.hook("epilog", 7, "0")
    node.run(5)
    (host,) = node.host_records()
    assert (host.cpu_s, host.net_rx_bytes) == (5.0, None)


def test_a_requeued_job_s_runs_have_a_record_each(node: WholeMachine) -> None:
    for restart, cpu_s in ((0, 5), (1, 9)):
        node.hook("prolog", 7, "0", restart=restart)
        node.set_cpu_time(7, cpu_s, started=int(node.clock.now_s * TICKS_PER_S))
        node.run(20)
        node.hook("epilog", 7, "0", restart=restart + 1)
        node.proc.end(107)
        node.run(5)
    records = sorted(node.host_records(), key=lambda host: host.restart)
    assert [(host.restart, host.final, host.cpu_s) for host in records] == [(0, True, 5.0), (1, True, 9.0)]
