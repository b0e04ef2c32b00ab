"""Align the data of a job's workers to one grid (worker × time) per metric, with NaN for missing values."""

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
from slurm_gpu.wire.window import FRACTIONS

# Maximum number of bins of a grid: over an hour with bins of 1 s. Data of longer periods come from timelines
# with at most 256 bins.
MAX_BINS = 4096
# Throttle reasons that are faults. Reaching the power cap is normal for a busy GPU.
BAD_THROTTLES = (
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorker:
    """One GPU of a job.

    `rank` is the launcher's rank, and `index` the GPU's index on the node, if known. `shared` states whether
    the GPU is also allocated to other jobs.
    """

    node: str
    device: str
    rank: int | None = None
    index: int | None = None
    shared: bool = False

    @property
    def name(self) -> str:
        """Return a name for users, such as `rank 5 (n1 GPU 5)`."""
        if self.rank is not None:
            where = self.node if self.index is None else f"{self.node} GPU {self.index}"
            return f"rank {self.rank} ({where})" if where else f"rank {self.rank}"
        return f"{self.node} {self.device}" if self.index is None else f"{self.node} GPU {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeries:
    """The series of one worker in bins of `width_s`, starting at `start_s` (wall clock).

    All arrays have the same length. `step` is the rounding step of values; 0 without rounding.
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
            raise ValueError(f"{self.worker.name}: series must have equal lengths, not {lengths}")

    @property
    def n_bins(self) -> int:
        """Return the number of bins."""
        return len(next(iter(self.values.values()), ()))

    @property
    def end_s(self) -> float:
        """Return the end of the last bin."""
        return self.start_s + self.n_bins * self.width_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeries:
    """The series of a node's HOST_METRICS, which apply to all workers on the node."""

    node: str
    start_s: float
    width_s: float
    values: Mapping[Metric, Matrix]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The metrics of all workers on one grid: float64 (n_workers, n_bins), NaN if missing.

    The grid begins at `start_s`, and its bins are `width_s` wide. `values` contains only metrics with
    data. `offsets_s` contains the offset of each node's clock, by which its times have been corrected; it is
    positive if the clock is ahead. `step` is the largest rounding step of the values.
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
        """Return the matrix of a metric; None if there are no data."""
        return self.values.get(metric)

    @property
    def end_s(self) -> float:
        """Return the end of the last bin."""
        return self.start_s + self.n_bins * self.width_s

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes in the order of the workers."""
        return tuple(dict.fromkeys(worker.node for worker in self.workers))

    def on(self, node: str) -> NDArray[np.intp]:
        """Return the rows of a node's workers."""
        return np.array(
            [row for row, worker in enumerate(self.workers) if worker.node == node], dtype=np.intp
        )

    def coverage(self) -> Matrix:
        """Return the share of bins in which each worker's GPU has any data (n_workers,)."""
        has_data = np.zeros((len(self.workers), self.n_bins), dtype=bool)
        for metric, matrix in self.values.items():
            if metric not in HOST_METRICS:
                has_data |= np.isfinite(matrix)
        return has_data.mean(axis=1) if self.n_bins else np.zeros(len(self.workers))


def worker_series_of_timeline(worker: JobWorker, timeline: Timeline) -> WorkerSeries:
    """Convert a timeline, which uses the same metric names and already contains fractions."""
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


def worker_series_of_windows(
    windows: Iterable[tuple[JobWorker, Window]], facts: Mapping[str, DeviceFacts] | None = None
) -> list[WorkerSeries]:
    """Convert windows to series.

    `facts` contains the limits of each device by which power, clock and link traffic are divided.
    """
    raw = [(worker, window, _raw(window)) for worker, window in windows]
    if any(name.startswith(_THROTTLE) for _, window, _ in raw for name in window.series):
        for _, _, values in raw:
            _never_throttled(values)
    most: dict[Metric, float] = {}
    for _, _, values in raw:
        for metric in (Metric.POWER, Metric.SM_CLOCK, Metric.PCIE, Metric.NVLINK):
            if metric in values and np.isfinite(values[metric]).any():
                most[metric] = max(most.get(metric, 0.0), float(np.nanmax(values[metric])))
    series = []
    for worker, window, values in raw:
        known = None if facts is None else facts.get(window.device)
        limits = {} if known is None else _limits(known)
        for metric, greatest in most.items():
            if metric in values:
                limit = limits.get(metric, greatest)
                values[metric] = values[metric] / limit if limit > 0 else values[metric]
        series.append(
            WorkerSeries(worker=worker, start_s=window.start_s, width_s=window.width_s, values=values)
        )
    return series


def _never_throttled(values: dict[Metric, Matrix]) -> None:
    """Set missing throttling values to 0, since nodes report no reason before its first occurrence."""
    known = [np.isfinite(values[metric]) for metric in (Metric.SM_CLOCK, Metric.POWER) if metric in values]
    if known:
        there = np.logical_or.reduce(known)
        throttled = values.get(Metric.THROTTLE, np.full(there.shape, np.nan))
        values[Metric.THROTTLE] = np.where(there & np.isnan(throttled), 0.0, throttled)


def _limits(facts: DeviceFacts) -> dict[Metric, float]:
    # The recorded capacity of a link is that of one direction.
    both = 2.0
    given = {
        Metric.POWER: facts.power_limit_w,
        Metric.SM_CLOCK: facts.sm_clock_max_mhz,
        Metric.PCIE: None if facts.pcie_bytes_per_s is None else both * facts.pcie_bytes_per_s,
        Metric.NVLINK: None if facts.nvlink_bytes_per_s is None else both * facts.nvlink_bytes_per_s,
    }
    return {metric: limit for metric, limit in given.items() if limit is not None}


def _raw(window: Window) -> dict[Metric, Matrix]:
    def row(name: str) -> Matrix | None:
        packed = window.series.get(name)
        return None if packed is None else np.frombuffer(packed, dtype="<f4").astype(np.float64)

    values = {}
    for metric, (name, scale) in FRACTIONS.items():
        if (found := row(name)) is not None:
            values[Metric(metric)] = found * scale
    for metric, name in ((Metric.POWER, "power_w"), (Metric.SM_CLOCK, "sm_clock_mhz")):
        if (found := row(name)) is not None:
            values[metric] = found
    for metric in (Metric.PCIE, Metric.NVLINK):
        received, sent = (row(f"{metric}_{way}_bytes_per_s") for way in ("rx", "tx"))
        if received is not None and sent is not None:
            values[metric] = received + sent
    throttles = [found for reason in BAD_THROTTLES if (found := row(f"{_THROTTLE}{reason}")) is not None]
    if throttles:
        # Reasons may overlap, so use the longest time of a single reason.
        values[Metric.THROTTLE] = np.fmax.reduce(throttles)
    return values


def align(
    series: Sequence[WorkerSeries],
    *,
    hosts: Sequence[HostSeries] = (),
    missing: Sequence[JobWorker] = (),
    events: Iterable[Event] = (),
) -> Series:
    """Align all series to a grid with the widest of their bins.

    Several series of one worker, from its segments, are averaged. `missing` lists the job's workers without
    data; their rows are NaN.
    """
    workers = tuple(dict.fromkeys([one.worker for one in series] + list(missing)))
    workers = tuple(sorted(workers, key=_order))
    with_data = [one for one in series if one.n_bins]
    events = tuple(sorted(events, key=lambda event: (event.at_s, event.node, event.n)))
    if not with_data:
        return Series(workers=workers, start_s=0.0, width_s=1.0, n_bins=0, values={}, events=events)
    width_s = max(one.width_s for one in with_data)
    start_s = min(one.start_s for one in with_data)
    end_s = max(one.end_s for one in with_data)
    while (end_s - start_s) / width_s > MAX_BINS:
        width_s *= 2
    start_s = np.floor(start_s / width_s) * width_s
    n_bins = int(np.ceil((end_s - start_s) / width_s - 1e-9))
    grid = _Grid(float(start_s), width_s, n_bins, len(workers))
    rows = {worker: row for row, worker in enumerate(workers)}
    for one in with_data:
        for metric, values in one.values.items():
            grid.add(metric, [rows[one.worker]], one.start_s, one.width_s, values)
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
        step=max(one.step for one in with_data),
    )


def _order(worker: JobWorker) -> tuple[object, ...]:
    """Return a key that sorts workers as launchers do: by rank, or by node (n2 before n10) and index."""
    node = [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split("([0-9]+)", worker.node)]
    rank = -1 if worker.rank is None else worker.rank
    index = -1 if worker.index is None else worker.index
    return (worker.rank is None, rank, node, index, worker.device)


class _Grid:
    """Sums of values per bin of a grid; a value is added to the bin that contains its own bin's centre."""

    def __init__(self, start_s: float, width_s: float, n_bins: int, n_workers: int) -> None:
        self._start_s, self._width_s, self._shape = start_s, width_s, (n_workers, n_bins)
        self._sums: dict[Metric, Matrix] = {}
        self._counts: dict[Metric, Matrix] = {}

    def add(
        self, metric: Metric, rows: Sequence[int], start_s: float, width_s: float, values: Matrix
    ) -> None:
        n_bins = self._shape[1]
        # A bin that is wider than those of the grid, such as a host's live value, is copied into each bin
        # that it covers.
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
