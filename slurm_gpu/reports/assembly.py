"""Assemble the accounting table from the rows of `run` and their allocations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.accounting.allocated_time import SHIPPED_WITHIN_S
from slurm_gpu.database.accounting.loans import lender_of
from slurm_gpu.database.accounting.resized import elapsed_s, part_s, whole
from slurm_gpu.reports.allocated_rows import AllocatedRows
from slurm_gpu.reports.category import UNKNOWN, Category, Floats, Integers
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, SCALES, JobIds, JobTable
from slurm_gpu.reports.period import ReportPeriod
from slurm_gpu.reports.placing import Group
from slurm_gpu.reports.rows import RunColumns
from slurm_gpu.reports.shares import as_shares, main_place

_J_PER_KWH = 3_600_000
_ID_NUMBERS = ("job_id", "array_job_id", "array_task", "het_job_id", "het_offset")
# The columns for which the parts of a resized run are combined, with their names in `run`.
_OF_WHOLE = {name: name for name in ("submit_s", "eligible_s", "start_s", "elapsed_s", "n_nodes")} | {
    "mgpu": "granted_mgpu"
}


def assemble(
    rows: RunColumns,
    allocated: AllocatedRows,
    portions: tuple[Integers, Integers, Integers],
    groups: Sequence[Group],
    config: SiteConfig,
    period: ReportPeriod,
    now_s: float,
) -> JobTable:
    """Return the table with one row per run.

    `portions` are the columns (row, group, mgpu·s) of the GPU time that was allocated in the period.
    """
    runs = np.flatnonzero(allocated.last == np.arange(len(rows)))
    place = np.full(len(rows), -1, np.int64)
    place[runs] = np.arange(len(runs))
    run_of = place[allocated.last]
    row, group, mgpu_s = portions
    shares = as_shares(groups, run_of[row], group, mgpu_s, partial(rate_of, config))

    def per_run(values: Floats) -> Floats:
        return np.bincount(run_of, values, minlength=len(runs)).astype(np.float64)

    numbers = _numbers(rows, allocated, runs, now_s)
    texts = {name: column.take(runs) for name, column in rows.texts.items()}
    begun = ~np.isnan(numbers["start_s"])
    whole_mgpu_s = _whole_mgpu_s(allocated, runs, now_s)
    allocated_mgpu_s = np.zeros(len(runs), np.int64)
    np.add.at(allocated_mgpu_s, shares.run, shares.mgpu_s)
    unknown = per_run(allocated.unknown.astype(np.float64)) > 0
    allocated_gpu_h = np.where(unknown, np.nan, allocated_mgpu_s / MGPU_S_PER_GPU_H)
    part = np.divide(
        allocated_mgpu_s, whole_mgpu_s, out=np.full(len(runs), np.nan), where=whole_mgpu_s > 0
    ).clip(max=1)
    n_gpus = np.where(begun, numbers["mgpu"], numbers["requested_mgpu"]) / 1000
    account = texts["account"]
    return JobTable(
        period=period,
        min_coverage=config.sampling.min_coverage,
        currency=config.currency,
        ids=JobIds(**{name: rows.integers(name)[runs] for name in _ID_NUMBERS}),
        cluster=texts["cluster"],
        name=texts["name"],
        user=texts["user"],
        account=account,
        qos=texts["qos"],
        partition=texts["partition"],
        state=texts["state"],
        gpu_type=texts["gpu_type"],
        app=texts["app"],
        app_field=texts["app_field"],
        team=account if isinstance(config.team, str) else _mapped(account, config.team),
        server_type=main_place(shares.server_type, shares.run, shares.mgpu_s, len(runs)),
        zone=main_place(shares.zone, shares.run, shares.mgpu_s, len(runs)),
        scale=scale_of(n_gpus, numbers["n_nodes"]),
        lender=(lent := texts["admin_comment"]).renamed([lender_of(comment) for comment in lent.names]),
        submit_s=numbers["submit_s"],
        eligible_s=numbers["eligible_s"],
        start_s=numbers["start_s"],
        end_s=numbers["end_s"],
        n_nodes=numbers["n_nodes"],
        wait_h=_hours_between(numbers["eligible_s"], numbers["start_s"]),
        run_h=np.where(begun, numbers["elapsed_s"] / 3600, np.nan),
        wall_h=per_run(allocated.to_s - allocated.from_s) / 3600,
        n_gpus=n_gpus,
        allocated_gpu_h=allocated_gpu_h,
        no_process_gpu_h=np.minimum(numbers["no_process_mgpu_s"] / MGPU_S_PER_GPU_H * part, allocated_gpu_h),
        ugpucore=numbers["ugpucore"],
        ugpumem=numbers["ugpumem"],
        coverage=_coverage(numbers, now_s),
        energy_kwh=numbers["energy_j"] / _J_PER_KWH * part,
        charge=np.where(unknown, np.nan, np.bincount(shares.run, shares.charge, len(runs))),
        goes_on=allocated.goes_on[runs],
        shares=shares,
    )


def _numbers(rows: RunColumns, allocated: AllocatedRows, runs: Integers, now_s: float) -> dict[str, Floats]:
    """Return the numeric columns by run; a resized run has the submit and start times of its first part."""
    numbers = dict(rows.numbers)
    running = np.isnan(numbers["end_s"]) & ~np.isnan(numbers["start_s"])
    running &= rows.texts["state"].is_("RUNNING")
    since_start_s = np.floor(now_s - numbers["start_s"] - numbers["suspended_s"])
    numbers["elapsed_s"] = np.where(running, np.maximum(since_start_s, 0), numbers["elapsed_s"])
    if allocated.parts:
        numbers |= {name: numbers[name].copy() for name in _OF_WHOLE}
        for row, parts in allocated.parts.items():
            one = whole(parts, now_s)
            for name, column in _OF_WHOLE.items():
                numbers[name][row] = _number(one[column])
    return {name: values[runs] for name, values in numbers.items()}


def _whole_mgpu_s(allocated: AllocatedRows, runs: Integers, now_s: float) -> Floats:
    """Return the total mgpu·s of each run, including time outside the period; NaN if unknown."""
    amounts = allocated.whole_s * allocated.mgpu
    for row, parts in allocated.parts.items():
        amounts[row] = sum(
            _number(part_s(part, elapsed_s(part, now_s))) * _number(part["granted_mgpu"]) for part in parts
        )
    return amounts[runs]


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def scale_of(n_gpus: Floats, n_nodes: Floats) -> Category:
    """Return the size class of each run; UNKNOWN if its number of GPUs is unknown."""
    classes = [n_gpus <= 0, n_nodes > 1, n_gpus < 1, n_gpus == 1, n_gpus > 1]
    places = [0, 4, 1, 2, 3]
    return Category(SCALES, np.select(classes, places, UNKNOWN).astype(np.int32))


def _mapped(account: Category, team: object) -> Category:
    assert isinstance(team, dict)
    return account.renamed([team.get(name, name) for name in account.names])


def _hours_between(from_s: Floats, to_s: Floats) -> Floats:
    # If Slurm reports a start before the eligible time, the start comes from a deleted accounting row.
    return np.where(to_s >= from_s, (to_s - from_s) / 3600, np.nan)


def _coverage(numbers: dict[str, Floats], now_s: float) -> Floats:
    """Return the coverage; 0 for ended runs whose records can no longer arrive."""
    silent = np.isnan(numbers["coverage"]) & (numbers["mgpu"] > 0) & (numbers["elapsed_s"] > 0)
    return np.where(silent & (now_s - numbers["end_s"] > SHIPPED_WITHIN_S), 0.0, numbers["coverage"])


def rate_of(config: SiteConfig, server_type: str) -> float:
    """Return the rate per GPU-hour of a server type; NaN if slurm-gpu.yaml contains none."""
    known = config.server_types.get(server_type)
    return np.nan if known is None or known.rate_per_gpu_hour is None else known.rate_per_gpu_hour
