"""What slurm-gpudbd knows of one run, as the series that slurm_gpu.diagnose judges."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from slurm_gpu.diagnose.metric import HOST_METRICS, Metric
from slurm_gpu.diagnose.peers import MODELS, Groups, TrainingLayout, groups_given
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
_TELLS_EACH_S = 10
_ANSWERS_WITHIN_S = 45.0
"""All nodes of a job that were asked for their windows."""
_GAVE_BACK_S = 60.0
"""All nodes of a run end within less, once it is over."""
_LOST_NODES = ("NODE_FAIL", "REQUEUED")


def kept_nodes(run: Run) -> frozenset[str]:
    """The nodes of a run without those that it gave back while it went on, which tell no more of it.

    Of a run that a node took along, that node's silence is news.
    """
    records = run.devices or ()
    reported_at_s: dict[str, int] = {}
    for record in records:
        reported_at_s[record.node] = max(record.last_s, reported_at_s.get(record.node, 0))
    open_ones = {record.node for record in records if not record.final}
    until_s = math.inf if run.end_s is None else max(reported_at_s.values(), default=0) - _GAVE_BACK_S
    kept = open_ones | {node for node, last_s in reported_at_s.items() if last_s >= until_s}
    return frozenset(reported_at_s if run.state in _LOST_NODES or not kept else kept)


def workers_of(run: Run, nodes: Collection[str] | None = None) -> dict[tuple[str, str], JobWorker]:
    """The GPUs of a run, by node and UUID: on `nodes`, on those that it kept where nobody says."""
    facts = run.device_facts or {}
    nodes = kept_nodes(run) if nodes is None else nodes
    workers = {}
    for record in run.devices or ():
        if record.node not in nodes:
            continue
        known = facts.get(record.device)
        # A MIG instance is one job's alone, whatever its size.
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
    """Who does the same: by `--groups`, else by what the nodes kept of the program's arguments.

    Then GPUs of one model alone are compared with each other: one waits for the other, and shares of what
    each can do tell of the models. None where nothing tells; ValueError where `given` is none of this job.
    Ranks are taken to be counted by node and index, as launchers do.
    """
    if given is not None:
        return groups_given(given, len(workers))
    return _of_one_model(run, workers, _of_arguments(run, len(workers)))


def _of_arguments(run: Run, n_workers: int) -> Groups | None:
    told = {
        (str(kept.get("pipeline_parallel", "1")), str(kept.get("tensor_parallel", "1")))
        for host in run.hosts or ()
        if "pipeline_parallel" in (kept := host.app_params or {})
    }
    if len(told) != 1:
        return None
    try:
        pipeline, tensor = map(int, told.pop())
        return TrainingLayout(pipeline=pipeline, tensor=tensor).groups(n_workers, f"arguments of {run.app}")
    except ValueError:
        return None  # of another launch within the job: it does not fit these GPUs


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
        names=tuple(f"{stages[group]}{model or 'GPUs of a model not told'}" for group, model in kinds),
        source=MODELS if groups is None else f"{MODELS}, {groups.source}",
    )


def series_of_timelines(run: Run, timelines: Sequence[DeviceTimeline]) -> Series:
    """The whole course, in bins. GPUs of which none was kept are missing."""
    workers = workers_of(run)
    throttled = _throttled(run)
    courses = []
    for item in timelines:
        worker = workers.get((item.node, item.device))
        if worker is None or item.timeline is None:
            continue
        course = worker_series_of_timeline(worker, item.timeline)
        share = throttled.get((item.node, item.device))
        if share is not None:
            # Records tell how long, not when: it stands for all of the time.
            even = np.full(course.n_bins, share)
            values = {**course.values, Metric.THROTTLE: even}
            course = replace(course, values=values)
        courses.append(course)
    return _aligned(run, workers, courses)


def series_of_windows(
    run: Run,
    windows: Sequence[NodeWindow],
    nodes: Collection[str] | None = None,
    hosts: Sequence[NodeMinutes] = (),
) -> Series:
    """The last ten minutes, at full resolution, of its GPUs on `nodes`, as for `workers_of`.

    `hosts`: what the nodes did as a whole, each ten seconds; of some of them alone it is passed over.
    """
    workers = workers_of(run, nodes)
    told = [
        (workers[item.node, item.device], item) for item in windows if (item.node, item.device) in workers
    ]
    seen = {node for node, _ in workers}
    whole = seen <= {item.node for item in hosts}
    told_of = [host_course(item) for item in hosts if whole and item.node in seen]
    return _aligned(run, workers, _to_the_same_end(worker_series_of_windows(told, run.device_facts)), told_of)


def _to_the_same_end(courses: Sequence[WorkerSeries]) -> Sequence[WorkerSeries]:
    """Up to where the first node's window ends: each sent its own when it was asked, and had the time to.

    Of a job of a minute the seconds between them are a third, in which some told nothing.
    """
    ends: dict[str, float] = {}
    for course in courses:
        ends[course.worker.node] = max(course.end_s, ends.get(course.worker.node, course.end_s))
    end_s = min(ends.values(), default=0.0)
    if not ends or max(ends.values()) - end_s > _ANSWERS_WITHIN_S:
        return courses  # a node that told nothing for so long is news
    cut = []
    for course in courses:
        n_bins = max(0, math.floor((end_s - course.start_s) / course.width_s + 1e-6))
        values = {metric: row[:n_bins] for metric, row in course.values.items()}
        cut.append(replace(course, values=values))
    return cut


def host_course(told: NodeMinutes) -> HostSeries:
    """By seconds: each value stands for the time since the one before, after a gap for as long as usual."""
    at_s = np.round(np.array(told.at_s)).astype(np.int64)
    usual = _TELLS_EACH_S if len(at_s) < 2 else min(int(np.median(np.diff(at_s))), 2 * _TELLS_EACH_S)
    usual = max(usual, 1)
    start = int(at_s[0]) - usual
    since = np.maximum(np.concatenate([[start], at_s[:-1]]), at_s - 2 * usual)
    values = {}
    for metric in HOST_METRICS:
        series = told.series.get(metric.value)
        if series is None:
            continue
        row = np.full(int(at_s[-1]) - start, np.nan)
        for first, stop, value in zip(since - start, at_s - start, series, strict=True):
            row[first:stop] = np.nan if value is None else value
        values[metric] = row
    return HostSeries(node=told.node, start_s=float(start), width_s=1.0, values=values)


def _aligned(
    run: Run,
    workers: dict[tuple[str, str], JobWorker],
    courses: Sequence[WorkerSeries],
    hosts: Sequence[HostSeries] = (),
) -> Series:
    there = {course.worker for course in courses}
    missing = [worker for worker in workers.values() if worker not in there]
    return align(courses, hosts=hosts, missing=missing, events=run.events or ())


def _throttled(run: Run) -> dict[tuple[str, str], float]:
    """Of each device the share of the time for which a fault held its clock down, where that was told."""
    bad: dict[tuple[str, str], list[float]] = {}
    for record in run.devices or ():
        if record.throttle_s is None or record.sampled_s <= 0:
            continue
        # Several reasons hold at once: the longest is the least that it can have been.
        longest = max((record.throttle_s.get(reason, 0.0) for reason in BAD_THROTTLES), default=0.0)
        sums = bad.setdefault((record.node, record.device), [0.0, 0.0])
        sums[0] += longest
        sums[1] += record.sampled_s
    return {key: min(seconds / sampled, 1.0) for key, (seconds, sampled) in bad.items()}
