"""The accounting table of a period: one row for each run, in columns of equal length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.reports.category import Category, Floats, Integers, Mask
from slurm_gpu.reports.period import ReportPeriod

MGPU_S_PER_GPU_H = 3_600_000
NO_GPU, SHARED, SINGLE, NODE, MULTI_NODE = "no GPU", "shared GPU", "1 GPU", "one node", "several nodes"
# Classes of runs by size: none, a part of one GPU, one, several (or one and a part) on one node, and GPUs of
# more nodes than one.
SCALES = (NO_GPU, SHARED, SINGLE, NODE, MULTI_NODE)
# The server type or zone of nodes of which slurm-gpu.yaml names none.
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Held GPU time by node group: row j says that run `run[j]` held `mgpu_s[j]` there within the period.

    In GPU/1000 × seconds, whole numbers, so that by whatever it is summed the sum is the same.
    """

    run: Integers
    server_type: Category
    zone: Category
    mgpu_s: Integers
    charge: Floats
    """Of each share, by the rate of its server type; NaN where that has none."""

    def of(self, column: Category) -> Category:
        """A column of runs as one of shares."""
        return column.take(self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIds:
    """The numbers of which a job's id is made; -1 where there is none."""

    job_id: Integers
    array_job_id: Integers
    array_task: Integers
    het_job_id: Integers
    het_offset: Integers

    def labels(self, rows: NDArray[Any]) -> list[str]:
        """Ids as Slurm prints them: 12, 12_3, 12+1."""
        numbers = (self.job_id, self.array_job_id, self.array_task, self.het_job_id, self.het_offset)
        return [
            f"{array}_{task}" if task >= 0 else f"{het}+{offset}" if offset >= 0 else str(job)
            for job, array, task, het, offset in zip(*(n[rows].tolist() for n in numbers), strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class JobTable:
    """Runs that ended in the period, or ran in it. NaN is a gap, as UNKNOWN is of a category.

    Times are UTC epoch seconds and NaN for what has not happened. `wait_h`, `run_h`, `n_nodes`, `n_gpus`
    (those asked for, of what never began), `ugpucore`, `ugpumem` (per cent) and `coverage` (of 1) are of the
    whole run; `wall_h`, `held_gpu_h`, `no_process_gpu_h`, `energy_kwh` and `charge` are the period's part of
    it. `server_type` and `zone` are those in which a run held most.
    """

    period: ReportPeriod
    min_coverage: float
    ids: JobIds
    cluster: Category
    name: Category
    user: Category
    account: Category
    team: Category
    qos: Category
    partition: Category
    state: Category
    gpu_type: Category
    app: Category
    app_field: Category
    server_type: Category
    zone: Category
    scale: Category
    lender: Category
    submit_s: Floats
    eligible_s: Floats
    start_s: Floats
    end_s: Floats
    wait_h: Floats
    run_h: Floats
    wall_h: Floats
    n_nodes: Floats
    n_gpus: Floats
    held_gpu_h: Floats
    no_process_gpu_h: Floats
    ugpucore: Floats
    ugpumem: Floats
    coverage: Floats
    energy_kwh: Floats
    charge: Floats
    goes_on: Mask
    """Rows after which the run went on with other nodes, after the period: it ends elsewhere."""
    shares: Shares

    def __len__(self) -> int:
        return len(self.ids.job_id)

    @property
    def job_id(self) -> Integers:
        """Slurm's raw job ids."""
        return self.ids.job_id

    def labels(self, rows: NDArray[Any] | None = None) -> list[str]:
        """Ids as Slurm prints them, of these rows or all."""
        return self.ids.labels(np.arange(len(self)) if rows is None else rows)

    @cached_property
    def ended(self) -> Mask:
        """Runs that count as one in this period: each counts once, in the period in which it ended."""
        inside = (self.end_s >= self.period.since_s) & (self.end_s < self.period.until_s)
        return inside & ~self.goes_on

    @cached_property
    def completed(self) -> Mask:
        """Of those that ended, the ones that ever ran."""
        return self.ended & self.ran

    @cached_property
    def ran(self) -> Mask:
        """Runs that ever began, and were not cancelled before."""
        return ~np.isnan(self.start_s)

    @cached_property
    def with_gpus(self) -> Mask:
        """Runs that had GPUs, or a part of one."""
        return self.ran & (self.n_gpus > 0)

    @cached_property
    def ended_with_gpus(self) -> Mask:
        """Those that figures count as jobs."""
        return self.ended & self.with_gpus

    @cached_property
    def measured(self) -> Mask:
        """Runs that were watched for long enough to be judged, and of which utilisation is known."""
        return (self.coverage >= self.min_coverage) & ~np.isnan(self.ugpucore)

    @cached_property
    def held_mgpu_s(self) -> Integers:
        """Held GPU time of each run within the period."""
        held = np.zeros(len(self), np.int64)
        np.add.at(held, self.shares.run, self.shares.mgpu_s)
        return held

    @cached_property
    def total_gpu_h(self) -> float:
        """All GPU-hours held in the period."""
        return gpu_h(int(self.shares.mgpu_s.sum()))


def gpu_h(mgpu_s: int) -> float:
    """GPU-hours of GPU/1000 × seconds."""
    return mgpu_s / MGPU_S_PER_GPU_H
