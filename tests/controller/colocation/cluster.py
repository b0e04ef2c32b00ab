"""Simulate a Slurm that handles shards as measured (docs/colocation.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from slurm_gpu.controller.colocation.database_queries import DatabaseQueries
from slurm_gpu.controller.colocation.evidence import EndedCorun
from slurm_gpu.controller.colocation.idlest import idlest
from slurm_gpu.controller.colocation.pair_fit import PairFit
from slurm_gpu.controller.colocation.reconciler import ColocationReconciler
from slurm_gpu.controller.colocation.serving import Planners
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.controller.colocation.terminations import Terminations
from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.queue.amounts import CountingFacts
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.lua.installed import ColocationInForce, PolicyInForce
from slurm_gpu.slurm.client import QueuedJob, SlurmNode, SlurmSettings
from slurm_gpu.slurm.queue import CountedJob, JobPhase
from tests.controller.fakes import Clock, make_job, make_node

Answer = TypeVar("Answer")
OF = 8
ALLOCATED_STATES = ("RUNNING", "SUSPENDED")
POLICY = ColocationInForce("enforce", "throughput", None, 2, 0.75, 300)


@dataclasses.dataclass
class Job:
    """One job of the cluster and its real behaviour."""

    job_id: int
    key: str
    work_s: float
    shards: int | None
    begin_s: float
    state: str = "PENDING"
    node: str | None = None
    wanted_node: str | None = None
    position: int | None = None
    start_s: int | None = None
    end_s: int | None = None
    done_s: float = 0.0
    restarts: int = 0
    partition: str = "gpu"
    fails_with: str | None = None
    """The key of co-runners with which the job runs out of memory."""


class Cluster:
    """The client, control and evidence of the reconciler, in one class."""

    def __init__(self, clock: Clock, directory: str, n_nodes: int = 1, n_gpus: int = 2) -> None:
        self.clock, self.directory = clock, directory
        self.names = [f"n{number}" for number in range(1, n_nodes + 1)]
        self.n_gpus = n_gpus
        self.all: dict[int, Job] = {}
        self.speeds: dict[tuple[str, str], float] = {}
        self.memory: dict[str, float] = {}
        self.util: dict[str, float] = {}
        self.loads_s: dict[str, float] = {}
        """Seconds after its start during which a job does not use its GPU; afterwards, it uses `util`."""
        self.down = False
        self.is_accounted = True
        """Whether AccountingStorageTRES names GPUs and shards."""
        self.max_shards: dict[tuple[str, int], int] = {}

    # Methods that tests call.

    def submit(
        self, key: str, shards: int | None, work_s: float = 100, hold_s: float = 300, **more: str
    ) -> Job:
        job_id = 1 + len(self.all)
        begin_s = self.clock.wall() + (hold_s if shards is not None else 0)
        job = self.all[job_id] = Job(job_id, key, work_s, shards, begin_s, **more)
        return job

    def free(self, name: str) -> list[int]:
        left = [OF] * self.n_gpus
        for job in self.all.values():
            if job.state in ALLOCATED_STATES and job.node == name and job.position is not None:
                left[job.position] -= OF if job.shards is None else job.shards
        return left

    def co_runners(self, job: Job) -> list[Job]:
        return [
            other
            for other in self.all.values()
            if other is not job
            and other.state == "RUNNING"
            and (other.node, other.position) == (job.node, job.position)
        ]

    def second(self) -> None:
        """Simulate one second: jobs work and end, and Slurm starts jobs that fit, the oldest first."""
        for job in [one for one in self.all.values() if one.state == "RUNNING"]:
            others = self.co_runners(job)
            if job.fails_with in {other.key for other in others}:
                self._end(job, "FAILED")
                continue
            slow = sum(1 / self.speeds.get((job.key, other.key), 1.0) - 1 for other in others)
            job.done_s += 1 / (1 + slow)
            if job.done_s >= job.work_s:
                self._end(job, "COMPLETED")
        self.clock.advance(1)
        for job in self.all.values():
            if job.state == "PENDING" and job.begin_s <= self.clock.wall():
                self._try(job)

    def _end(self, job: Job, state: str) -> None:
        job.state, job.end_s = state, int(self.clock.wall())

    def _try(self, job: Job) -> None:
        wanted = OF if job.shards is None else job.shards
        for name in self.names:
            if job.wanted_node not in (None, name):
                continue
            for position, left in enumerate(self.free(name)):
                if left >= wanted:
                    job.state, job.node, job.position = "RUNNING", name, position
                    job.start_s, job.end_s, job.done_s = int(self.clock.wall()), None, 0.0
                    allocated = OF - self.free(name)[position]
                    assert allocated <= OF
                    return

    # Methods for slurm-gpuctld's watcher.

    def queue(self) -> list[CountedJob]:
        if self.down:
            raise SlurmError("down")
        phase = {"PENDING": JobPhase.PENDING} | dict.fromkeys(ALLOCATED_STATES, JobPhase.RUNNING)
        return [
            make_job(
                job.job_id,
                phase.get(job.state, JobPhase.ENDED),
                per_node="gres:gpu:1" if job.shards is None else f"gres:shard:{job.shards}",
                tres="cpu=1,mem=1G,node=1" + (self._gres(job) if self.is_accounted else ""),
                n_cpus=1,
                partition=job.partition,
                submit_s=job.job_id,
                start_s=int(job.begin_s) if job.state == "PENDING" else job.start_s,
                end_s=job.end_s,
                nodes=job.node or "",
                is_suspended=job.state == "SUSPENDED",
                admin_comment=f"slurm-gpu/1 t=x{job.job_id} c="
                + (f"-:{job.key}" if job.shards is None else f"{job.shards}/{OF}:{job.key}"),
            )
            for job in self.all.values()
        ]

    @staticmethod
    def _gres(job: Job) -> str:
        return ",gres/gpu=1" if job.shards is None else f",gres/shard={job.shards}"

    # Methods of SlurmClient.

    def settings(self) -> SlurmSettings:
        return SlurmSettings(
            cluster="lab",
            version="22.05.8",
            slurm_user="slurm",
            slurm_user_uid=1,
            conf_path="/x",
            raw={"StateSaveLocation": self.directory},
        )

    def nodes(self) -> Sequence[SlurmNode]:
        if self.down:
            raise SlurmError("down")
        return [make_node(name, gpus={"a100": self.n_gpus}, shards=OF * self.n_gpus) for name in self.names]

    def jobs(self, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        return [_queued(self.all[job_id]) for job_id in job_ids or ()]

    # Methods of SharedJobClient.

    def start(self, job_id: int, node: str, gres: str) -> None:
        job = self._pending(job_id)
        job.begin_s, job.wanted_node, job.shards = self.clock.wall(), node, int(gres.rpartition(":")[2])

    def unpin(self, job_id: int, gres: str) -> None:
        job = self._pending(job_id)
        job.wanted_node, job.shards = None, int(gres.rpartition(":")[2])

    def requeue(self, job_id: int) -> None:
        job = self.all[job_id]
        job.state, job.begin_s, job.restarts = "PENDING", self.clock.wall() + 11, job.restarts + 1

    def _pending(self, job_id: int) -> Job:
        if self.down:
            raise SlurmError("down")
        job = self.all[job_id]
        if job.state != "PENDING":
            raise SlurmError("Job is no longer pending execution")
        return job

    # Methods of DatabaseEvidence.

    def ran(self, job_id: int, start_s: int) -> EndedCorun | None:
        job = self.all[job_id]
        if job.end_s is None or job.start_s is None:
            return None
        allocated_s, util = job.end_s - job.start_s, self.util.get(job.key)
        used = util * min(1.0, job.done_s / allocated_s) if util is not None and allocated_s else None
        course: list[float] = []
        if used is not None and job.key in self.loads_s:
            loads_s = int(self.loads_s[job.key])
            course = [0.0] * loads_s + [util or 0.0] * (allocated_s - loads_s)
            used = sum(course) / allocated_s
        return EndedCorun(self.memory.get(job.key, 1.0), used, allocated_s, idlest(course, 1))

    def utilisation(self, job_id: int, since_s: float) -> tuple[float, float] | None:
        job = self.all[job_id]
        if job.key not in self.util or job.state not in ALLOCATED_STATES:
            return None
        if job.state == "SUSPENDED":
            return 0.0, self.clock.wall() - since_s
        slow = sum(1 / self.speeds.get((job.key, other.key), 1.0) - 1 for other in self.co_runners(job))
        now_s, busy_s = self.clock.wall(), (job.start_s or 0) + self.loads_s.get(job.key, 0.0)
        busy = (now_s - max(since_s, min(busy_s, now_s))) / (now_s - since_s) if now_s > since_s else 1.0
        return self.util[job.key] / (1 + slow) * busy, now_s - since_s


def view_of(
    jobs: Sequence[CountedJob], policy: ColocationInForce | None, *, in_charge: bool = True
) -> QueueView:
    """Return the jobs as slurm-gpuctld reads them."""
    return QueueView(
        answered=True,
        in_charge=in_charge,
        jobs=jobs,
        policy=PolicyInForce(colocation=policy),
        facts=CountingFacts(shards_per_gpu=OF),
    )


def _queued(job: Job) -> QueuedJob:
    name = "gpu" if job.shards is None else "shard"
    running = job.state in ALLOCATED_STATES
    index = {job.node: {name: [job.position]}} if running and job.node and job.position is not None else {}
    return QueuedJob(
        job_id=job.job_id,
        array_job_id=None,
        array_task=None,
        n_tasks=1,
        het_job_id=None,
        name="train",
        user="alice",
        uid=1001,
        account="vision",
        qos="normal",
        partition="gpu",
        state=job.state,
        reason="None",
        restarts=job.restarts,
        submit_s=job.job_id,
        eligible_s=None,
        start_s=job.start_s,
        end_s=job.end_s,
        time_limit_s=None,
        n_nodes=1,
        nodes=[job.node] if running and job.node else [],
        tres_requested={},
        tres_allocated={f"gres/{name}": float(job.shards or 1)} if running else {},
        gpu_index=index,
        gres_per_node="",
        features="",
        admin_comment="",
    )


class Site:
    """A slurm-gpuctld for the cluster that tests can kill and restart."""

    def __init__(self, cluster: Cluster, policy: ColocationInForce = POLICY) -> None:
        self.cluster, self.policy = cluster, policy
        self.audited: list[tuple[str, str, str]] = []
        """Audit events as (act, subject, why)."""
        self.evidence: list[object] = []
        self.runs = True
        self.begin()

    def begin(self) -> None:
        """Start a new process with only the data on disk."""
        cluster, directory = self.cluster, Path(self.cluster.directory)
        terminations = Terminations(cluster, self, directory, cluster.clock.wall)  # type: ignore[arg-type]
        self.controller = ColocationReconciler(
            cluster,
            cluster,
            DatabaseQueries(cluster, _at_once),
            PairFit(_at_once, cluster.clock),
            Planners(),
            terminations,
            directory,
            cluster.clock,
            lambda: 0.0,
        )  # type: ignore[arg-type]

    @property
    def store(self) -> ColocationStore:
        assert self.controller._store is not None
        return self.controller._store

    def expect(self, alone_s: float) -> None:
        """Set the run time without co-runners for all known keys, so that jobs are long enough for trials."""
        for key, one in self.store.profiles.items():
            self.store.profiles[key] = dataclasses.replace(one, alone_s=alone_s)
        self.store.is_changed = True

    def add(self, act: str, subject: str, why: str, old: str, new: str, evidence: object = None) -> None:
        """Record an event as AuditReporter does."""
        self.audited.append((act, subject, why))
        self.evidence.append(evidence)

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.cluster.second()
            if self.runs and not self.cluster.down:
                self.controller.run(view_of(self.cluster.queue(), self.policy))

    def until_all_end(self, most_s: int = 5000) -> float:
        """Return the seconds until all jobs have ended."""
        began = self.cluster.clock.wall()
        for _ in range(most_s):
            if all(job.state not in ("PENDING", "RUNNING") for job in self.cluster.all.values()):
                return self.cluster.clock.wall() - began
            self.pass_s(1)
        raise AssertionError(
            f"still there: {[job for job in self.cluster.all.values() if job.end_s is None]}"
        )


def _at_once(task: Callable[[], Answer]) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_result(task())
    return future
