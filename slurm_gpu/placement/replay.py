"""Measure the outcome of a simulation: waiting times, utilisation and stranded GPUs."""

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
_LARGEST_SCALE = "33 GPUs or more"
_NO_GPU = "no GPU"


@dataclass(frozen=True, slots=True)
class ScaleWaits:
    """Waiting times, in hours, of the jobs of one scale that started."""

    jobs: int
    mean_h: float
    median_h: float
    p95_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one simulation; rates and GPU-hours cover the time from first to last submission."""

    jobs: int
    never_started: int
    utilisation: float
    """Mean share (0 to 1) of GPUs in use."""
    stranded_gpu_hours: float
    """Expected GPU-hours that the mix of the submitted jobs could not use (`StrandedMeasure.FED`)."""
    idle_gpu_hours_while_waiting: float
    """GPU-hours of free GPUs while at least one job that requests GPUs was waiting."""
    straddling: int
    """Number of multi-node jobs that ran in more than one zone."""
    longest_as_first_h: float
    """Longest time for which a job waited at the head of the queue."""
    waits: Mapping[str, ScaleWaits]
    """By scale."""


def mix_of(jobs: Jobs) -> Mix:
    """Return the mix of these jobs' requests."""
    times = np.bincount(jobs.request, minlength=len(jobs.requests))
    return Mix.of(
        (replace(request, one_zone=False), int(n)) for request, n in zip(jobs.requests, times, strict=True)
    )


def in_one_zone_where_possible(cluster: ModelCluster, jobs: Jobs) -> Jobs:
    """Require the nodes of each multi-node job to be in one zone if some zone could host the job."""
    state = ModelState(cluster)
    pairs = sorted(set(zip(jobs.request.tolist(), jobs.partition.tolist(), strict=True)))
    requests = [replace(request, one_zone=request.nodes > 1) for request in jobs.requests]
    for code, partition in pairs:
        room = cluster.room(partition, requests[code].gpu_type)
        if not state.together(requests[code], state.fits(requests[code], room)).any():
            requests[code] = jobs.requests[code]
    return replace(jobs, requests=requests)


def longest_as_first_s(jobs: Jobs, outcome: ModelOutcome, among: Mask | None = None) -> float:
    """Return the longest time that a job waited at the head of its partition's queue.

    The wait counts from the submission or from the start of the last job before it, whichever is later.
    Jobs must be queued in the order of submission. Jobs that never started do not count, nor do jobs outside
    `among`.
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
    """Return the figures of a simulation with a log; raise ValueError if it has no log.

    `asked_mgpu` is the total request of each job, for jobs that request different amounts on their nodes. The
    model allocates the largest of these amounts on each node.
    """
    if len(jobs) and not outcome.log:
        raise ValueError("figures need a log: simulate(…, log=True)")
    used, stranded, idle = _integrals(cluster, jobs, outcome)
    span_h = float(jobs.submit_s[-1] - jobs.submit_s[0]) / 3600 if len(jobs) else 0.0
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


def _integrals(cluster: ModelCluster, jobs: Jobs, outcome: ModelOutcome) -> tuple[float, float, float]:
    """Return the GPU-hours that were in use, stranded, and idle while jobs waited.

    They cover the time from the first to the last submission.
    """
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
    """Return the change in the number of waiting jobs."""
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
