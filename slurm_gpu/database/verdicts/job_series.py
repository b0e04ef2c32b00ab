"""Convert the data of one run into the series that slurm_gpu.diagnose evaluates."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu.diagnose.metric import HOST_METRICS, Metric
from slurm_gpu.diagnose.peers import MODELS, Groups, TrainingLayout, groups_given
from slurm_gpu.diagnose.robust import middle
from slurm_gpu.diagnose.series import (
    BAD_THROTTLES,
    HostSeries,
    JobWorker,
    Series,
    WorkerSeries,
    align,
    worker_series_of_timeline,
    worker_series_of_windows,
)
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.answers.runs import DeviceTimeline, NodeWindow, Run

_WHOLE_MGPU = 1000
_HOST_INTERVAL_S = 10
# Windows from all nodes of a job arrive within this time.
_ANSWERS_WITHIN_S = 45.0
# The last records from all nodes of a run are at most this far apart.
_ENDS_WITHIN_S = 60.0
# The newest records from all nodes of a running job are at most this far apart: two intervals of records.
_RECORDS_WITHIN_S = 720.0
_LOST_NODES = ("NODE_FAIL", "REQUEUED")
# A node's CPU use up to this limit is attributed to the job. The limit is a multiple of the job's mean use of
# its own CPUs, plus a share for the system.
_OWN_CPU_TIMES, _SYSTEM_CPU = 2.0, 0.1


def kept_nodes(run: Run) -> frozenset[str]:
    """Return the nodes of a run, except those that it released while it continued.

    If a node failure or a requeue ended the run, return all of its nodes, since silent nodes are evidence.
    """
    records = run.devices or ()
    reported_at_s: dict[str, int] = {}
    for record in records:
        reported_at_s[record.node] = max(record.last_s, reported_at_s.get(record.node, 0))
    open_ones = {record.node for record in records if not record.final}
    until_s = math.inf if run.end_s is None else max(reported_at_s.values(), default=0) - _ENDS_WITHIN_S
    kept = open_ones | {node for node, last_s in reported_at_s.items() if last_s >= until_s}
    return frozenset(reported_at_s if run.state in _LOST_NODES or not kept else kept)


def workers_of(run: Run, nodes: Collection[str] | None = None) -> dict[tuple[str, str], JobWorker]:
    """Return the workers of a run on `nodes` (default: the nodes that it kept), by node and UUID."""
    facts = run.device_facts or {}
    nodes = kept_nodes(run) if nodes is None else nodes
    workers = {}
    for record in run.devices or ():
        if record.node not in nodes:
            continue
        known = facts.get(record.device)
        # A MIG instance of any size belongs to one job.
        shared = record.granted_mgpu is not None and record.granted_mgpu < _WHOLE_MGPU
        shared = shared and (known is None or known.parent is None)
        workers[record.node, record.device] = JobWorker(
            node=record.node,
            device=record.device,
            index=None if known is None else known.index,
            shared=shared,
        )
    return workers


def groups_of(run: Run, given: str | None, workers: Sequence[JobWorker]) -> Groups | None:
    """Return the groups of workers with equal roles, or None if there is no information about groups.

    `given` is the value of `--groups`. If `given` is None, the recorded arguments of the program determine
    the groups. All GPUs of a group then have the same model, since faster models wait for slower ones and
    reach a different fraction of their peak speed. Ranks are assumed to be in the order of node and
    index, as launchers assign them. Raise ValueError if `given` does not fit this job.
    """
    if given is not None:
        return groups_given(given, len(workers))
    return _of_one_model(run, workers, _of_arguments(run, len(workers)))


def _of_arguments(run: Run, n_workers: int) -> Groups | None:
    layouts = {
        (str(kept.get("pipeline_parallel", "1")), str(kept.get("tensor_parallel", "1")))
        for host in run.hosts or ()
        if "pipeline_parallel" in (kept := host.app_params or {})
    }
    if len(layouts) != 1:
        return None
    try:
        pipeline, tensor = map(int, layouts.pop())
        return TrainingLayout(pipeline=pipeline, tensor=tensor).groups(n_workers, f"arguments of {run.app}")
    except ValueError:
        return None  # the arguments are from another launch in the job: they do not fit these GPUs


def _of_one_model(run: Run, workers: Sequence[JobWorker], groups: Groups | None) -> Groups | None:
    facts = run.device_facts or {}
    models = [None if (known := facts.get(worker.device)) is None else known.name for worker in workers]
    if len(set(models)) < 2:
        return groups
    of = [0] * len(workers) if groups is None else groups.of.tolist()
    names = ["" if model is None else model for model in models]
    kinds = sorted(set(zip(of, names, strict=True)))
    stages = ("",) if groups is None else tuple(f"{name}, " for name in groups.names)
    return Groups(
        of=np.array([kinds.index(kind) for kind in zip(of, names, strict=True)], dtype=np.intp),
        names=tuple(f"{stages[group]}{model or 'GPUs of an unknown model'}" for group, model in kinds),
        source=MODELS if groups is None else f"{MODELS}, {groups.source}",
    )


def series_of_timelines(run: Run, timelines: Sequence[DeviceTimeline]) -> Series:
    """Return the binned series of the whole run; GPUs without a timeline are listed as missing."""
    workers = workers_of(run)
    throttled = _throttled(run)
    series = []
    for item in timelines:
        worker = workers.get((item.node, item.device))
        if worker is None or item.timeline is None:
            continue
        one = worker_series_of_timeline(worker, item.timeline)
        share = throttled.get((item.node, item.device))
        if share is not None:
            # Records contain only the total throttled time, so each bin gets the same share of it.
            even = np.full(one.n_bins, share)
            values = {**one.values, Metric.THROTTLE: even}
            one = replace(one, values=values)
        series.append(one)
    within_s = _RECORDS_WITHIN_S if run.end_s is None else 0.0
    return _aligned(run, workers, _cut_to_common_end(series, within_s))


def series_of_windows(
    run: Run,
    windows: Sequence[NodeWindow],
    nodes: Collection[str] | None = None,
    hosts: Sequence[NodeMinutes] = (),
) -> Series:
    """Return the series of the last ten minutes at full resolution, for the GPUs on `nodes`.

    `nodes` has the same meaning as in `workers_of`. `hosts` contains the metrics of whole nodes in steps of
    ten seconds; they are ignored unless they cover all nodes.
    """
    workers = workers_of(run, nodes)
    found = [
        (workers[item.node, item.device], item) for item in windows if (item.node, item.device) in workers
    ]
    seen = {node for node, _ in workers}
    whole = seen <= {item.node for item in hosts}
    host_rows = [host_series(item) for item in hosts if whole and item.node in seen]
    series = _aligned(
        run,
        workers,
        _cut_to_common_end(worker_series_of_windows(found, run.device_facts), _ANSWERS_WITHIN_S),
        host_rows,
    )
    cpu = series.get(Metric.CPU)
    if cpu is None or not middle(cpu.ravel()) > _OWN_CPU_TIMES * _own_cpu(run) + _SYSTEM_CPU:
        return series
    # The CPU use is too high to come from the job alone.
    return replace(series, values={name: rows for name, rows in series.values.items() if name != Metric.CPU})


def _own_cpu(run: Run) -> float:
    """Return the mean busy share of the CPUs allocated to a run, from its host records; NaN if unknown."""
    measured = [host for host in run.hosts or () if host.cpu_s is not None and host.last_s > host.first_s]
    cpus = (run.tres_allocated or {}).get("cpu", 0.0) / max(1, run.n_nodes)
    if not measured or not cpus > 0:
        return math.nan
    watched_s = sum(host.last_s - host.first_s for host in measured)
    return sum(host.cpu_s or 0.0 for host in measured) / watched_s / cpus


def _cut_to_common_end(series: Sequence[WorkerSeries], within_s: float) -> Sequence[WorkerSeries]:
    """Cut all series where the first node's data ends, since nodes send data at different times.

    In a job that lasts one minute, values of some nodes would otherwise be missing for a third of the time.
    If the ends differ by more than `within_s` or half of the time, cut nothing: missing values of a node may
    be evidence.
    """
    ends: dict[str, float] = {}
    for one in series:
        ends[one.worker.node] = max(one.end_s, ends.get(one.worker.node, one.end_s))
    end_s = min(ends.values(), default=0.0)
    if not ends:
        return series
    last_s, start_s = max(ends.values()), min(one.start_s for one in series)
    if last_s - end_s > min(within_s, 0.5 * (last_s - start_s)):
        return series
    cut = []
    for one in series:
        n_bins = max(0, math.floor((end_s - one.start_s) / one.width_s + 1e-6))
        values = {metric: row[:n_bins] for metric, row in one.values.items()}
        cut.append(replace(one, values=values))
    return cut


def host_series(minutes: NodeMinutes) -> HostSeries:
    """Convert samples to series with one value per second.

    Each sample covers the time since the previous one, but at most twice the usual interval.
    """
    at_s = np.round(np.array(minutes.at_s)).astype(np.int64)
    usual = _HOST_INTERVAL_S if len(at_s) < 2 else min(int(np.median(np.diff(at_s))), 2 * _HOST_INTERVAL_S)
    usual = max(usual, 1)
    start = int(at_s[0]) - usual
    since = np.maximum(np.concatenate([[start], at_s[:-1]]), at_s - 2 * usual)
    values = {}
    for metric in HOST_METRICS:
        series = minutes.series.get(metric.value)
        if series is None:
            continue
        row = np.full(int(at_s[-1]) - start, np.nan)
        for first, stop, value in zip(since - start, at_s - start, series, strict=True):
            row[first:stop] = np.nan if value is None else value
        values[metric] = row
    return HostSeries(node=minutes.node, start_s=float(start), width_s=1.0, values=values)


def _aligned(
    run: Run,
    workers: dict[tuple[str, str], JobWorker],
    series: Sequence[WorkerSeries],
    hosts: Sequence[HostSeries] = (),
) -> Series:
    there = {one.worker for one in series}
    missing = [worker for worker in workers.values() if worker not in there]
    return align(series, hosts=hosts, missing=missing, events=run.events or ())


def _throttled(run: Run) -> dict[tuple[str, str], float]:
    """Return, by device, the fraction of time for which a fault throttled the device, if it was recorded."""
    bad: dict[tuple[str, str], list[float]] = {}
    for record in run.devices or ():
        if record.throttle_s is None or record.sampled_s <= 0:
            continue
        # Several reasons may apply at the same time, so the longest duration is a lower bound.
        longest = max((record.throttle_s.get(reason, 0.0) for reason in BAD_THROTTLES), default=0.0)
        sums = bad.setdefault((record.node, record.device), [0.0, 0.0])
        sums[0] += longest
        sums[1] += record.sampled_s
    return {key: min(seconds / sampled, 1.0) for key, (seconds, sampled) in bad.items()}
