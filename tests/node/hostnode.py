"""A node with fake /proc and cgroup trees and a recorder of host records."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.application.rules import NO_RULES, ApplicationRules
from slurm_gpu.node.host.host_records import HostRecorder, Mounts
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.worker_thread import WorkerThread
from slurm_gpu.wire import Host
from tests.node.fakeproc import FakeProc, write
from tests.node.machine import ImmediateWorker

START_S, WALL_S = 1000.0, 1_795_000_000.0


class HostNode:
    def __init__(
        self, root: Path, rules: ApplicationRules = NO_RULES, worker: WorkerThread | None = None
    ) -> None:
        self.root, self.proc = root, FakeProc(root / "proc")
        mounts = Mounts(proc=root / "proc", cgroup=root / "cgroup", sys=root / "sys")
        self.recorder = HostRecorder("n1", rules, mounts=mounts, worker=worker or ImmediateWorker())
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

    def set_cpu_time(self, job_id: int, cpu_s: float) -> None:
        """Write the CPU time to the job's cgroup."""
        group = self.root / f"cgroup/cpuacct/slurm_n1/uid_{os.geteuid()}/job_{job_id}"
        write(group / "cpuacct.usage", f"{round(cpu_s * 1e9)}\n")

    def end_job(self, job_id: int, pid: int) -> None:
        """Remove the job's process and cgroups."""
        self.proc.end(pid)
        for controller in ("cpuacct", "freezer"):
            group = self.root / f"cgroup/{controller}/slurm_n1/uid_{os.geteuid()}/job_{job_id}"
            group.rename(self.root / f"ended-{controller}-{job_id}")

    def until(self, at_s: float) -> list[Host]:
        hosts: list[Host] = []
        while (due := self.recorder.next_step_s()) is not None and due <= at_s:
            self.now_s = max(self.now_s, due)
            assert not self.recorder.step(self.now_s, lambda: self.on_gpu)
            hosts.extend(self.recorder.hosts(self.now_s))
        self.now_s = at_s
        return hosts

    def finished(self, job_id: int) -> Host:
        self.recorder.end(segment(job_id), self.now_s)
        (host,) = [host for host in self.recorder.step(self.now_s, dict) if host.final]
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
