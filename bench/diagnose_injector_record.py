"""Create slurm-gpud's records of an injected training run: the window second by second, or the timeline.

Sampling is as in docs/slurm-gpud.md: utilisation and memory every second, other metrics every `details_s`, at
a different offset on each node. Counters are means between two samples; the clock and throttle reasons are
means of both samples. Clocks of nodes differ by up to 2 s, NVML's rounding is applied, and there are gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.diagnose_injector_job import Floats, Job
from bench.diagnose_injector_play import (
    CLOCK,
    CPU,
    DRAM,
    INFINIBAND,
    NETWORK,
    NVLINK,
    PCIE,
    POWER,
    SM,
    TENSOR,
    THROTTLE,
    UTIL,
    Play,
)
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import HostSeries, JobWorker, Series, WorkerSeries, align
from slurm_gpu.wire import Event

START_S = 1_790_000_000.0
"""Wall clock of second 0 of a recording."""
EDGE_S = 4.0
"""Seconds by which a play exceeds both ends of its recording, since clocks differ."""
_HOST_S = 10.0
_LEVELS = 250
NOISE = {
    POWER: 0.008,
    SM: 0.003,
    TENSOR: 0.005,
    DRAM: 0.01,
    NVLINK: 0.005,
    PCIE: 0.02,
    CLOCK: 0.001,
}
_NAMES = {
    UTIL: Metric.UTIL,
    SM: Metric.SM_ACTIVE,
    TENSOR: Metric.TENSOR,
    DRAM: Metric.DRAM,
    POWER: Metric.POWER,
    CLOCK: Metric.SM_CLOCK,
    THROTTLE: Metric.THROTTLE,
    NVLINK: Metric.NVLINK,
    PCIE: Metric.PCIE,
}
_CLOCK_STEP = 15 / 1980


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """The settings with which one case was recorded."""

    offsets_s: Floats
    """The offset of each node's clock."""
    details_s: float
    phases_s: Floats
    gaps: tuple[tuple[int, float, float], ...]
    """Periods without reports, as (node, from, to)."""
    silent: tuple[int, ...]
    """Nodes that report nothing."""
    hosts: bool
    lost: tuple[tuple[int, float], ...] = ()
    """Workers whose GPUs fell off the bus, and the times of these events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Values of each worker (n_workers, n) in bins of `width_s`, and the times at which they became known."""

    job: Job
    workers: tuple[JobWorker, ...]
    values: dict[Metric, Floats]
    hosts: dict[Metric, Floats]
    known_s: dict[Metric, Floats]
    width_s: float
    step: float
    silent: tuple[int, ...]
    events: tuple[Event, ...] = ()

    def series(self, until_s: float | None = None) -> Series:
        """Return the values known at a second of the recording, by default at its end."""
        n = next(iter(self.values.values())).shape[1]
        end = n if until_s is None else int(until_s // self.width_s)
        courses, node = [], self.job.node()
        for row, worker in enumerate(self.workers):
            if node[row] in self.silent:
                continue
            reported = {}
            for metric, matrix in self.values.items():
                line = matrix[row, :end]
                if until_s is not None and metric in self.known_s:
                    line = np.where(self.known_s[metric][row, :end] <= until_s, line, np.nan)
                if np.isfinite(line).any():
                    reported[metric] = line
            courses.append(
                WorkerSeries(
                    worker=worker, start_s=START_S, width_s=self.width_s, values=reported, step=self.step
                )
            )
        missing = [worker for row, worker in enumerate(self.workers) if node[row] in self.silent]
        hosts = [
            HostSeries(
                node=f"n{number + 1}",
                start_s=START_S,
                width_s=_HOST_S,
                values={
                    metric: matrix[number, : int(end * self.width_s // _HOST_S)]
                    for metric, matrix in self.hosts.items()
                },
            )
            for number in range(self.job.n_nodes)
            if self.hosts and number not in self.silent
        ]
        known = START_S + (n * self.width_s if until_s is None else until_s)
        # Xids are read with the detailed samples, the last of which may be ten seconds old.
        events = [event for event in self.events if event.at_s <= known]
        return align(courses, hosts=hosts, missing=missing, events=events)


def workers_of(job: Job) -> tuple[JobWorker, ...]:
    """Return workers by node, UUID and index, as the command names them."""
    return tuple(
        JobWorker(
            node=f"n{rank // job.per_node + 1}",
            device=f"GPU-{rank // job.per_node + 1:04x}-{rank % job.per_node:x}",
            index=rank % job.per_node,
        )
        for rank in range(job.n_workers)
    )


def draw_collector(job: Job, rng: np.random.Generator, length_s: float, *, gaps: bool = True) -> Collector:
    """Draw settings: clocks up to 2 s apart; gaps in a quarter of the cases, a silent node in one of 25."""
    details_s = 10.0
    found = []
    if gaps and rng.random() < 0.25:
        for _ in range(int(rng.integers(1, 3))):
            begin = float(rng.uniform(0, length_s * 0.9))
            found.append(
                (int(rng.integers(job.n_nodes)), begin, begin + length_s * float(rng.uniform(0.02, 0.08)))
            )
    silent = (int(rng.integers(job.n_nodes)),) if gaps and job.n_nodes > 3 and rng.random() < 0.04 else ()
    return Collector(
        offsets_s=np.clip(rng.normal(0, 0.6, job.n_nodes), -2, 2)
        if rng.random() < 0.5
        else np.zeros(job.n_nodes),
        details_s=details_s,
        phases_s=rng.uniform(0, details_s, job.n_nodes),
        gaps=tuple(found),
        silent=silent,
        hosts=bool(rng.random() < 0.5),
    )


def record_window(
    play: Play, collector: Collector, seconds: int, rng: np.random.Generator, events: Sequence[Event] = ()
) -> Recording:
    """Record a window of a number of seconds."""
    job = play.job
    times, workers, nodes = play.integrals()
    node = job.node()
    values = {metric: np.full((job.n_workers, seconds), np.nan) for metric in _reported_metrics(job)}
    known = np.full((job.n_workers, seconds), np.inf)
    util_known = np.broadcast_to(np.arange(1.0, seconds + 1), (job.n_workers, seconds))
    offset = collector.offsets_s
    wander = temperature(job, rng, np.arange(seconds, dtype=np.float64) + 0.5)
    for number in range(job.n_nodes):
        rows = node == number
        seconds_at = np.arange(seconds + 1) - offset[number]
        util = np.diff(values_at(times, workers[:, rows, UTIL], seconds_at), axis=0).T
        values[Metric.UTIL][rows] = _percent(util, rng)
        begin = collector.phases_s[number] - collector.details_s
        samples_s = np.arange(begin, seconds + collector.details_s, collector.details_s)
        samples_s = samples_s[(samples_s >= -EDGE_S + 1) & (samples_s <= seconds)]
        here = workers[:, rows]
        summed = values_at(times, here, samples_s - offset[number])
        before = values_at(times, here[..., [CLOCK, THROTTLE]], samples_s - offset[number] - 1.0)
        means = np.diff(summed, axis=0) / np.diff(samples_s)[:, None, None]
        seen = summed[..., [CLOCK, THROTTLE]] - before
        seen[..., 1] = rng.random(seen[..., 1].shape) < seen[..., 1]
        means[..., SM] /= np.maximum(means[..., CLOCK], 1e-9)
        means[..., TENSOR] /= np.maximum(means[..., CLOCK], 1e-9)
        means[..., [CLOCK, THROTTLE]] = (seen[:-1] + seen[1:]) / 2
        # A sample applies to the seconds whose middle is before it.
        which = np.searchsorted(samples_s, np.arange(seconds) + 0.5) - 1
        there = (which >= 0) & (which < len(means))
        for channel, metric in _NAMES.items():
            if metric in values and channel != UTIL:
                readings = _noisy(channel, means[..., channel].T, rng)
                values[metric][np.ix_(rows, there)] = readings[:, which[there]]
        known[np.ix_(rows, there)] = samples_s[1:][which[there]]
    for channel in (CLOCK, POWER):
        if not (job.clock > 0.965).all():  # under a power cap, clocks follow the temperature
            values[_NAMES[channel]] *= wander
    values[Metric.SM_CLOCK] = np.round(values[Metric.SM_CLOCK] / _CLOCK_STEP) * _CLOCK_STEP
    values[Metric.MEM_USED] = _memory(job, seconds, rng)
    hosts = _hosts(job, times, nodes, np.arange(0, seconds + 1, _HOST_S)[:, None] - offset, rng)
    recording = Recording(
        job=job,
        workers=workers_of(job),
        values=values,
        hosts=hosts if collector.hosts else {},
        known_s={
            metric: util_known if metric in (Metric.UTIL, Metric.MEM_USED) else known for metric in values
        },
        width_s=1.0,
        step=0.0,
        silent=collector.silent,
        events=tuple(events),
    )
    _forget(recording, collector)
    return recording


def record_timeline(
    play: Play, collector: Collector, seconds: int, rng: np.random.Generator, events: Sequence[Event] = ()
) -> Recording:
    """Record the whole timeline in at most 256 bins, of one byte each."""
    job = play.job
    width = 1.0
    while seconds / width > 256:
        width *= 2
    edges = np.arange(0, seconds + 1e-9, width)
    times, workers, _ = play.integrals()
    means = np.diff(values_at(times, workers, edges), axis=0) / width
    throttled = means[..., THROTTLE].mean(axis=0)
    means[..., SM] /= np.maximum(means[..., CLOCK], 1e-9)
    means[..., TENSOR] /= np.maximum(means[..., CLOCK], 1e-9)
    values: dict[Metric, Floats] = {}
    root_n_samples = np.sqrt(width / collector.details_s)
    wander = temperature(job, rng, (edges[:-1] + edges[1:]) / 2)
    for channel, metric in _NAMES.items():
        if metric in _reported_metrics(job) and metric not in (Metric.DRAM, Metric.THROTTLE):
            readings = means[..., channel].T
            readings = readings * (
                1 + rng.normal(0, NOISE.get(channel, 0.002) / root_n_samples, readings.shape)
            )
            values[metric] = readings * wander if channel in (CLOCK, POWER) else readings
    values[Metric.MEM_USED] = _memory(job, len(means), rng)
    values = {
        metric: np.round(np.clip(matrix, 0, 1) * _LEVELS) / _LEVELS for metric, matrix in values.items()
    }
    values[Metric.THROTTLE] = np.repeat(throttled[:, None], len(means), axis=1)
    recording = Recording(
        job=job,
        workers=workers_of(job),
        values=values,
        hosts={},
        known_s={},
        width_s=width,
        step=1 / _LEVELS,
        silent=collector.silent,
        events=tuple(events),
    )
    _forget(recording, collector)
    return recording


def _reported_metrics(job: Job) -> list[Metric]:
    unsupported = set() if job.model.gpm else {Metric.SM_ACTIVE, Metric.TENSOR, Metric.DRAM}
    if job.model.nvlink is None:
        unsupported.add(Metric.NVLINK)
    return [metric for metric in _NAMES.values() if metric not in unsupported]


def values_at(times: Floats, summed: Floats, moments: Floats) -> Floats:
    """Return the integrals at any times (n_moments, …), with linear interpolation."""
    index = np.clip(np.searchsorted(times, moments, side="right") - 1, 0, len(times) - 2)
    part = (moments - times[index]) / np.maximum(times[index + 1] - times[index], 1e-9)
    part = np.clip(part, 0, 1).reshape(-1, *[1] * (summed.ndim - 1))
    low = summed[index]
    return np.asarray(low + part * (summed[index + 1] - low))


def _percent(util: Floats, rng: np.random.Generator) -> Floats:
    """Return whole percents, several samples per second, as in the driver's buffer."""
    return np.clip(np.round(100 * util + rng.normal(0, 0.3, util.shape)), 0, 100) / 100


def _noisy(channel: int, means: Floats, rng: np.random.Generator) -> Floats:
    if channel == THROTTLE:
        return means
    return np.asarray(means * (1 + rng.normal(0, NOISE[channel], means.shape)))


def temperature(job: Job, rng: np.random.Generator, at_s: Floats) -> Floats:
    """Return the temperature (n_workers, n): slow waves of each GPU, and the room's daily cycle."""
    own = rng.uniform(0, 0.004, (job.n_workers, 1)) * np.sin(
        at_s / rng.uniform(60, 300, (job.n_workers, 1)) + rng.uniform(0, 6.3, (job.n_workers, 1))
    )
    day = rng.uniform(0, 0.008) * np.sin(at_s / 86400 * 2 * np.pi + rng.uniform(0, 6.3))
    return np.asarray(1 + own + day)


def _memory(job: Job, n: int, rng: np.random.Generator) -> Floats:
    """Return memory as allocators keep it: constant, with rare growth."""
    grown = np.where(rng.random(job.n_workers) < 0.1, rng.uniform(0, 0.01, job.n_workers), 0.0)
    since = rng.uniform(0, n, job.n_workers)
    grows = np.arange(n) >= since[:, None]
    return np.asarray(np.minimum(job.memory[:, None] + grown[:, None] * grows, 1.0))


def _hosts(
    job: Job, times: Floats, nodes: Floats, edges: Floats, rng: np.random.Generator
) -> dict[Metric, Floats]:
    found = np.stack(
        [
            np.diff(values_at(times, nodes[:, number], edges[:, number]), axis=0) / _HOST_S
            for number in range(job.n_nodes)
        ]
    )
    found = found * (1 + rng.normal(0, 0.02, found.shape))
    hosts = {Metric.CPU: np.clip(found[..., CPU], 0, 1), Metric.NETWORK: found[..., NETWORK]}
    if job.n_nodes > 1:
        hosts[Metric.INFINIBAND] = found[..., INFINIBAND]
    return hosts


def _forget(recording: Recording, collector: Collector) -> None:
    """Set values to NaN in gaps, and for lost GPUs."""
    node = recording.job.node()
    n = next(iter(recording.values.values())).shape[1]
    at = np.arange(n) * recording.width_s
    for number, begin, end in collector.gaps:
        gone = np.ix_(node == number, (at >= begin) & (at < end))
        for matrix in recording.values.values():
            matrix[gone] = np.nan
    for worker, since in collector.lost:
        for matrix in recording.values.values():
            matrix[worker, at >= since] = np.nan
