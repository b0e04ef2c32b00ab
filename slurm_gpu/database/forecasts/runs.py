"""Convert runs from accounting, slurmctld's queue or a request into the arrays that forecasts use."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Text, func, or_, select, type_coerce

from slurm_gpu.database.accounting.derived_columns import RESIZING
from slurm_gpu.database.storage.schema import run
from slurm_gpu.errors import UsageError
from slurm_gpu.forecast.queue import Runs
from slurm_gpu.forecast.samples import Floats
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.gpu_count import job_mgpu
from slurm_gpu.slurm.tres import SharesPerGpu

MOST_TASKS = 2000
"""Maximum number of rows for the tasks of one array; in a larger array, each row represents several tasks."""
# Assumed number of GPUs of a job if Slurm does not count them, or if the size of its shares is unknown.
_UNKNOWN_GPUS = 0.5
_MIB_PER_CORE = 4096.0
_RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED"})
_COLUMNS = ("eligible_s", "start_s", "end_s", "cores", "memory_mib", "gpus", "nodes", "limit_s")
_ASKED = frozenset({"cores", "memory_mib", "gpus"})

Row = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsubmittedJob:
    """A job that has not been submitted; values that are not given are None."""

    partition: str
    account: str = ""
    gpus: float = 0.0
    cores: float | None = None
    memory_mib: float | None = None
    nodes: float = 1.0
    time_limit_s: float | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> UnsubmittedJob:
        """Build a job from request parameters; raise UsageError if one is invalid."""
        names = cls.__slots__
        for name, text in query.items():
            if name not in names:
                raise UsageError(f"{name!r} is not a parameter here; allowed: {', '.join(names)}")
            if name not in ("partition", "account"):
                _amount(name, text)
        if not query.get("partition"):
            raise UsageError("partition= is missing: the job's partition is required")
        words = {name: query[name] for name in ("partition", "account") if name in query}
        amounts = {name: _amount(name, text) for name, text in query.items() if name not in words}
        return cls(**words, **amounts)  # type: ignore[arg-type]


def past_runs(connection: Connection, cluster: str, since_s: int) -> Runs:
    """Return all runs that waited or ran after `since_s`, according to Slurm's accounting."""
    names = ("submit_s", "eligible_s", "start_s", "end_s", "time_limit_s", "n_nodes")
    mgpu_asked = func.coalesce(run.c.requested_mgpu, run.c.granted_mgpu)
    columns = [*(run.c[name] for name in names), mgpu_asked]
    tres = type_coerce(run.c.tres_requested, Text)
    query = select(*columns, tres, run.c.account, run.c.partition).where(
        run.c.cluster == cluster,
        run.c.state != RESIZING,
        or_(run.c.end_s.is_(None), run.c.end_s >= since_s),
    )
    rows: list[Row] = []
    accounts, partitions = [], []
    for (
        submit_s,
        eligible_s,
        start_s,
        end_s,
        limit_s,
        nodes,
        mgpu,
        asked,
        account,
        partition,
    ) in connection.execute(query).yield_per(10_000):
        if eligible_s is None:
            if start_s is None:
                continue  # jobs that are held or ended before they were eligible never waited for resources
            eligible_s = submit_s
        cores, memory_mib = _amounts(asked)
        gpus = _UNKNOWN_GPUS if mgpu is None else mgpu / 1000
        rows.append((eligible_s, start_s, end_s, cores, memory_mib, gpus, nodes, limit_s))
        accounts.append(account)
        partitions.append(_first(partition))
    return _runs(rows, accounts, partitions)


def queue_runs(jobs: Iterable[QueuedJob], now_s: float) -> Runs:
    """Return the pending and running jobs; each array task is one job, as in accounting.

    If an array has more than MOST_TASKS tasks, the requests of its rows are scaled so that they add up to the
    request of the whole array.
    """
    listed = [job for job in jobs if waits(job, now_s) or job.state in _RUNNING]
    tasks = [min(max(job.n_tasks, 1), MOST_TASKS) for job in listed]
    rows = [_times(_of_queue(job), max(job.n_tasks, 1) / n) for job, n in zip(listed, tasks, strict=True)]
    runs = _runs(rows, [job.account for job in listed], [_first(job.partition) for job in listed])
    return runs[np.repeat(np.arange(len(listed)), tasks)]


def job_run(job: QueuedJob) -> Runs:
    """Return the run of a job, or of a single task of an array."""
    return _runs([_of_queue(job)], [job.account], [_first(job.partition)])


def run_of_request(asked: UnsubmittedJob, queue: Runs, now_s: float) -> Runs:
    """Return the run of a job as if it were submitted now.

    If the memory is not given, use the median memory per core of the jobs in the same partition.
    """
    cores = max(1.0, asked.nodes) if asked.cores is None else asked.cores
    memory_mib = asked.memory_mib
    if memory_mib is None:
        same_partition = queue[
            (queue.partition == asked.partition) & (queue.cores > 0) & (queue.memory_mib > 0)
        ]
        per_core = (
            np.median(same_partition.memory_mib / same_partition.cores)
            if len(same_partition)
            else _MIB_PER_CORE
        )
        memory_mib = float(per_core * cores)
    row = (now_s, None, None, cores, memory_mib, asked.gpus, asked.nodes, asked.time_limit_s)
    return _runs([row], [asked.account], [_first(asked.partition)])


def waits(job: QueuedJob, now_s: float) -> bool:
    """Return whether a job waits only for resources, that is, it is pending and eligible."""
    return job.state == "PENDING" and job.eligible_s is not None and job.eligible_s <= now_s


def _of_queue(job: QueuedJob) -> Row:
    # Once a job has started, Slurm 22.05 reports only the allocated TRES.
    tres = job.tres_requested or job.tres_allocated
    started = job.start_s if job.state in _RUNNING else None
    mgpu = job_mgpu(job, SharesPerGpu())
    gpus = _UNKNOWN_GPUS if mgpu is None else mgpu / 1000
    eligible_s = job.submit_s if job.eligible_s is None else job.eligible_s
    return (eligible_s, started, None, *_host_amounts(tres), gpus, job.n_nodes, job.time_limit_s)


def _times(row: Row, factor: float) -> Row:
    """Return a row with its amounts multiplied by `factor`."""
    return tuple(
        value if value is None or name not in _ASKED else value * factor
        for name, value in zip(_COLUMNS, row, strict=True)
    )


@functools.lru_cache(maxsize=4096)
def _amounts(tres: str) -> tuple[float, float]:
    return _host_amounts(json.loads(tres))


def _host_amounts(tres: Mapping[str, float]) -> tuple[float, float]:
    """Return the number of cores and the memory in MiB."""
    return tres.get("cpu", 0.0), tres.get("mem", 0.0)


def _runs(rows: Sequence[Row], accounts: Sequence[str], partitions: Sequence[str]) -> Runs:
    table: Floats = np.array(
        [[np.nan if value is None else value for value in row] for row in rows], dtype=float
    ).reshape(len(rows), len(_COLUMNS))
    columns: dict[str, Any] = {name: table[:, i] for i, name in enumerate(_COLUMNS)}
    return Runs(
        **columns, account=np.array(accounts, dtype=np.str_), partition=np.array(partitions, dtype=np.str_)
    )


def _first(partition: str) -> str:
    """Return the first partition of the list from which Slurm will choose one."""
    return partition.partition(",")[0]


def _amount(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e15:
        raise UsageError(f"{name}={text!r} must be a number from 0 to 1e15")
    return value
