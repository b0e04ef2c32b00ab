"""A node for tests, which run its hooks, advance its clock, and kill and restart its slurm-gpud."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slurm_gpu.node.allocation.gres import GresOrder
from slurm_gpu.node.allocation.hooks import HookDirectory
from slurm_gpu.node.daemon import NodeDaemon
from slurm_gpu.node.host.host_records import HostRecorder
from slurm_gpu.node.process.job_cgroups import JobCgroups
from slurm_gpu.node.process.process_jobs import ProcessJobs
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.node.worker_thread import Task, WorkerThread
from slurm_gpu.wire import Record, histogram_mean
from tests.node.fakes import FakeClock, FakeGpu, FakeProcesses, FakeReader


class ImmediateWorker(WorkerThread):
    """A worker that runs each task immediately."""

    def __init__(self) -> None:
        super().__init__("immediate")

    def start(self, task: Task) -> None:
        task()

    def abandon(self) -> None:
        raise AssertionError


class DeferredWorker(WorkerThread):
    """A worker whose tasks run only when a test calls `run`; it is always idle."""

    def __init__(self) -> None:
        super().__init__("deferred")
        self.tasks: list[Task] = []

    def start(self, task: Task) -> None:
        self.tasks.append(task)

    def abandon(self) -> None:
        raise AssertionError

    def run(self) -> None:
        """Run all started tasks."""
        while self.tasks:
            self.tasks.pop(0)()


def fake_slurmd(gpus: Sequence[FakeGpu]) -> Callable[[Sequence[str]], str]:
    """Return a fake `slurmd -G` for a gres.conf that lists these GPUs in this order."""
    lines = [
        f"slurmd: Gres Name=gpu Type=a100 Count=1 File=/nowhere/nvidia{gpu.minor} (null)" for gpu in gpus
    ]
    return lambda _: "\n".join(lines)


class Machine:
    """One node, with hooks, a clock and a slurm-gpud that a test controls.

    `follows` is whether its reader takes samples unasked (Follower).
    """

    def __init__(self, directory: Path, *gpus: FakeGpu, clock: FakeClock | None = None) -> None:
        self.directory = directory
        self.clock = gpus[0].clock if clock is None else clock
        self.gpus = gpus
        self.reader = FakeReader(list(gpus))
        self.follows = True
        self.node: NodeDaemon | None = None
        self.spool: Spool | None = None
        self.due_s = 0.0
        self.interval_s = 1.0
        self.slurmd_worker: WorkerThread = ImmediateWorker()

    def slurmd(self, command: Sequence[str]) -> str:
        """Return the output of `slurmd -G`."""
        return fake_slurmd(self.gpus)(command)

    def start(self) -> None:
        """Start slurm-gpud."""
        self.spool = Spool(self.directory / "spool", mark=self.directory / "node" / "spool")
        self.node = NodeDaemon(
            name="n1",
            cluster="lab",
            clock=self.clock,
            hooks=HookDirectory(self.directory, "n1", self.clock),
            reader=self.reader,
            order=GresOrder(
                "n1",
                self.clock,
                run=self.slurmd,
                environ={"SLURM_CONF": "/nowhere/slurm.conf"},
                mig_minors=self.directory / "mig-minors",
                worker=self.slurmd_worker,
                file_worker=ImmediateWorker(),
                wait_s=0.0,
            ),
            spool=self.spool,
            processes=self.processes(),
            cgroups=JobCgroups("n1", self.directory / "cgroup"),
            interval_s=self.interval_s,
            hosts=self.hosts(),
            follower=self.reader if self.follows else None,
        )
        self.node.start()
        self.node.step()
        self.due_s = self.node.due_s()

    def hosts(self) -> HostRecorder | None:
        """Return the recorder of host records; None unless a test overrides it."""
        return None

    def processes(self) -> ProcessJobs:
        """Return the process lookup of a new slurm-gpud, without cached processes."""
        return FakeProcesses(self.gpus)

    def kill(self) -> None:
        """Stop slurm-gpud like kill -9, without writing anything."""
        assert self.spool is not None
        self.spool.close()
        self.node = self.spool = None

    def hook(
        self,
        kind: str,
        job_id: int,
        gpus: str = "",
        *,
        restart: int = 0,
        uid: int = 1001,
        seen_after_s: float = 0.002,
    ) -> None:
        """Run a hook; slurm-gpud reads the hook's file after `seen_after_s`."""
        self.write_hook(kind, job_id, gpus, restart=restart, uid=uid)
        self.clock.advance(seen_after_s)
        if self.node is not None:
            self.node.step()
            self.due_s = self.node.due_s()

    def write_hook(
        self, kind: str, job_id: int, gpus: str = "", *, restart: int = 0, uid: int = 1001
    ) -> Path:
        at_ns = round(self.clock.wall() * 1e9)
        lines = {
            "EVENT": kind,
            "AT_NS": at_ns,
            "UPTIME_S": f"{math.floor(self.clock.now_s * 100) / 100:.2f}",
            "BOOT_ID": self.clock.boot_id(),
            "SLURM_JOB_ID": job_id,
            "SLURM_JOB_UID": uid,
            "SLURMD_NODENAME": "n1",
            "SLURM_CLUSTER_NAME": "lab",
        }
        if gpus:
            lines["SLURM_JOB_GPUS"] = gpus
        if restart:
            lines["SLURM_JOB_RESTART_COUNT"] = restart
        path = self.directory / "jobs" / f"{at_ns}-{job_id}-{kind}"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path

    def run_until(self, at_s: float) -> None:
        """Advance the clock, waking slurm-gpud whenever it is due."""
        while self.node is not None and self.due_s <= at_s:
            self.clock.now_s = max(self.clock.now_s, self.due_s)
            self.node.step()
            self.due_s = self.node.due_s()
        self.clock.now_s = max(self.clock.now_s, at_s)

    def run(self, seconds: float) -> None:
        self.run_until(self.clock.now_s + seconds)

    def records(self, *, final: bool | None = True) -> list[Record]:
        """Return the waiting records of the spool by job and device."""
        assert self.spool is not None
        items = self.spool.queue.waiting(10_000, set(self.spool.queue.waiting_keys()))
        records = [Record.from_wire(item.wire) for item in items if item.kind == "records"]
        chosen = [record for record in records if final is None or record.final is final]
        return sorted(chosen, key=lambda record: (record.job_id, record.first_s, record.device))

    def events(self) -> list[str]:
        assert self.spool is not None
        return [item.wire["kind"] for item in self.spool.queue.waiting(10_000) if item.kind == "events"]

    def event_data(self) -> list[dict[str, Any]]:
        """Return the data of the waiting events, in their order."""
        assert self.spool is not None
        return [dict(item.wire["data"]) for item in self.spool.queue.waiting(10_000) if item.kind == "events"]

    def hook_files(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "jobs").iterdir())


def core(record: Record) -> float | None:
    """Return uGPUcore of one record."""
    return None if record.util_hist_ms is None else histogram_mean(record.util_hist_ms)


def mem(record: Record) -> float | None:
    """Return uGPUmem of one record."""
    return None if record.mem_used_frac is None else 100 * record.mem_used_frac.mean
