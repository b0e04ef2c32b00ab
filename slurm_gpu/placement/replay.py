"""What became of jobs in the model of a cluster under a rule of placement, in figures to compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.placement.fragmentation import stranded_mgpu
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.placing import ModelView
from slurm_gpu.placement.state import Mask
from slurm_gpu.simulate.cluster import GPU_MGPU, ModelCluster
from slurm_gpu.simulate.jobs import Jobs
from slurm_gpu.simulate.outcome import JobTransition, ModelEvent, ModelOutcome
from slurm_gpu.simulate.state import ModelState

_SCALES = ((GPU_MGPU, "1 GPU or less"), (8 * GPU_MGPU, "2 to 8 GPUs"), (32 * GPU_MGPU, "9 to 32 GPUs"))
_LARGEST_SCALE = "33 GPUs and more"
_NO_GPU = "no GPU"


@dataclass(frozen=True, slots=True)
class ScaleWaits:
    """Of jobs of one scale that started, in hours."""

    jobs: int
    mean_h: float
    median_h: float
    p95_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What counts of one run. Rates and GPU-hours are of the time from the first submission to the last."""

    jobs: int
    never_started: int
    utilisation: float
    """GPUs in use, as a part (0 to 1) of those there are."""
    stranded_gpu_hours: float
    """Free GPUs that the jobs of the day cannot use, expected over their mix (`Measure.FED`)."""
    idle_gpu_hours_while_waiting: float
    """Free GPUs while some job that asks for GPUs waited."""
    straddling: int
    """Jobs of several nodes that ran in more than one zone."""
    longest_as_first_h: float
    """The longest that a job waited after all before it in the queue had started."""
    waits: Mapping[str, ScaleWaits]
    """By scale."""


def mix_of(jobs: Jobs) -> Mix:
    """What these jobs ask for."""
    times = np.bincount(jobs.request, minlength=len(jobs.requests))
    return Mix.of(
        (replace(request, one_zone=False), int(n)) for request, n in zip(jobs.requests, times, strict=True)
    )


def in_one_zone_where_possible(cluster: ModelCluster, jobs: Jobs) -> Jobs:
    """These jobs, of which those of several nodes have to be in one zone if there is a zone that could do."""
    state = ModelState(cluster)
    pairs = sorted(set(zip(jobs.request.tolist(), jobs.partition.tolist(), strict=True)))
    requests = [replace(request, one_zone=request.nodes > 1) for request in jobs.requests]
    for code, partition in pairs:
        room = cluster.room(partition, requests[code].gpu_type)
        if not state.together(requests[code], state.fits(requests[code], room)).any():
            requests[code] = jobs.requests[code]
    return replace(jobs, requests=requests)


def longest_as_first_s(jobs: Jobs, outcome: ModelOutcome, among: Mask | None = None) -> float:
    """The longest that a job (of `among`) waited after it came and all before it had started, by partition.

    For queues in the order of submission. Jobs that never started do not count.
    """
    longest = 0.0
    for partition in np.unique(jobs.partition):
        mine = np.flatnonzero((jobs.partition == partition) & ~np.isnan(outcome.start_s))
        start_s = outcome.start_s[mine]
        before_s = np.concatenate(([-np.inf], np.maximum.accumulate(start_s)[:-1]))
        as_first_s = start_s - np.maximum(jobs.submit_s[mine], before_s)
        if among is not None:
            as_first_s = as_first_s[among[mine]]
        longest = max(longest, float(as_first_s.max(initial=0.0)))
    return longest


def figures(
    cluster: ModelCluster, jobs: Jobs, outcome: ModelOutcome, asked_mgpu: NDArray[np.int64] | None = None
) -> Figures:
    """Of a run with its log; raises ValueError where it has none.

    `asked_mgpu`: by job what it asked for in all, where its nodes differed: the model gives each as much as
    the largest of them.
    """
    if len(jobs) and not outcome.log:
        raise ValueError("figures need a log: simulate(…, log=True)")
    used, stranded, idle = _integrals(cluster, jobs, outcome)
    span_h = _span_h(jobs)
    capacity = cluster.total_gpus * span_h
    return Figures(
        jobs=len(jobs),
        never_started=int(np.isnan(outcome.start_s).sum()),
        utilisation=used / capacity if capacity else 0.0,
        stranded_gpu_hours=stranded,
        idle_gpu_hours_while_waiting=idle,
        straddling=_straddling(cluster, outcome.log),
        longest_as_first_h=longest_as_first_s(jobs, outcome) / 3600,
        waits=_waits(jobs, outcome, asked_mgpu),
    )


def _span_h(jobs: Jobs) -> float:
    return float(jobs.submit_s[-1] - jobs.submit_s[0]) / 3600 if len(jobs) else 0.0


def _integrals(cluster: ModelCluster, jobs: Jobs, outcome: ModelOutcome) -> tuple[float, float, float]:
    """GPU-hours in use, stranded, and idle while jobs waited for GPUs, between the submissions."""
    state, view, mix = ModelState(cluster), ModelView(cluster), mix_of(jobs)
    stranded = np.zeros(len(cluster.nodes))
    totals = np.zeros(3)
    free, waiting, last_s = float(cluster.total_gpus), 0, float(jobs.submit_s[0]) if len(jobs) else 0.0
    until_s = float(jobs.submit_s[-1]) if len(jobs) else 0.0
    for at_s, events in groupby(outcome.log, key=lambda event: event.at_s):
        hours = (min(at_s, until_s) - last_s) / 3600
        totals += (
            np.array((cluster.total_gpus - free, stranded.sum() / GPU_MGPU, free if waiting else 0)) * hours
        )
        if at_s >= until_s:
            break
        last_s = at_s
        for event in events:
            request = jobs.requests[jobs.request[event.job]]
            waiting += _comes(event) if request.mgpu else 0
            if event.what is JobTransition.START:
                state.start(event.job, request, event.nodes, event.devices, np.inf)
                free -= request.mgpu / GPU_MGPU
            elif event.what in (JobTransition.END, JobTransition.REQUEUE):
                state.end(event.job)
                free += request.mgpu / GPU_MGPU
        nodes, changed = view.nodes(state)
        stranded[changed] = stranded_mgpu(nodes, mix, at=changed)
    used, lost, idle = totals.tolist()
    return used, lost, idle


def _comes(event: ModelEvent) -> int:
    """How many more jobs wait."""
    return {JobTransition.SUBMIT: 1, JobTransition.REQUEUE: 1, JobTransition.END: 0}.get(event.what, -1)


def _straddling(cluster: ModelCluster, log: Sequence[ModelEvent]) -> int:
    jobs = {
        event.job
        for event in log
        if event.what is JobTransition.START and len({cluster.nodes[node].zone for node in event.nodes}) > 1
    }
    return len(jobs)


def _waits(jobs: Jobs, outcome: ModelOutcome, asked_mgpu: NDArray[np.int64] | None) -> dict[str, ScaleWaits]:
    mgpu = asked_mgpu
    if mgpu is None:
        mgpu = np.array([request.mgpu for request in jobs.requests], dtype=np.int64)[jobs.request]
    hours = (outcome.start_s - jobs.submit_s) / 3600
    return {
        name: _waits_of(found)
        for name, mask in _by_scale(mgpu)
        if len(found := hours[mask & ~np.isnan(hours)])
    }


def _by_scale(mgpu: NDArray[np.int64]) -> Iterator[tuple[str, Mask]]:
    yield _NO_GPU, mgpu == 0
    low = 0
    for high, name in _SCALES:
        yield name, (mgpu > low) & (mgpu <= high)
        low = high
    yield _LARGEST_SCALE, mgpu > low


def _waits_of(hours: NDArray[np.float64]) -> ScaleWaits:
    return ScaleWaits(
        len(hours), float(hours.mean()), float(np.median(hours)), float(np.quantile(hours, 0.95))
    )
