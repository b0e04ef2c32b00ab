"""Totals of the calendar months up to the end of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
from sqlalchemy import Connection

from slurm_gpu.database.accounting.derived_columns import RESIZING
from slurm_gpu.reports.allocated_rows import began_at, stopped_at
from slurm_gpu.reports.capacity import capacity_of
from slurm_gpu.reports.category import Integers
from slurm_gpu.reports.period import ReportPeriod
from slurm_gpu.reports.placing import NodePeriod, Placing
from slurm_gpu.reports.rows import RunColumns, read_numbers

# The last year, and the month before it, because the change of the first month is relative to that month.
N_MONTHS = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthTotals:
    """The totals of one calendar month, or of its part before the end of the report.

    `runs` counts the runs with GPUs that ended in the month; `median_wait_h` and `mean_wait_h` are their
    waits. `ugpucore` is the mean over the GPU time of the measured runs. Without such runs, a mean or median
    is NaN.
    """

    first: date
    allocated_mgpu_s: int
    capacity_mgpu_s: int
    runs: int
    median_wait_h: float
    mean_wait_h: float
    ugpucore: float


def months_of(
    connection: Connection,
    rows: RunColumns,
    periods: Sequence[NodePeriod],
    placing: Placing,
    *,
    cluster: str,
    period: ReportPeriod,
    now_s: float,
    min_coverage: float,
) -> list[MonthTotals]:
    """Return the totals of the last N_MONTHS months; months before the first data are left out.

    `rows` covers the period of the report; earlier rows are read from the database.
    """
    firsts = period.months(N_MONTHS)
    whole = replace(period, since=firsts[0])
    numbers = rows.numbers
    resizing = rows.texts["state"].is_(RESIZING)
    if firsts[0] < period.since:
        numbers, resizing = read_numbers(connection, cluster, whole)
    edges = np.minimum([period.midnight_s(first) for first in firsts], period.until_s).astype(np.float64)
    began_s = began_at(numbers["start_s"], numbers["submit_s"])
    stop_s = stopped_at(numbers["end_s"], now_s)
    mgpu = np.nan_to_num(numbers["mgpu"])
    of_gpus = mgpu > 0
    wait_h = (numbers["start_s"] - numbers["eligible_s"]) / 3600
    measured = (numbers["coverage"] >= min_coverage) & ~np.isnan(numbers["ugpucore"])
    found: list[MonthTotals] = []
    for first, from_s, to_s in zip(firsts[:-1], edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        seconds = np.nan_to_num(np.minimum(stop_s, to_s) - np.maximum(began_s, from_s)).clip(min=0)
        allocated: Integers = (seconds * mgpu).astype(np.int64)
        ended = of_gpus & ~resizing & (numbers["end_s"] >= from_s) & (numbers["end_s"] < to_s)
        capacity = capacity_of(periods, placing, int(from_s), int(max(from_s, min(to_s, now_s))))
        waits = wait_h[ended & (wait_h >= 0)]
        weight = allocated[measured]
        found.append(
            MonthTotals(
                first=first,
                allocated_mgpu_s=int(allocated.sum()),
                capacity_mgpu_s=int(capacity.mgpu_s.sum()),
                runs=int(ended.sum()),
                median_wait_h=float(np.median(waits)) if len(waits) else np.nan,
                mean_wait_h=float(np.mean(waits)) if len(waits) else np.nan,
                ugpucore=float(weight @ numbers["ugpucore"][measured] / total)
                if (total := weight.sum())
                else np.nan,
            )
        )
    used = [index for index, month in enumerate(found) if month.allocated_mgpu_s or month.runs]
    return found[used[0] :] if used else found[-1:]
