"""What a job's workers told, on one grid: worker × time, a matrix for each metric, NaN for gaps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import HOST_METRICS, Metric
from slurm_gpu.diagnose.robust import Matrix
from slurm_gpu.wire import DeviceFacts, Event, Timeline, Window
from slurm_gpu.wire.timeline import FULL, GAP

MAX_BINS = 4096
"""Of a grid: more than an hour at 1 s. What is longer is told by timelines, in 256 bins at most."""
BAD_THROTTLES = (
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
)
"""Reasons that are faults. The power cap is none: it is what a busy GPU runs into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorker:
    """One GPU of the job. `rank` as the launcher counts, `index` as its node does, where known.

    `shared`: other jobs hold it too.
    """

    node: str
    device: str
    rank: int | None = None
    index: int | None = None
    shared: bool = False

    @property
    def name(self) -> str:
        """As people read it."""
        if self.rank is not None:
            where = self.node if self.index is None else f"{self.node} GPU {self.index}"
            return f"rank {self.rank} ({where})" if where else f"rank {self.rank}"
        return f"{self.node} {self.device}" if self.index is None else f"{self.node} GPU {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeries:
    """What one worker told: bins of `width_s` from `start_s` (wall clock); all arrays equally long.

    `step`: what values are rounded to; 0 where they are not.
    """

    worker: JobWorker
    start_s: float
    width_s: float
    values: Mapping[Metric, Matrix]
    step: float = 0.0

    def __post_init__(self) -> None:
        if not self.width_s > 0:
            raise ValueError(f"{self.worker.name}: width_s must be above 0, not {self.width_s}")
        lengths = {metric.value: len(row) for metric, row in self.values.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{self.worker.name}: series must be equally long, not {lengths}")

    @property
    def n_bins(self) -> int:
        """How many bins there are."""
        return len(next(iter(self.values.values()), ()))

    @property
    def end_s(self) -> float:
        """Where the last bin ends."""
        return self.start_s + self.n_bins * self.width_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCourse:
    """What a node told of itself (HOST_METRICS): all of its workers get it."""

    node: str
    start_s: float
    width_s: float
    values: Mapping[Metric, Matrix]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """All workers on one grid of `width_s` from `start_s`: float64 (n_workers, n_bins), NaN is a gap.

    A metric that no worker told is not in `values`. `offsets_s` is by how much each node's clock was found
    to be ahead, and has been taken back. `step`: what the coarsest values are rounded to.
    """

    workers: tuple[JobWorker, ...]
    start_s: float
    width_s: float
    n_bins: int
    values: Mapping[Metric, Matrix]
    events: tuple[Event, ...] = ()
    offsets_s: Mapping[str, float] = field(default_factory=dict)
    step: float = 0.0

    def get(self, metric: Metric) -> Matrix | None:
        """The matrix of a metric, or None where nobody told it."""
        return self.values.get(metric)

    @property
    def end_s(self) -> float:
        """Where the last bin ends."""
        return self.start_s + self.n_bins * self.width_s

    @property
    def nodes(self) -> tuple[str, ...]:
        """In the order of the workers."""
        return tuple(dict.fromkeys(worker.node for worker in self.workers))

    def on(self, node: str) -> NDArray[np.intp]:
        """The rows of a node's workers."""
        return np.array(
            [row for row, worker in enumerate(self.workers) if worker.node == node], dtype=np.intp
        )

    def coverage(self) -> Matrix:
        """Of each worker, the share of the bins in which anything of its GPU was told (n_workers,)."""
        told = np.zeros((len(self.workers), self.n_bins), dtype=bool)
        for metric, matrix in self.values.items():
            if metric not in HOST_METRICS:
                told |= np.isfinite(matrix)
        return told.mean(axis=1) if self.n_bins else np.zeros(len(self.workers))


def course_of_timeline(worker: JobWorker, timeline: Timeline) -> WorkerSeries:
    """A timeline's series; they are named alike, and are fractions already."""
    values = {}
    for name, packed in timeline.series.items():
        levels = np.frombuffer(packed, dtype=np.uint8)
        values[Metric(name)] = np.where(levels == GAP, np.nan, levels / FULL)
    return WorkerSeries(
        worker=worker,
        start_s=float(timeline.start_s),
        width_s=float(timeline.width_s),
        values=values,
        step=1 / FULL,
    )


_THROTTLE = "throttle."
_OF_WINDOWS = {
    Metric.UTIL: ("util_pct", 0.01),
    Metric.SM_ACTIVE: ("sm_active_frac", 1.0),
    Metric.TENSOR: ("tensor_frac", 1.0),
    Metric.DRAM: ("dram_frac", 1.0),
    Metric.MEM_USED: ("mem_used_frac", 1.0),
}


def courses_of_windows(
    windows: Iterable[tuple[JobWorker, Window]], facts: Mapping[str, DeviceFacts] | None = None
) -> list[WorkerSeries]:
    """Windows as courses; `facts`, by device, tell what is the whole of power, clock and links."""
    raw = [(worker, window, _raw(window)) for worker, window in windows]
    if any(name.startswith(_THROTTLE) for _, window, _ in raw for name in window.series):
        for _, _, values in raw:
            _never_throttled(values)
    most: dict[Metric, float] = {}
    for _, _, values in raw:
        for metric in (Metric.POWER, Metric.SM_CLOCK, Metric.PCIE, Metric.NVLINK):
            if metric in values and np.isfinite(values[metric]).any():
                most[metric] = max(most.get(metric, 0.0), float(np.nanmax(values[metric])))
    courses = []
    for worker, window, values in raw:
        known = None if facts is None else facts.get(window.device)
        wholes = {} if known is None else _wholes(known)
        for metric, greatest in most.items():
            if metric in values:
                whole = wholes.get(metric, greatest)
                values[metric] = values[metric] / whole if whole > 0 else values[metric]
        courses.append(
            WorkerSeries(worker=worker, start_s=window.start_s, width_s=window.width_s, values=values)
        )
    return courses


def _never_throttled(values: dict[Metric, Matrix]) -> None:
    """A node tells of a reason from when it first held: until then it was 0 where others were told."""
    told = [np.isfinite(values[metric]) for metric in (Metric.SM_CLOCK, Metric.POWER) if metric in values]
    if told:
        there = np.logical_or.reduce(told)
        throttled = values.get(Metric.THROTTLE, np.full(there.shape, np.nan))
        values[Metric.THROTTLE] = np.where(there & np.isnan(throttled), 0.0, throttled)


def _wholes(facts: DeviceFacts) -> dict[Metric, float]:
    both = 2.0  # a link's facts are of one direction
    given = {
        Metric.POWER: facts.power_limit_w,
        Metric.SM_CLOCK: facts.sm_clock_max_mhz,
        Metric.PCIE: None if facts.pcie_bytes_per_s is None else both * facts.pcie_bytes_per_s,
        Metric.NVLINK: None if facts.nvlink_bytes_per_s is None else both * facts.nvlink_bytes_per_s,
    }
    return {metric: whole for metric, whole in given.items() if whole is not None}


def _raw(window: Window) -> dict[Metric, Matrix]:
    def row(name: str) -> Matrix | None:
        packed = window.series.get(name)
        return None if packed is None else np.frombuffer(packed, dtype="<f4").astype(np.float64)

    values = {}
    for metric, (name, scale) in _OF_WINDOWS.items():
        if (found := row(name)) is not None:
            values[metric] = found * scale
    for metric, name in ((Metric.POWER, "power_w"), (Metric.SM_CLOCK, "sm_clock_mhz")):
        if (found := row(name)) is not None:
            values[metric] = found
    for metric in (Metric.PCIE, Metric.NVLINK):
        received, sent = (row(f"{metric}_{way}_bytes_per_s") for way in ("rx", "tx"))
        if received is not None and sent is not None:
            values[metric] = received + sent
    throttles = [found for reason in BAD_THROTTLES if (found := row(f"{_THROTTLE}{reason}")) is not None]
    if throttles:
        # Several reasons hold at once: the longest is the least that it can have been.
        values[Metric.THROTTLE] = np.fmax.reduce(throttles)
    return values


def align(
    courses: Sequence[WorkerSeries],
    *,
    hosts: Sequence[HostCourse] = (),
    missing: Sequence[JobWorker] = (),
    events: Iterable[Event] = (),
) -> Series:
    """All courses on the grid of the widest bins; several of one worker (segments) are averaged.

    `missing` are workers that the job holds and that told nothing: their rows are gaps.
    """
    workers = tuple(dict.fromkeys([course.worker for course in courses] + list(missing)))
    workers = tuple(sorted(workers, key=_order))
    told = [course for course in courses if course.n_bins]
    events = tuple(sorted(events, key=lambda event: (event.at_s, event.node, event.n)))
    if not told:
        return Series(workers=workers, start_s=0.0, width_s=1.0, n_bins=0, values={}, events=events)
    width_s = max(course.width_s for course in told)
    start_s = min(course.start_s for course in told)
    end_s = max(course.end_s for course in told)
    while (end_s - start_s) / width_s > MAX_BINS:
        width_s *= 2
    start_s = np.floor(start_s / width_s) * width_s
    n_bins = int(np.ceil((end_s - start_s) / width_s - 1e-9))
    grid = _Grid(float(start_s), width_s, n_bins, len(workers))
    rows = {worker: row for row, worker in enumerate(workers)}
    for course in told:
        for metric, values in course.values.items():
            grid.add(metric, [rows[course.worker]], course.start_s, course.width_s, values)
    for host in hosts:
        on_node = [row for worker, row in rows.items() if worker.node == host.node]
        for metric, values in host.values.items():
            grid.add(metric, on_node, host.start_s, host.width_s, values)
    return Series(
        workers=workers,
        start_s=float(start_s),
        width_s=width_s,
        n_bins=n_bins,
        values=grid.means(),
        events=events,
        step=max(course.step for course in told),
    )


def _order(worker: JobWorker) -> tuple[object, ...]:
    """By rank; without ranks as launchers mostly count: nodes in natural order (n2, n10), and indices."""
    node = [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split("([0-9]+)", worker.node)]
    rank = -1 if worker.rank is None else worker.rank
    index = -1 if worker.index is None else worker.index
    return (worker.rank is None, rank, node, index, worker.device)


class _Grid:
    """Sums up what falls into each bin of the grid, by the middle of the bin it came in."""

    def __init__(self, start_s: float, width_s: float, n_bins: int, n_workers: int) -> None:
        self._start_s, self._width_s, self._shape = start_s, width_s, (n_workers, n_bins)
        self._sums: dict[Metric, Matrix] = {}
        self._counts: dict[Metric, Matrix] = {}

    def add(
        self, metric: Metric, rows: Sequence[int], start_s: float, width_s: float, values: Matrix
    ) -> None:
        n_bins = self._shape[1]
        # A bin wider than the grid's (a host's, as live values come) stands in each one that it holds.
        copies = max(1, round(width_s / self._width_s))
        at = start_s + (np.arange(len(values) * copies) + 0.5) * (width_s / copies)
        into = np.floor((at - self._start_s) / self._width_s).astype(np.intp)
        values = np.repeat(values, copies)
        good = np.isfinite(values) & (into >= 0) & (into < n_bins)
        sums = np.bincount(into[good], values[good], n_bins)
        counts = np.bincount(into[good], minlength=n_bins)
        if metric not in self._sums:
            self._sums[metric], self._counts[metric] = np.zeros(self._shape), np.zeros(self._shape)
        for row in rows:
            self._sums[metric][row] += sums
            self._counts[metric][row] += counts

    def means(self) -> dict[Metric, Matrix]:
        with np.errstate(invalid="ignore"):
            return {metric: sums / self._counts[metric] for metric, sums in self._sums.items()}
