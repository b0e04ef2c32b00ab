"""Build the model's cluster and jobs from Slurm's nodes and recorded runs."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.cluster import GPU_MGPU, ModelCluster, ModelNode, ModelPartition
from slurm_gpu.simulate.jobs import ModelJob, ResourceRequest
from slurm_gpu.simulate.scheduler import Scheduling
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.tres import amount
from slurm_gpu.text.units import counted

# Slurm's defaults for the interval and the depth of backfill scheduling.
_BACKFILL_EVERY_S, _BACKFILL_DEPTH = 30, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A run recorded by slurm-gpudbd."""

    job_id: int
    """ID of the job, or of the array to which it belongs."""
    array_task: int = 0
    user: str
    uid: int
    account: str
    qos: str
    partition: str
    """The partition in which the run started, or the requested partitions if it never started."""
    eligible_s: int
    start_s: int | None
    end_s: int | None
    """The end of the run; None if the run has not ended."""
    time_limit_s: int | None
    n_nodes: int
    tres_requested: Mapping[str, float]
    tres_allocated: Mapping[str, float]
    n_gpus: float | None
    """Allocated GPUs, or requested GPUs if the run never started; None if unknown."""
    gpu_type: str | None = None

    @property
    def tres(self) -> Mapping[str, float]:
        """Return the allocation, or the request if the run never started; memory is in MiB."""
        return self.tres_allocated or self.tres_requested


@dataclass(frozen=True)
class RecordedPast:
    """The model's input, with the recorded run of each job."""

    cluster: ModelCluster
    jobs: tuple[ModelJob, ...]
    """The jobs sorted by submit time, without counters."""
    runs: tuple[PastRun, ...]
    """The recorded run of each job."""
    judged: NDArray[np.bool_]
    """Marks the jobs whose wait is compared: those that became eligible in the period and started."""
    remarks: tuple[str, ...]

    def recorded_wait_s(self) -> NDArray[np.float64]:
        """Return the recorded wait of each job; NaN if it never started."""
        return np.array(
            [math.nan if run.start_s is None else run.start_s - run.eligible_s for run in self.runs]
        )

    def requested_mgpu(self) -> NDArray[np.int64]:
        """Return the total mgpu of each job.

        Eight GPUs on three nodes count as 8, although the model allocates 3 GPUs per node.
        """
        # rebuild() leaves out runs whose number of GPUs is unknown.
        return np.array([_mgpu(run) for run in self.runs], dtype=np.int64)

    def wait_s(self, start_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the modelled wait of each job."""
        return start_s - np.array([run.eligible_s for run in self.runs], dtype=np.float64)


def rebuild(runs: Iterable[PastRun], nodes: Sequence[SlurmNode], since_s: int, until_s: int) -> RecordedPast:
    """Return the model's input for the time from `since_s` to `until_s`.

    In the model, runs that are running at `since_s` start at that time and last for the rest of their run
    time; pending runs are submitted at that time. Remarks count the runs that are left out, such as runs that
    were cancelled before their start or whose partition has no nodes.
    """
    cluster = _cluster(nodes)
    indices = {partition.name: index for index, partition in enumerate(cluster.partitions)}
    typed = all(len(node.gpus) <= 1 for node in nodes)
    left_out: Tally[str] = Tally()
    pairs: list[tuple[ModelJob, PastRun]] = []
    for run in sorted(runs, key=_by_queue_position):
        if run.eligible_s >= until_s or (run.end_s is not None and run.end_s <= since_s):
            continue
        if run.start_s is None and run.end_s is not None:
            left_out["cancelled before starting"] += 1
        elif not run.tres:
            left_out["without a request in Slurm's accounting"] += 1
        elif run.n_gpus is None:
            left_out["with an unknown number of GPUs"] += 1
        elif (partition := indices.get(run.partition.split(",")[0])) is None:
            left_out[f"of partition {run.partition}, which has no nodes now"] += 1
        else:
            request = _request(run, typed=typed)
            pairs.append((_job(run, request, partition, since_s, until_s), run))
    pairs.sort(key=lambda pair: pair[0].submit_s)
    remarks = [f"left out: {counted(n, 'run')} {why}" for why, n in sorted(left_out.items())]
    runs_behind = tuple(run for _, run in pairs)
    judged = [run.start_s is not None and since_s <= run.eligible_s for run in runs_behind]
    return RecordedPast(
        cluster,
        tuple(job for job, _ in pairs),
        runs_behind,
        np.array(judged, dtype=np.bool_),
        tuple(remarks),
    )


def scheduling_of(raw: Mapping[str, str]) -> Scheduling:
    """Return the scheduling parameters of slurm.conf."""
    if raw.get("SchedulerType", "sched/backfill") != "sched/backfill":
        return Scheduling(backfill=False)
    given = dict(
        item.split("=", 1) for item in raw.get("SchedulerParameters", "").split(",") if item.count("=") == 1
    )

    def number(key: str, default: int) -> int:
        value = given.get(key, "")
        return int(value) if value.isdigit() and int(value) else default

    return Scheduling(
        backfill_every_s=number("bf_interval", _BACKFILL_EVERY_S),
        depth=number("bf_max_job_test", _BACKFILL_DEPTH),
    )


def _cluster(nodes: Sequence[SlurmNode]) -> ModelCluster:
    partitions: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for name in node.partitions:
            partitions.setdefault(name, []).append(index)
    return ModelCluster(
        tuple(
            ModelNode(
                name=node.name,
                gpus=node.n_gpus,
                cpus=node.cpus,
                memory_mib=node.memory_mib,
                gpu_type="+".join(sorted(node.gpus)).lower(),
            )
            for node in nodes
        ),
        tuple(ModelPartition(name, tuple(members)) for name, members in sorted(partitions.items())),
    )


def _by_queue_position(run: PastRun) -> tuple[int, int, int]:
    # Slurm orders jobs with equal priority by ID. Eligible times are whole seconds, so many are equal.
    return run.eligible_s, run.job_id, run.array_task


def _mgpu(run: PastRun) -> int:
    return 0 if run.n_gpus is None else round(run.n_gpus * GPU_MGPU)


def _request(run: PastRun, *, typed: bool) -> ResourceRequest:
    tres, n, mgpu = run.tres, max(run.n_nodes, 1), _mgpu(run)
    each_mgpu = math.ceil(mgpu / n)
    # A run may have fewer whole GPUs than nodes. Shares of one GPU or more are rounded up to whole GPUs.
    is_whole = bool(amount(tres, "gpu")) or mgpu % GPU_MGPU == 0 or each_mgpu >= GPU_MGPU
    gpus, share_mgpu = (math.ceil(each_mgpu / GPU_MGPU), 0) if is_whole else (0, each_mgpu)
    types = [name.removeprefix("gres/gpu:") for name in run.tres_requested if name.startswith("gres/gpu:")]
    return ResourceRequest(
        nodes=n,
        gpus=gpus,
        share_mgpu=share_mgpu,
        cpus=math.ceil(tres.get("cpu", 0) / n),
        memory_mib=math.ceil(tres.get("mem", 0) / n),
        gpu_type=types[0].lower() if typed and len(types) == 1 else "",
    )


def _job(run: PastRun, request: ResourceRequest, partition: int, since_s: int, until_s: int) -> ModelJob:
    limit_s = math.inf if run.time_limit_s is None else max(run.time_limit_s, 1.0)
    began_before = run.start_s is not None and run.start_s < since_s
    start_s = run.start_s if run.start_s is not None else until_s
    if run.end_s is not None:
        run_s = float(run.end_s - start_s)
    else:  # a running or pending run ends at its time limit at the latest
        run_s = limit_s if limit_s < math.inf else float(max(until_s - start_s, 0))
    gone_s = since_s - start_s if began_before else 0
    return ModelJob(
        request=request,
        submit_s=float(max(run.eligible_s, since_s)),
        run_s=max(run_s - gone_s, 0.0),
        limit_s=_whole_minutes(max(limit_s, run_s) - gone_s),
        partition=partition,
        priority=math.inf if began_before else 0.0,
        qos=run.qos.lower(),
    )


def _whole_minutes(seconds: float) -> float:
    # Round up to minutes, because Slurm lets a job exceed its limit for a while.
    return seconds if math.isinf(seconds) else 60.0 * max(math.ceil(seconds / 60), 1)
