"""Summarise the state of the cluster for the terminal and `slurm-gpu top --json`, in pure functions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from slurm_gpu.alerts.alert import Alert
from slurm_gpu.monitor.cluster.reasons import meaning
from slurm_gpu.monitor.cluster.selection import Selection
from slurm_gpu.monitor.cluster.summary import (
    PENDING,
    GpuRow,
    GpuType,
    StateOfNodes,
    WaitReason,
    folded,
    gpu_rows,
    gpu_types,
    gpus_in_all,
    in_partition,
    node_states,
    wait_reasons,
    with_whole_gpus,
)
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.cluster import ClusterJob, ClusterState
from slurm_gpu.wire.answers.runs import NodeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
    """A row of GPUs with their job and their live values."""

    row: GpuRow
    devices: Sequence[LiveDevice]
    """The devices that slurm-gpud reports for the row, by node, in the driver's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    """A job with its nodes and the live values of its GPUs; a pending job has neither."""

    job: ClusterJob
    nodes: Sequence[str]
    devices: Sequence[LiveDevice]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAlert:
    """An alert and its job."""

    alert: Alert
    job: ClusterJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The displayed state of the cluster at one time."""

    cluster: str
    as_of_s: float
    """The time of slurmctld's answer."""
    types: Sequence[GpuType]
    nodes: Sequence[StateOfNodes]
    waits: Sequence[WaitReason]
    users: Sequence[tuple[str, float]]
    """The number of GPUs allocated to each user's jobs, largest number first; shards count as fractions."""
    rows: Sequence[ShownRow]
    jobs: Sequence[ShownJob]
    """Jobs in the order of their nodes, then the other jobs, those with the highest priority first."""
    alerts: Sequence[JobAlert] | None
    """Alerts, the most serious first; None if the cluster has not been watched for long enough."""

    @property
    def waiting_jobs(self) -> int:
        """Return the number of pending jobs; each array task counts as a job."""
        return sum(wait.n_jobs for wait in self.waits)

    @property
    def waiting_gpus(self) -> float | None:
        """Return the number of GPUs that pending jobs request; None if it is unknown for any job."""
        return gpus_in_all([wait.n_gpus for wait in self.waits])

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps; docs/commands.md explains its keys."""
        return {
            "cluster": self.cluster,
            "as_of_s": self.as_of_s,
            "gpus": [
                {
                    "type": kind.name,
                    "total": kind.total,
                    "allocated": kind.allocated,
                    "free": kind.free,
                    "out_of_service": kind.out_of_service,
                    "next_free_s": kind.next_free_s,
                }
                for kind in self.types
            ],
            "nodes": [
                {
                    "state": one.state,
                    "reason": one.reason,
                    "in_service": one.in_service,
                    "nodes": list(one.nodes),
                }
                for one in self.nodes
            ],
            "waiting": [
                {
                    "reason": wait.reason,
                    "meaning": meaning(wait.reason),
                    "jobs": wait.n_jobs,
                    "gpus": wait.n_gpus,
                    "next_start_s": wait.next_start_s,
                }
                for wait in self.waits
            ],
            "users": [{"user": user, "gpus": n_gpus} for user, n_gpus in self.users],
            "rows": [_row_to_json(shown) for shown in self.rows],
            "attention": None if self.alerts is None else [_alert_to_json(shown) for shown in self.alerts],
        }


def make_overview(
    cluster: str,
    state: ClusterState,
    live: Mapping[str, Live],
    reports: Iterable[NodeReport],
    *,
    alerts: Sequence[Alert] | None = None,
    user: str | None = None,
    account: str | None = None,
    partition: str | None = None,
    words: Sequence[str] = (),
    fold: bool = True,
) -> Overview:
    """Build an overview from the rows, jobs and alerts that match `user`, `account` and `partition`.

    Each of `words` must occur in the texts of a row or job. The totals of GPUs, nodes and users are only
    filtered by `partition`. If `fold` is true, nodes with equal rows are combined.
    """
    state = everywhere = with_whole_gpus(state)
    if partition is not None:
        state = in_partition(state, partition)
    rows = gpu_rows(state)
    allocated = _allocated_by_user(everywhere, rows)
    nodes_of: dict[int, list[str]] = {}
    for row in rows:
        if row.job is not None:
            nodes_of.setdefault(row.job.job_id, []).extend(row.nodes)
    selection = Selection(user=user, account=account, words=words)
    rows = [row for row in rows if selection.admits_row(row)]
    admitted = [job for job in state.jobs if selection.admits_job(job, nodes_of.get(job.job_id, ()))]
    waiting = replace(state, jobs=admitted)
    jobs = {job.job_id: job for job in admitted}
    here = {row.job.job_id for row in rows if row.job is not None}
    by_holder = _by_holder(live, reports)
    return Overview(
        cluster=cluster,
        as_of_s=state.as_of_s,
        types=gpu_types(state),
        nodes=node_states(state),
        waits=wait_reasons(waiting),
        users=sorted(allocated.items(), key=lambda item: (-item[1], item[0])),
        rows=[
            ShownRow(row=row, devices=_devices(row, by_holder)) for row in (folded(rows) if fold else rows)
        ],
        jobs=_shown_jobs(admitted, nodes_of, by_holder, elsewhere=partition is None),
        alerts=None
        if alerts is None
        else [JobAlert(alert=alert, job=jobs[alert.job_id]) for alert in alerts if alert.job_id in here],
    )


def _shown_jobs(
    jobs: Sequence[ClusterJob], nodes_of: Mapping[int, Sequence[str]], by_holder: _Holders, elsewhere: bool
) -> list[ShownJob]:
    """Return the jobs in order; with `elsewhere`, also running jobs on nodes without rows."""
    place = {job_id: index for index, job_id in enumerate(nodes_of)}
    shown = [job for job in jobs if job.job_id in place or elsewhere or job.state == PENDING]
    shown.sort(key=lambda job: (place.get(job.job_id, math.inf), -(job.priority or 0), job.job_id))
    return [
        ShownJob(
            job=job,
            nodes=(nodes := tuple(dict.fromkeys(nodes_of.get(job.job_id, ())))),
            devices=[device for node in nodes for device in by_holder.get((node, job.job_id), ())],
        )
        for job in shown
    ]


def _allocated_by_user(state: ClusterState, shown: Iterable[GpuRow]) -> dict[str, float]:
    """Return each user's number of GPUs in the rows `shown`; `state` has all nodes of the users' jobs."""
    shards_per_gpu = {node.node: node.shards_per_gpu for node in state.nodes}
    whole, shared, of = Counter[int](), Counter[int](), dict[int, int | None]()
    for row in gpu_rows(state):
        if row.job is not None:
            (shared if row.shared else whole)[row.job.job_id] += len(row.gpus)
            of[row.job.job_id] = shards_per_gpu[row.nodes[0]]
    allocated: dict[str, Fraction] = defaultdict(Fraction)
    for row in shown:
        if (job := row.job) is not None:
            part = Fraction(1)
            if row.shared and job.n_gpus is not None:
                # The rest of the job's GPUs are shards or, if the shards per GPU are unknown, thousandths.
                unit = of[job.job_id] or 1000
                rest = Fraction(round((job.n_gpus - whole[job.job_id]) * unit), unit)
                part = min(part, max(Fraction(0), rest / shared[job.job_id]))
            allocated[job.user] += len(row.gpus) * part
    return {user: int(n) if n == int(n) else round(float(n), 3) for user, n in allocated.items()}


def driver_order(reports: Iterable[NodeReport]) -> Callable[[str], tuple[float, int, str]]:
    """Return a sort key for UUIDs of a node's devices; unreported devices come last."""
    order = {
        item.uuid: (
            math.inf if item.index is None else item.index,
            -1 if item.gpu_instance is None else item.gpu_instance,
        )
        for report in reports
        for item in report.devices
    }

    def place(uuid: str) -> tuple[float, int, str]:
        return *order.get(uuid, (math.inf, -1)), uuid

    return place


_Holders = Mapping[tuple[str, int], Sequence[LiveDevice]]


def _by_holder(live: Mapping[str, Live], reports: Iterable[NodeReport]) -> _Holders:
    """Return the devices of each job on each node, according to slurm-gpud.

    Slurm's positions are not used.
    """
    place = driver_order(reports)
    found: dict[tuple[str, int], list[LiveDevice]] = {}
    for node, values in live.items():
        for uuid in sorted(values.devices, key=place):
            for job_id in values.devices[uuid].jobs:
                found.setdefault((node, job_id), []).append(values.devices[uuid])
    return found


def _devices(row: GpuRow, by_holder: _Holders) -> list[LiveDevice]:
    if row.job is None:
        return []
    return [device for node in row.nodes for device in by_holder.get((node, row.job.job_id), ())]


def _row_to_json(shown: ShownRow) -> dict[str, Any]:
    row, job = shown.row, shown.row.job
    return {
        "nodes": list(row.nodes),
        "state": row.state,
        "in_service": row.in_service,
        "type": row.gpu_type,
        "gpus": list(row.gpus),
        "shared": row.shared,
        "free": row.n_free,
        "id": None if job is None else job.id,
        "job_id": None if job is None else job.job_id,
        "user": None if job is None else job.user,
        "account": None if job is None else job.account,
        "job_state": None if job is None else job.state.lower(),
        "frees_s": row.frees_s,
        "util_pct": [device.util_pct for device in shown.devices],
        "mem_used_frac": [device.mem_used_frac for device in shown.devices],
    }


def _alert_to_json(shown: JobAlert) -> dict[str, Any]:
    alert = shown.alert
    return {
        "id": shown.job.id,
        "job_id": alert.job_id,
        "user": shown.job.user,
        "alert": alert.kind.value,
        "devices": list(alert.devices),
        "since_s": alert.since_s,
        "coverage": alert.coverage,
        "verdict": None if alert.diagnosis is None else asdict(alert.diagnosis),
    }
