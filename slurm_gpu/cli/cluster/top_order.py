"""Sort the rows and jobs of `slurm-gpu top`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from slurm_gpu.monitor.cluster.overview import ShownJob, ShownRow
from slurm_gpu.wire import LiveDevice

SORTS = ("node", "job", "user", "account", "gpus", "util", "end")
T = TypeVar("T")


def mean_util(devices: Sequence[LiveDevice]) -> float | None:
    """Return the mean utilisation of the measured devices; None if no device was measured."""
    measured = [device.util_pct for device in devices if device.util_pct is not None]
    return math.fsum(measured) / len(measured) if measured else None


def sorted_rows(rows: Sequence[ShownRow], sort: str, is_reverse: bool) -> list[ShownRow]:
    """Return the rows by `sort`; rows without a value come last."""

    def value(shown: ShownRow) -> Any:
        row, job = shown.row, shown.row.job
        if job is None:
            return None
        return {
            "job": job.job_id,
            "user": job.user,
            "account": job.account,
            "gpus": -len(row.gpus),
            "util": mean_util(shown.devices),
            "end": row.frees_s,
        }[sort]

    return _sorted(rows, None if sort == SORTS[0] else value, is_reverse)


def sorted_jobs(jobs: Sequence[ShownJob], sort: str, is_reverse: bool) -> list[ShownJob]:
    """Return the jobs by `sort`; jobs without a value come last."""

    def value(shown: ShownJob) -> Any:
        job = shown.job
        return {
            "job": job.job_id,
            "user": job.user,
            "account": job.account,
            "gpus": None if job.n_gpus is None else -job.n_gpus * job.n_tasks,
            "util": mean_util(shown.devices),
            "end": job.end_s if job.state == "RUNNING" else None,
        }[sort]

    return _sorted(jobs, None if sort == SORTS[0] else value, is_reverse)


def _sorted(items: Sequence[T], value: Callable[[T], Any] | None, is_reverse: bool) -> list[T]:
    if value is None:
        return list(reversed(items)) if is_reverse else list(items)
    known = [item for item in items if value(item) is not None]
    unknown = [item for item in items if value(item) is None]
    return [*sorted(known, key=value, reverse=is_reverse), *unknown]
