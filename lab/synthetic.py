"""Synthetic clusters of any size, with slurm-gpudbd's responses over time.

Tests of the web page and bench/monitor.py use these clusters. The same size, seed and time give the same
responses.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from lab.synthetic_runs import ARRAY, array_runs, ended_run, with_use
from lab.synthetic_usage import usage_of
from slurm_gpu.errors import UsageError
from slurm_gpu.text.hostlist import compress
from slurm_gpu.wire import DeviceFacts, Live, LiveDevice, Mean, Record, Timeline
from slurm_gpu.wire.answers.cluster import ClusterAllocation, ClusterJob, ClusterNode, ClusterState
from slurm_gpu.wire.answers.forecast import Forecast
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.answers.quota import Quota
from slurm_gpu.wire.answers.reservation import Reservation
from slurm_gpu.wire.answers.running import Running, RunningUse
from slurm_gpu.wire.answers.runs import (
    DeviceTimeline,
    NodeReport,
    NodeWindow,
    Run,
    RunPage,
    RunTimeline,
)
from slurm_gpu.wire.answers.usage import ClusterUsage
from slurm_gpu.wire.answers.verdicts import Verdicts

GPUS_PER_NODE = 8
NODES_PER_RACK = 16
NODES_PER_ZONE = 256
_CARDS = {
    "h200": ("NVIDIA H200", 143_771.0, 700.0, 1980.0),
    "a100": ("NVIDIA A100-SXM4-80GB", 81_920.0, 400.0, 1410.0),
}
_USERS = tuple(f"user{number}" for number in range(1, 61))
_ACCOUNTS = ("vision", "language", "speech", "robots")
# Numbers of GPUs of a job; a number listed more often is more frequent.
_SIZES = (1, 1, 1, 2, 4, 8, 8, 16, 32, 64)
_SORT_FIELDS = {
    "submit": "submit_s",
    "start": "start_s",
    "end": "end_s",
    "nGPU": "n_gpus",
    "WAIT_h": "wait_h",
    "RUN_h": "run_h",
    "uGPUcore": "ugpucore",
    "energy_j": "energy_j",
}
# The fraction of GPUs that are allocated.
_BUSY = 0.9
# The fraction of running jobs that end in one step, and are replaced.
_CHURN = 0.002


@dataclass(slots=True)
class _Job:
    job: ClusterJob
    # The job's GPUs, by node.
    places: dict[int, list[int]]
    # The mean utilisation of these GPUs in %.
    level: float
    spread: float


class SyntheticCluster:
    """A cluster of about `n_gpus` GPUs; `step` advances its time.

    The class replaces slurm_gpu.client.database_client.DatabaseClient and has the same methods.
    """

    def __init__(
        self, n_gpus: int, seed: int = 1, now_s: float = 1_800_000_000.0, churn: float = _CHURN
    ) -> None:
        self.now_s = now_s
        self._churn = churn
        self._random = random.Random(seed)
        self._n_nodes = max(1, n_gpus // GPUS_PER_NODE)
        self._free = {node: list(range(GPUS_PER_NODE)) for node in range(self._n_nodes)}
        self._down = {node for node in range(self._n_nodes) if self._random.random() < 0.01}
        self._silent = {node for node in range(self._n_nodes) if self._random.random() < 0.005}
        self._jobs: dict[int, _Job] = {}
        self._waiting: dict[int, ClusterJob] = {}
        self._next_id = 1001
        while self._held() < _BUSY * self._n_nodes * GPUS_PER_NODE:
            if not self._start(self._random.choice(_SIZES)):
                break
        for _ in range(min(2000, self._n_nodes)):
            self._wait()

    @property
    def racks(self) -> dict[str, str]:
        """Return the rack of each node, as in slurm-gpu.yaml."""
        return {self._name(node): f"r{node // NODES_PER_RACK + 1}" for node in range(self._n_nodes)}

    def step(self, seconds: float = 5.0) -> None:
        """End some jobs, start others, and change the load of all GPUs."""
        self.now_s += seconds
        for job_id in list(self._jobs):
            if self._random.random() < self._churn:
                self._end(job_id)
                self._start(self._random.choice(_SIZES))

    def cluster(self) -> ClusterState:
        """Return all nodes, the jobs on them and pending jobs."""
        holders: dict[int, list[ClusterAllocation]] = {}
        for job_id, item in self._jobs.items():
            for node, gpus in item.places.items():
                holders.setdefault(node, []).append(
                    ClusterAllocation(job_id=job_id, gpus=tuple(gpus), shared_gpus=())
                )
        nodes = tuple(self._node(node, holders.get(node, [])) for node in range(self._n_nodes))
        jobs = (*(item.job for item in self._jobs.values()), *self._waiting.values())
        return ClusterState(as_of_s=self.now_s, nodes=nodes, jobs=jobs)

    def live(self, refresh: str = "all") -> Mapping[str, Live]:
        """Return the live values of each device."""
        holder = {
            (node, gpu): item
            for item in self._jobs.values()
            for node, gpus in item.places.items()
            for gpu in gpus
        }
        return {
            self._name(node): Live(
                at_s=self.now_s,
                devices={
                    _uuid(node, gpu): self._device(node, holder.get((node, gpu)))
                    for gpu in range(GPUS_PER_NODE)
                },
                host={"cpu_pct": 40.0},
            )
            for node in range(self._n_nodes)
            if node not in self._silent
        }

    def nodes(self) -> Sequence[NodeReport]:
        """Return the devices of all nodes with slurm-gpud."""
        return tuple(
            NodeReport(
                node=self._name(node),
                last_seen_s=self.now_s,
                version="0.2.0",
                devices=tuple(self._facts(node, gpu) for gpu in range(GPUS_PER_NODE)),
            )
            for node in range(self._n_nodes)
            if node not in self._silent
        )

    def reservations(self, past: int = 0, ids: Sequence[int] = ()) -> Sequence[Reservation]:
        """Return no reservations."""
        return ()

    def running(self) -> Running:
        """Return the use of the GPUs of running jobs."""
        jobs = tuple(
            RunningUse(
                job_id=job_id,
                start_s=item.job.start_s or 0,
                coverage=1.0,
                used=item.level > 0,
                util_p25=round(max(0.0, item.level - item.spread)),
                util_p95=round(min(100.0, item.level + item.spread)),
                mem_p25=40.0,
                mem_p95=60.0,
            )
            for job_id, item in self._jobs.items()
        )
        return Running(as_of_s=self.now_s, jobs=jobs, xids=())

    def usage(self, days: int) -> ClusterUsage:
        """Return the usage over the last days."""
        return usage_of(self._n_nodes * GPUS_PER_NODE, days, self.now_s)

    def verdicts(self) -> Verdicts:
        """Return no verdicts, as if no training runs were watched."""
        return Verdicts(as_of_s=None, watched=0, verdicts=(), suspects=())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, since no resource is open."""

    def run(self, job: str) -> Sequence[Run]:
        """Return a running, pending or ended job with a record of each of its GPUs, or a job array."""
        found = self._of(job)
        if found is None:
            return self._past(job)
        records = [
            self._record(found, node, gpu) for node, gpus in self._places(found).items() for gpu in gpus
        ]
        return (with_use(run_of(found, self.now_s, records)),)

    def _past(self, job: str) -> Sequence[Run]:
        ended = self._ended()
        if job.startswith(str(ARRAY)):
            runs = array_runs(ended[0], self.now_s)
            return runs if job == str(ARRAY) else [run for run in runs if run.id == job]
        return [ended_run(run) for run in ended if run.id == job]

    def runs(
        self,
        *,
        user: str | None = None,
        accounts: Sequence[str] = (),
        app: str | None = None,
        ended: bool = False,
        since_s: int | None = None,
        sort: str | None = None,
        ascending: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Return a page of ended runs; running ones are not included."""
        found = [
            run
            for run in self._ended()
            if (user is None or run.user == user)
            and (not accounts or run.account in accounts)
            and (app is None or run.app == app)
            and (run.end_s or 0) >= (since_s or 0)
        ]
        key = _SORT_FIELDS[sort or "submit"]
        known = [run for run in found if getattr(run, key) is not None]
        found = [run for run in found if getattr(run, key) is None]
        found = sorted(known, key=lambda run: getattr(run, key), reverse=not ascending) + found
        if not re.fullmatch("[0-9]{0,6}", cursor or "", re.ASCII):
            raise UsageError(f"cursor: {cursor!r} is not the cursor of an earlier answer")
        first = int(cursor or 0)
        more = str(first + limit) if len(found) > first + limit else None
        return RunPage(runs=found[first : first + limit], cursor=more)

    def _ended(self) -> Sequence[Run]:
        """Return the runs that ended in the last days, three for each node."""
        dice = random.Random(7)
        runs = []
        for number in range(1, 3 * self._n_nodes + 1):
            user, app = dice.choice(_USERS), dice.choice(("pytorch", "vasp", "jupyter", None))
            ran_s, n_gpus = dice.randrange(60, 90_000), float(dice.choice(_SIZES))
            end_s = int(self.now_s) - dice.randrange(14 * 86_400)
            start_s = end_s - ran_s
            job = _job_of(dice, number, user, "RUNNING", int(n_gpus), 1, start_s, start_s)
            runs.append(
                msgspec.structs.replace(
                    run_of(job, end_s, ()),
                    state=dice.choice(("COMPLETED", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")),
                    end_s=end_s,
                    wait_h=dice.randrange(7200) / 3600,
                    app=app,
                    ugpucore=round(dice.random() * 100, 1) if number % 9 else None,
                    ugpumem=42.0,
                    energy_j=ran_s * 200 * n_gpus,
                    devices=None,
                )
            )
        return runs

    def timelines(self, job: str) -> Sequence[RunTimeline]:
        """Return the timeline of a job; one hour in four is idle."""
        found = self._of(job)
        if found is None or found.start_s is None or found.submit_s is None:
            return ()
        devices = [
            DeviceTimeline(node=self._name(node), device=_uuid(node, gpu), timeline=self._course(found))
            for node, gpus in self._places(found).items()
            for gpu in gpus
        ]
        return (RunTimeline(id=found.id, job_id=found.job_id, submit_s=found.submit_s, devices=devices),)

    def windows(self, job: str) -> Sequence[NodeWindow]:
        """Return no windows."""
        return ()

    def hosts(self, job: str) -> Sequence[NodeMinutes]:
        """Return no host values."""
        return ()

    def quota(self, user: str) -> Quota:
        """Return a quota with two limits: on a user's running GPUs, and on the time limit of each job."""
        jobs = (item.job for item in self._jobs.values())
        used = sum(job.n_gpus for job in jobs if job.user == user and job.n_gpus is not None)
        common = {"rule": "share", "group": "everybody", "per": "user", "mode": "enforce", "until_s": None}
        common["why"] = "Others wait."
        total = {"on": "GPUs running", "key": "gpus_running", "unit": "GPUs", "limit": 64.0, "used": used}
        each = {"on": "each job's time limit", "key": "walltime", "unit": "s", "limit": 172_800}
        limits = [
            common | total | {"left": max(0.0, 64.0 - used)},
            common | each | {"per": "job", "used": None, "left": None},
        ]
        return Quota(user=user, as_of_s=self.now_s, limits=limits, why=None)

    def forecast(self, job: str) -> Forecast | str:
        """Return the same message for every job."""
        return "nothing has been learned yet: an operator runs slurm-gpu forecast train"

    def _of(self, job: str) -> ClusterJob | None:
        job_id = int(job) if job.isdecimal() else -1
        running = self._jobs.get(job_id)
        return running.job if running is not None else self._waiting.get(job_id)

    def _places(self, job: ClusterJob) -> dict[int, list[int]]:
        return self._jobs[job.job_id].places if job.job_id in self._jobs else {}

    def _record(self, job: ClusterJob, node: int, gpu: int) -> Record:
        item = self._jobs[job.job_id]
        first_s, last_s = job.start_s or 0, int(self.now_s)
        held_ms = (last_s - first_s) * 1000
        busy_ms = held_ms * 3 // 4
        return Record(
            cluster="synthetic",
            job_id=job.job_id,
            restart=0,
            prolog_s=first_s,
            node=self._name(node),
            boot_id="boot",
            segment=f"{job.job_id:016x}",
            device=_uuid(node, gpu),
            seq=1,
            final=False,
            first_s=first_s,
            last_s=last_s,
            allocated_s=held_ms / 1000,
            sampled_s=held_ms / 1000,
            util_hist_ms={0: held_ms - busy_ms, round(item.level): busy_ms} if item.level else {0: held_ms},
            mem_hist_ms={55: held_ms},
            power_w=Mean(held_ms / 1000, 300.0, 80.0, 400.0),
            mem_used_mib=Mean(held_ms / 1000, 70_000.0, 0.0, 79_000.0),
        )

    def _course(self, job: ClusterJob) -> Timeline:
        width_s = 512
        first = (job.start_s or 0) // width_s
        n_bins = max(1, min(256, int(self.now_s) // width_s - first))
        level = self._jobs[job.job_id].level
        util = bytes(0 if (at // 8) % 4 == 0 else round(level * 2.5) for at in range(n_bins))
        power = bytes(40 + (at * 7) % 30 + octet // 2 for at, octet in enumerate(util))
        return Timeline(
            width_s=width_s,
            start_s=first * width_s,
            series={"util": util, "mem_used": bytes([138]) * n_bins, "power": power},
        )

    def _held(self) -> int:
        return sum(len(gpus) for item in self._jobs.values() for gpus in item.places.values())

    def _start(self, n_gpus: int) -> bool:
        places: dict[int, list[int]] = {}
        wanted = n_gpus
        order = self._random.sample(range(self._n_nodes), self._n_nodes)
        for node in order:
            free = self._free[node]
            if node in self._down or not free or (wanted >= GPUS_PER_NODE and len(free) < GPUS_PER_NODE):
                continue
            if wanted < GPUS_PER_NODE and len(free) < wanted:
                continue
            taken = free[: min(wanted, len(free))]
            places[node] = taken
            wanted -= len(taken)
            if wanted == 0:
                break
        if wanted:
            return False
        for node, taken in places.items():
            self._free[node] = [gpu for gpu in self._free[node] if gpu not in taken]
        level = self._random.choice((0.0, 35.0, 70.0, 95.0, 100.0, 100.0))
        job = self._job(
            "RUNNING", n_gpus, len(places), start_s=int(self.now_s - self._random.random() * 90_000)
        )
        spread = self._random.choice((0.0, 2.0, 10.0)) if level else 0.0
        self._jobs[job.job_id] = _Job(job, places, level, spread)
        return True

    def _end(self, job_id: int) -> None:
        for node, gpus in self._jobs.pop(job_id).places.items():
            self._free[node] = sorted(self._free[node] + gpus)

    def _wait(self) -> None:
        n_gpus = self._random.choice(_SIZES)
        job = self._job("PENDING", n_gpus, max(1, n_gpus // GPUS_PER_NODE), start_s=None)
        self._waiting[job.job_id] = replace(job, reason=self._random.choice(("Resources", "Priority")))

    def _job(self, state: str, n_gpus: int, n_nodes: int, start_s: int | None) -> ClusterJob:
        job_id = self._next_id
        self._next_id += 1
        submitted_s = int(self.now_s if start_s is None else start_s)
        user = self._random.choice(_USERS)
        return _job_of(self._random, job_id, user, state, n_gpus, n_nodes, start_s, submitted_s)

    def _node(self, node: int, holders: Sequence[ClusterAllocation]) -> ClusterNode:
        n_allocated = sum(len(holder.gpus) for holder in holders)
        down = node in self._down
        return ClusterNode(
            node=self._name(node),
            state="drain" if down else "mixed" if n_allocated else "idle",
            reason="broken fan" if down else None,
            in_service=not down,
            partitions=("gpu",),
            zone=f"zone{node // NODES_PER_ZONE + 1}",
            server_type=self._type(node),
            gpus={self._type(node): GPUS_PER_NODE},
            gpus_free=0 if down else GPUS_PER_NODE - n_allocated,
            cpus=128,
            cpus_allocated=16 * n_allocated,
            memory_mib=2_000_000,
            memory_allocated_mib=250_000 * n_allocated,
            holders=tuple(holders),
        )

    def _device(self, node: int, item: _Job | None) -> LiveDevice:
        _, memory_mib, power_w, clock_mhz = _CARDS[self._type(node)]
        if item is None:
            return LiveDevice(
                util_pct=0.0,
                mem_used_mib=4.0,
                mem_used_frac=0.0,
                power_w=0.1 * power_w,
                temp_c=31.0,
                sm_clock_mhz=345.0,
                processes=0.0,
                throttle=(),
                jobs=(),
            )
        util = min(100.0, max(0.0, item.level + self._random.uniform(-item.spread, item.spread)))
        used = 0.02 if item.level == 0 else 0.55 + 0.004 * item.spread
        return LiveDevice(
            util_pct=float(round(util)),
            mem_used_mib=used * memory_mib,
            mem_used_frac=used,
            power_w=power_w * (0.15 + 0.0075 * util),
            temp_c=35.0 + round(0.35 * util),
            sm_clock_mhz=clock_mhz if util else 345.0,
            processes=1.0,
            throttle=(),
            jobs=(item.job.job_id,),
        )

    def _facts(self, node: int, gpu: int) -> DeviceFacts:
        name, memory_mib, power_w, clock_mhz = _CARDS[self._type(node)]
        return DeviceFacts(
            uuid=_uuid(node, gpu),
            node=self._name(node),
            at_s=1_799_000_000,
            name=name,
            minor=gpu,
            index=gpu,
            memory_mib=memory_mib,
            power_limit_w=power_w,
            sm_clock_max_mhz=clock_mhz,
        )

    def _name(self, node: int) -> str:
        return f"n{node + 1}"

    def _type(self, node: int) -> str:
        return "a100" if (node // NODES_PER_ZONE) % 2 else "h200"


def uid_of(user: str) -> int:
    """Return the uid of userN."""
    return 60_000 + int(user.removeprefix("user"))


def _job_of(
    dice: random.Random,
    job_id: int,
    user: str,
    state: str,
    n_gpus: int,
    n_nodes: int,
    start_s: int | None,
    until_s: int,
) -> ClusterJob:
    """Return a job that was submitted within two hours before `until_s`."""
    submit_s = until_s - dice.randrange(7200)
    return ClusterJob(
        id=str(job_id),
        job_id=job_id,
        full=True,
        user=user,
        uid=uid_of(user),
        account=_ACCOUNTS[len(user) * int(user[4:]) % len(_ACCOUNTS)],
        partition="gpu",
        qos="normal",
        state=state,
        reason="None",
        n_tasks=1,
        n_nodes=n_nodes,
        n_gpus=float(n_gpus),
        submit_s=submit_s,
        eligible_s=submit_s,
        start_s=start_s,
        end_s=None if start_s is None else start_s + 172_800,
        time_limit_s=172_800,
        name=dice.choice(("train", "finetune <b>7B</b>", "eval", "sweep-17")),
    )


def run_of(job: ClusterJob, now_s: float, devices: Sequence[Record]) -> Run:
    """Return the run of a queued job as in accounting."""
    start_s = job.start_s if job.state == "RUNNING" else None
    elapsed_s = None if start_s is None else int(now_s) - start_s
    return Run(
        id=job.id,
        full=True,
        cluster="synthetic",
        job_id=job.job_id,
        array_job_id=None,
        array_task=None,
        het_job_id=None,
        het_offset=None,
        user=job.user,
        uid=job.uid,
        account=job.account,
        qos=job.qos,
        partition=job.partition,
        state=job.state,
        submit_s=job.submit_s or 0,
        eligible_s=job.eligible_s,
        start_s=start_s,
        end_s=None,
        elapsed_s=elapsed_s,
        suspended_s=0,
        time_limit_s=job.time_limit_s,
        nodes=compress({record.node for record in devices}),
        gpu_type=None,
        n_nodes=job.n_nodes,
        n_gpus=job.n_gpus,
        n_gpus_requested=job.n_gpus,
        wait_h=None,
        submit_wait_h=None,
        run_h=None if elapsed_s is None else elapsed_s / 3600,
        name=job.name,
        restart=0,
        coverage=1.0 if devices else None,
        devices=tuple(devices),
        hosts=(),
        events=(),
        device_facts={},
    )


def _uuid(node: int, gpu: int) -> str:
    return f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}"
