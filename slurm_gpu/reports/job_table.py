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
# Size classes of runs: no GPU, part of one GPU, one GPU, several GPUs on one node, GPUs on several nodes.
SCALES = (NO_GPU, SHARED, SINGLE, NODE, MULTI_NODE)
# The server type or zone of nodes for which slurm-gpu.yaml has none.
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Allocated GPU time by node group: in row j, run `run[j]` has `mgpu_s[j]` in the period.

    The unit is mgpu × seconds. Because the values are integers, all totals agree exactly.
    """

    run: Integers
    server_type: Category
    zone: Category
    mgpu_s: Integers
    charge: Floats
    """The charge of each share at the rate of its server type; NaN if there is no rate."""

    def of(self, column: Category) -> Category:
        """Return the value of a column of runs for each share."""
        return column.take(self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIds:
    """The parts of job IDs; -1 for a missing part."""

    job_id: Integers
    array_job_id: Integers
    array_task: Integers
    het_job_id: Integers
    het_offset: Integers

    def labels(self, rows: NDArray[Any]) -> list[str]:
        """Return job IDs as Slurm prints them: 12, 12_3, 12+1."""
        numbers = (self.job_id, self.array_job_id, self.array_task, self.het_job_id, self.het_offset)
        return [
            f"{array}_{task}" if task >= 0 else f"{het}+{offset}" if offset >= 0 else str(job)
            for job, array, task, het, offset in zip(*(n[rows].tolist() for n in numbers), strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class JobTable:
    """The runs that ended or ran in the period. Missing values are NaN, or UNKNOWN in a category.

    Times are UTC epoch seconds; NaN if the event has not happened. `wait_h`, `run_h`, `n_nodes`, `n_gpus`
    (requested if the run never started), `ugpucore`, `ugpumem` (per cent) and `coverage` (0–1) are for the
    whole run. `wall_h`, `allocated_gpu_h`, `no_process_gpu_h`, `energy_kwh` and `charge` are for the run's
    part in the period. `server_type` and `zone` are the ones with most of the run's GPU time.
    """

    period: ReportPeriod
    min_coverage: float
    currency: str
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
    allocated_gpu_h: Floats
    no_process_gpu_h: Floats
    ugpucore: Floats
    ugpumem: Floats
    coverage: Floats
    energy_kwh: Floats
    charge: Floats
    goes_on: Mask
    """Whether the row is part of a resized run whose last part was submitted after the period."""
    shares: Shares

    def __len__(self) -> int:
        return len(self.ids.job_id)

    @property
    def job_id(self) -> Integers:
        """Return Slurm's raw job IDs."""
        return self.ids.job_id

    def labels(self, rows: NDArray[Any] | None = None) -> list[str]:
        """Return job IDs as Slurm prints them, for the given rows or all."""
        return self.ids.labels(np.arange(len(self)) if rows is None else rows)

    @cached_property
    def ended(self) -> Mask:
        """Return the runs that ended in the period. No run is counted in more than one period."""
        inside = (self.end_s >= self.period.since_s) & (self.end_s < self.period.until_s)
        return inside & ~self.goes_on

    @cached_property
    def completed(self) -> Mask:
        """Return the runs that ended in the period, except those that never started."""
        return self.ended & self.ran

    @cached_property
    def ran(self) -> Mask:
        """Return the runs that started, without those that were cancelled while pending."""
        return ~np.isnan(self.start_s)

    @cached_property
    def with_gpus(self) -> Mask:
        """Return the runs that started with GPUs or with part of one GPU."""
        return self.ran & (self.n_gpus > 0)

    @cached_property
    def ended_with_gpus(self) -> Mask:
        """Return the runs with GPUs that ended in the period; figures count these runs as jobs."""
        return self.ended & self.with_gpus

    @cached_property
    def measured(self) -> Mask:
        """Return the runs with sufficient coverage and known utilisation."""
        return (self.coverage >= self.min_coverage) & ~np.isnan(self.ugpucore)

    @cached_property
    def allocated_mgpu_s(self) -> Integers:
        """Return the allocated GPU time of each run in the period, in mgpu × seconds."""
        allocated = np.zeros(len(self), np.int64)
        np.add.at(allocated, self.shares.run, self.shares.mgpu_s)
        return allocated

    @cached_property
    def total_gpu_h(self) -> float:
        """Return all allocated GPU-hours in the period."""
        return gpu_h(int(self.shares.mgpu_s.sum()))


def gpu_h(mgpu_s: int) -> float:
    """Convert mgpu × seconds to GPU-hours."""
    return mgpu_s / MGPU_S_PER_GPU_H
