"""A cluster with configured answers, and a clock that tests advance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from slurm_gpu.controller.queue.resource_hours import CountedRun
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import (
    AccountingRun,
    QueuedJob,
    SlurmctldHost,
    SlurmNode,
    SlurmSettings,
    WaitingJob,
)
from slurm_gpu.slurm.queue import CountedJob, JobPhase
from slurm_gpu.slurm.submission import Partition

# 2026-11-21 12:00 UTC, a Saturday.
NOON_S = 1795262400


class Clock:
    def __init__(self, wall_s: float = NOON_S) -> None:
        self.wall_s, self.uptime_s = wall_s, 100.0

    def wall(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.uptime_s

    def boot_id(self) -> str:
        return "boot"

    def advance(self, seconds: float) -> None:
        self.wall_s += seconds
        self.uptime_s += seconds


def make_job(job_id: int = 1, phase: JobPhase = JobPhase.RUNNING, **changes: Any) -> CountedJob:
    """Build a job of alice on two GPUs and 8 CPUs of n1."""
    job = CountedJob(
        job_id=job_id,
        user="alice",
        uid=1001,
        account="vision",
        qos="normal",
        partition="gpu",
        phase=phase,
        n_tasks=1,
        n_nodes=1,
        n_cpus=8,
        per_job="",
        per_node="gres:gpu:2",
        per_socket="",
        tres="cpu=8,mem=64G,node=1,billing=8,gres/gpu=2",
        exclusive=False,
        submit_s=NOON_S - 7200,
        start_s=NOON_S - 3600,
        end_s=NOON_S + 3600,
        nodes="n1",
        admin_comment="",
    )
    return dataclasses.replace(job, **changes)


def make_node(name: str, **changes: Any) -> SlurmNode:
    node = SlurmNode(
        name=name,
        address=name,
        state="idle",
        reason=None,
        cpus=32,
        cpus_allocated=0,
        memory_mib=100_000,
        memory_allocated_mib=0,
        gpus={"a100": 4},
        gpus_allocated={"a100": 0},
        shards=16,
        shards_allocated=0,
        features=[],
        partitions=["gpu"],
    )
    return dataclasses.replace(node, **changes)


def make_row(job_id: int, start_s: int, end_s: int | None, gpus: int = 2, **changes: Any) -> AccountingRun:
    row = AccountingRun(
        cluster="lab",
        job_id=job_id,
        array_job_id=None,
        array_task=None,
        het_job_id=None,
        het_offset=None,
        sluid=None,
        name="train",
        user="alice",
        uid=1001,
        account="vision",
        qos="normal",
        partition="gpu",
        state="COMPLETED",
        exit_code="0:0",
        restart=0,
        submit_s=start_s - 60,
        eligible_s=start_s - 60,
        start_s=start_s,
        end_s=end_s,
        elapsed_s=0 if end_s is None else end_s - start_s,
        suspended_s=0,
        time_limit_s=None,
        n_nodes=1,
        nodes="n1",
        tres_requested={},
        tres_allocated={"gres/gpu": gpus},
        admin_comment="",
    )
    return row._replace(**changes)


class Slurm:
    """Answers both frequent and rare polls."""

    def __init__(self, clock: Clock, conf_path: str) -> None:
        self.clock, self.conf_path = clock, conf_path
        self.queue: list[CountedJob] = []
        self.node_list = [make_node("n1"), make_node("n2")]
        self.rows: list[AccountingRun] = []
        self.answers_after_s = 0.01
        self.down = False
        self.storage = "accounting_storage/slurmdbd"
        self.state_directory = str(Path(conf_path).parent)
        self.hosts = [SlurmctldHost("head", is_up=True)]
        self.set_calls: list[tuple[int, list[str]]] = []
        """Weight and nodes of each call that set a Weight."""
        self.asked: list[str] = []
        self.waiting_jobs: dict[int, WaitingJob] | None = {}
        self.more_settings: dict[str, str] = {}

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        self.clock.advance(self.answers_after_s)
        if self.down:
            raise SlurmError("Unable to contact slurm controller (connect failure)")

    def read(self) -> Sequence[CountedJob]:
        self._ask("queue")
        return list(self.queue)

    def settings(self) -> SlurmSettings:
        self._ask("settings")
        return SlurmSettings(
            cluster="lab",
            version="22.05.8",
            slurm_user="slurm",
            slurm_user_uid=64030,
            conf_path=self.conf_path,
            raw={
                "AccountingStorageType": self.storage,
                "StateSaveLocation": self.state_directory,
                **self.more_settings,
                **{f"SlurmctldHost[{n}]": host.name for n, host in enumerate(self.hosts)},
            },
        )

    def ping(self) -> None:
        self._ask("ping")

    def waiting(self) -> Sequence[WaitingJob] | None:
        self._ask("waiting")
        return None if self.waiting_jobs is None else list(self.waiting_jobs.values())

    def set_site_factor(self, job_ids: Iterable[int], points: int) -> None:
        ids = sorted(job_ids)
        self._ask(f"SiteFactor={points} of {ids}")
        assert self.waiting_jobs is not None
        for job_id in ids:
            if job_id in self.waiting_jobs:
                self.waiting_jobs[job_id] = self.waiting_jobs[job_id]._replace(site_factor=points)
        if gone := [job_id for job_id in ids if job_id not in self.waiting_jobs]:
            raise SlurmError(f"Invalid job id specified for job {gone[0]}")

    def controllers(self) -> Sequence[SlurmctldHost]:
        self._ask("controllers")
        return self.hosts

    def set_weight(self, nodes: Iterable[str], weight: int) -> None:
        names = sorted(nodes)
        self._ask(f"Weight={weight}")
        self.set_calls.append((weight, names))
        self.node_list = [
            dataclasses.replace(node, weight=weight) if node.name in names else node
            for node in self.node_list
        ]

    def forget_weights(self, weights: Mapping[str, int] | None = None) -> None:
        """Reset weights to those of slurm.conf, 1 by default, as a reconfiguration does."""
        self.node_list = [
            dataclasses.replace(node, weight=(weights or {}).get(node.name, 1)) for node in self.node_list
        ]

    def nodes(self) -> Sequence[SlurmNode]:
        self._ask("nodes")
        return self.node_list

    def partitions(self) -> Sequence[Partition]:
        self._ask("partitions")
        return [
            Partition(
                name=name, is_default=name == "gpu", default_time_s=None, max_time_s=None, whole_nodes=whole
            )
            for name, whole in (("gpu", False), ("whole", True))
        ]

    def jobs(self, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        raise AssertionError("the watcher must not make this query")

    def accounting(
        self, since_s: int, until_s: int | None = None, job_ids: Iterable[int] | None = None
    ) -> Iterator[AccountingRun]:
        self.asked.append(f"accounting from {since_s} to {until_s}")
        if self.down:
            raise SlurmError("slurmdbd: Connection refused")
        return iter(self.rows)


def at_once(task: Callable[[], list[CountedRun]]) -> Future[list[CountedRun]]:
    """Run a background task before returning."""
    future: Future[list[CountedRun]] = Future()
    try:
        future.set_result(task())
    except SlurmError as error:
        future.set_exception(error)
    return future
