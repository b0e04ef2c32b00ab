"""Waiting times by resource type and by scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.policy.language.model import Bundle
from slurm_gpu.reports.category import UNKNOWN, Category, Codes, Floats
from slurm_gpu.reports.figure import Bars, Figure, FigureTable, TableColumn
from slurm_gpu.reports.job_table import NO_GPU, SCALES, JobTable
from slurm_gpu.reports.wording import duration, percent, sentence, several

_QUANTILES = {"median_h": 50.0, "p90_h": 90.0, "p95_h": 95.0, "max_h": 100.0}


def waiting_by_resource_type(jobs: JobTable, bundles: Sequence[Bundle]) -> Figure:
    """Return waits by bundle, or by server type if the policy has no bundles."""
    return _by(jobs, "resource_type", "resource type", resource_types(jobs, bundles))


def waiting_by_scale(jobs: JobTable) -> Figure:
    """Return waits by the size of the jobs."""
    return _by(jobs, "scale", "scale", jobs.scale)


def _by(jobs: JobTable, key: str, what: str, column: Category) -> Figure:
    known = jobs.ended & ~np.isnan(jobs.wait_h)
    some, waits = column.take(known), jobs.wait_h[known]
    groups = [(name, np.sort(waits[some.is_(name)])) for name in column.names]
    groups = [(name, values) for name, values in groups if len(values)]
    if column.names != SCALES:
        groups.sort(key=lambda group: (-_quantile(group[1], 90.0), group[0]))
    labels = [name for name, _ in groups]
    quantiles = {
        column_name: np.array([_quantile(values, at) for _, values in groups], np.float64)
        for column_name, at in _QUANTILES.items()
    }
    at_once = np.array([100 * np.mean(values <= 1 / 60) for _, values in groups], np.float64)
    table = FigureTable(
        name=f"waiting_by_{key}",
        title=f"Waiting by {what}",
        columns=[
            TableColumn(key, "", f"The {what}."),
            TableColumn("jobs", "", "Jobs that ran and ended in the period."),
            TableColumn("mean_h", "h", "Mean wait from eligible to start."),
            TableColumn("median_h", "h", "Median wait."),
            TableColumn("p90_h", "h", "90 % of the jobs waited for at most this time."),
            TableColumn("p95_h", "h", "95 % of the jobs waited for at most this time."),
            TableColumn("max_h", "h", "Longest wait."),
            TableColumn("within_a_minute_pct", "%", "Share of jobs that started within a minute."),
        ],
        data={
            key: labels,
            "jobs": np.array([len(values) for _, values in groups], np.int64),
            "mean_h": np.array([values.mean() for _, values in groups], np.float64),
            **quantiles,
            "within_a_minute_pct": at_once,
        },
    )
    return Figure(
        id=f"waiting-by-{key.replace('_', '-')}",
        title=table.title,
        reading=_reading(labels, quantiles["p90_h"], waits),
        table=table,
        chart=Bars(
            labels=labels,
            series={"median": quantiles["median_h"], "90 % within": quantiles["p90_h"]},
            unit="h",
            stacked=False,
        ),
    )


def _quantile(values: Floats, at: float) -> float:
    """Return a percentile of sorted values without interpolation: the result is one of the values."""
    return float(values[max(0, int(np.ceil(at / 100 * len(values))) - 1)])


def _reading(labels: list[str], p90_h: Floats, waits: Floats) -> str:
    if not labels:
        return "No job that ended in this period has a known wait."
    if len(waits) == 1:
        return f"The only job waited {duration(float(waits[0]))}."
    at_once = percent(int((waits <= 1 / 60).sum()), len(waits))
    started = sentence(f"{at_once} of {several(len(waits), 'job')} started within a minute")
    longest = int(np.argmax(p90_h))
    if len(labels) == 1 or p90_h[longest] <= 1 / 60:
        return f"{started}."
    most = duration(p90_h[longest])
    return f"{started}; waits were longest for “{labels[longest]}”: at least {most} for 10 % of the jobs."


NO_BUNDLE = "no bundle"


def resource_types(jobs: JobTable, bundles: Sequence[Bundle]) -> Category:
    """Return the first matching bundle of each run.

    Without bundles, return the server type with most of the run's GPU time, or NO_GPU for runs without GPUs.
    """
    if not bundles:
        names = [*jobs.server_type.names, NO_GPU]
        without: Codes = np.where(jobs.scale.is_(NO_GPU), len(names) - 1, jobs.server_type.codes).astype(
            np.int32
        )
        return Category(names, without)
    partition, kind = jobs.partition, jobs.gpu_type
    width = len(kind.names) + 1
    # All runs with the same partition and GPU type belong to the same bundle, and there are few combinations.
    keys = ((partition.codes.astype(np.int64) + 1) * width + kind.codes + 1) * 2 + (jobs.n_gpus > 0)
    different, place = np.unique(keys, return_inverse=True)
    partitions, kinds = [None, *partition.names], [None, *kind.names]
    of_key = [
        _first(bundles, partitions[key // 2 // width], kinds[key // 2 % width], with_gpus=bool(key % 2))
        for key in different.tolist()
    ]
    codes = np.array(of_key, np.int32)[place]
    codes[np.isnan(jobs.n_gpus)] = UNKNOWN
    return Category([*(bundle.name for bundle in bundles), NO_BUNDLE], codes.astype(np.int32))


def _first(bundles: Sequence[Bundle], partitions: str | None, kind: str | None, *, with_gpus: bool) -> int:
    requested = set() if partitions is None else set(partitions.split(","))
    for place, bundle in enumerate(bundles):
        fits = (bundle.mgpu > 0) == with_gpus and (
            bundle.partitions is None or not requested.isdisjoint(bundle.partitions)
        )
        if fits and (
            not with_gpus or bundle.gpu_types is None or kind is None or kind.lower() in bundle.gpu_types
        ):
            return place
    return len(bundles)
