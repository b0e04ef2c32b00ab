"""Keep the last ten minutes of live values of all running jobs, and screen them for deviations.

All jobs share one array, so screening thousands of GPUs takes a few array operations. Screening finds jobs
that are worth a diagnosis; slurm_gpu.diagnose.judge returns the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import Metric, read_host_metrics
from slurm_gpu.diagnose.robust import MAD_TO_SIGMA, Matrix, median
from slurm_gpu.diagnose.series import BAD_THROTTLES, JobWorker, Series
from slurm_gpu.wire import DeviceFacts, LiveDevice

# Nodes send live values at this interval.
WIDTH_S = 10.0
N_BINS = 60
METRICS = (
    *(Metric.UTIL, Metric.MEM_USED, Metric.POWER, Metric.SM_CLOCK, Metric.SM_ACTIVE, Metric.TENSOR),
    *(Metric.THROTTLE, Metric.CPU, Metric.NETWORK, Metric.INFINIBAND),
)
BYTES_OF_A_GPU = len(METRICS) * N_BINS * 4
_PLACE = {metric: place for place, metric in enumerate(METRICS)}
_BAD = frozenset(BAD_THROTTLES)
# Values whose times are further in the future are ignored, because the node's clock is wrong.
_AHEAD_S = 30.0
_LEAST_ROWS = 64


class UnsharedWorker(NamedTuple):
    """A GPU that is allocated to a single job, and the ID of that job."""

    job_id: int
    worker: JobWorker


@dataclass(slots=True)
class _Job:
    start_s: float
    rows: dict[tuple[str, str], int]
    """Rows of the table, by node and UUID."""
    workers: dict[tuple[str, str], JobWorker]


class LiveTable:
    """Store live values in a float32 array (metric, row, bin).

    Each row belongs to a GPU, and its bins form a ring buffer over time.
    """

    def __init__(self) -> None:
        self._values = np.full((len(METRICS), _LEAST_ROWS, N_BINS), np.nan, dtype=np.float32)
        self._peaks = np.zeros((len(METRICS), _LEAST_ROWS))
        self._free = list(range(_LEAST_ROWS))[::-1]
        self._jobs: dict[int, _Job] = {}
        self._newest = -1
        """The number of the newest bin, counted from the epoch."""

    def update(
        self,
        now_s: float,
        jobs: Mapping[int, float],
        samples: Iterable[tuple[UnsharedWorker, float, tuple[float, ...]]],
    ) -> None:
        """Store new live values.

        Each sample consists of a worker, a wall-clock time and values in the order of METRICS, NaN if not
        measured.

        `jobs` maps all running jobs to their start times. If a start time changes, a new run has begun, and
        the values of the old one are dropped.
        """
        for job_id in [job_id for job_id, job in self._jobs.items() if jobs.get(job_id) != job.start_s]:
            self._drop(job_id)
        self._begin(int(now_s // WIDTH_S))
        rows, bins, values = [], [], []
        for owner, at_s, item in samples:
            at = int(at_s // WIDTH_S)
            start_s = jobs.get(owner.job_id)
            if start_s is None or not self._newest - N_BINS < at or at_s > now_s + _AHEAD_S or at_s < start_s:
                continue
            if at > self._newest:
                self._begin(at)
            job = self._jobs.setdefault(owner.job_id, _Job(start_s, {}, {}))
            place = owner.worker.node, owner.worker.device
            row = job.rows.get(place)
            if row is None:
                row = job.rows[place] = self._row()
            job.workers[place] = owner.worker
            rows.append(row)
            bins.append(at % N_BINS)
            values.append(item)
        if rows:
            self._values[:, rows, bins] = np.array(values, dtype=np.float32).T

    def keep_nodes(self, job_id: int, nodes: Collection[str]) -> None:
        """Remove a job's GPUs on nodes other than `nodes`, after the job was resized."""
        job = self._jobs.get(job_id)
        if job is None:
            return
        removed = [place for place in job.rows if place[0] not in nodes]
        rows = [job.rows.pop(place) for place in removed]
        for place in removed:
            del job.workers[place]
        self._clear(rows)

    def jobs(self) -> Mapping[int, int]:
        """Return the number of GPUs of each watched job. Jobs with a single GPU are omitted."""
        return {job_id: len(job.rows) for job_id, job in self._jobs.items() if len(job.rows) >= 2}

    def workers(self, job_id: int) -> Collection[JobWorker]:
        """Return the GPUs of one job; empty for a job without data."""
        job = self._jobs.get(job_id)
        return () if job is None else job.workers.values()

    def columns(self) -> NDArray[np.intp]:
        """Return the columns of the bins in chronological order."""
        return np.arange(self._newest - N_BINS + 1, self._newest + 1) % N_BINS

    def rows(self) -> tuple[list[int], NDArray[np.intp], NDArray[np.intp]]:
        """Return the watched jobs, the position of each job's first row, and the rows of all jobs."""
        watched = [(job_id, job.rows) for job_id, job in self._jobs.items() if len(job.rows) >= 2]
        sizes = [len(rows) for _, rows in watched]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if sizes else np.zeros(0)
        flat = np.fromiter((row for _, rows in watched for row in rows.values()), dtype=np.intp)
        return [job_id for job_id, _ in watched], starts.astype(np.intp), flat

    def matrix(self, metric: Metric, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the values of a metric in these rows (n_rows, N_BINS), in chronological order."""
        chosen: NDArray[np.float32] = self._values[_PLACE[metric]][np.ix_(rows, self.columns())]
        return chosen

    def peak(self, metric: Metric, rows: NDArray[np.intp], usual: Matrix) -> Matrix:
        """Return, for each row, the highest value of `usual` in this and all earlier calls.

        The maximum is kept even if a job hangs for longer than the table stores values.
        """
        peak = self._peaks[_PLACE[metric]]
        peak[rows] = np.fmax(peak[rows], usual)
        found: Matrix = peak[rows]
        return found

    def series(self, job_id: int) -> Series:
        """Return the series of one job for slurm_gpu.diagnose.judge; raise KeyError if it has no data."""
        job = self._jobs[job_id]
        workers = tuple(sorted(job.workers.values(), key=_order))
        rows = np.array([job.rows[worker.node, worker.device] for worker in workers], dtype=np.intp)
        whole = self._values[:, rows][:, :, self.columns()].astype(np.float64)
        has_data = np.isfinite(whole).any(axis=0)
        # Nodes report one after the other, so the current bin may still lack most values.
        there = np.flatnonzero(has_data.mean(axis=0) >= 0.5)
        first, stop = (int(there[0]), int(there[-1]) + 1) if there.size else (0, 0)
        values = {
            metric: whole[place, :, first:stop]
            for metric, place in _PLACE.items()
            if np.isfinite(whole[place, :, first:stop]).any()
        }
        start_s = (self._newest - N_BINS + 1 + first) * WIDTH_S
        return Series(workers=workers, start_s=start_s, width_s=WIDTH_S, n_bins=stop - first, values=values)

    @property
    def n_bytes(self) -> int:
        """Return the size of the array in bytes."""
        return int(self._values.nbytes)

    def _row(self) -> int:
        if not self._free:
            n = self._values.shape[1]
            more = np.full((len(METRICS), n, N_BINS), np.nan, dtype=np.float32)
            self._values = np.concatenate([self._values, more], axis=1)
            self._peaks = np.concatenate([self._peaks, np.zeros((len(METRICS), n))], axis=1)
            self._free = list(range(n, 2 * n))[::-1]
        return self._free.pop()

    def _drop(self, job_id: int) -> None:
        self._clear(list(self._jobs.pop(job_id).rows.values()))

    def _clear(self, rows: list[int]) -> None:
        self._values[:, rows] = np.nan
        self._peaks[:, rows] = 0.0
        self._free += rows

    def _begin(self, newest: int) -> None:
        """Clear all bins after the previously newest one, up to `newest`."""
        if newest > self._newest:
            n_new = min(newest - self._newest, N_BINS)
            self._values[:, :, np.arange(newest - n_new + 1, newest + 1) % N_BINS] = np.nan
            self._newest = newest


def _order(worker: JobWorker) -> tuple[str, float, str]:
    return worker.node, math.inf if worker.index is None else worker.index, worker.device


def fractions(device: LiveDevice, facts: DeviceFacts | None, host: Mapping[str, float]) -> tuple[float, ...]:
    """Return the last values of one GPU in the order and units of METRICS; NaN if unknown."""
    limit_w = None if facts is None else facts.power_limit_w
    clock_max = None if facts is None else facts.sm_clock_max_mhz
    return (
        math.nan if device.util_pct is None else device.util_pct / 100,
        _or_gap(device.mem_used_frac),
        _share(device.power_w, limit_w),
        _share(device.sm_clock_mhz, clock_max),
        _or_gap(device.sm_active_frac),
        _or_gap(device.tensor_frac),
        math.nan if device.throttle is None else float(not _BAD.isdisjoint(device.throttle)),
        *read_host_metrics(host),
    )


def _or_gap(value: float | None) -> float:
    return math.nan if value is None else value


def _share(value: float | None, whole: float | None) -> float:
    return math.nan if value is None or not whole else value / whole


@dataclass(frozen=True, slots=True)
class ScreeningResult:
    """The result of a screening, with one value per job (n_jobs,).

    `deviations` states, as a multiple of the threshold, how far a GPU moved relative to its peers or how far
    all GPUs fell below their past. A job with a value of 1 or more is worth a diagnosis. `is_stalled` marks
    jobs in which most GPUs do far less than before.
    """

    jobs: list[int]
    deviations: Matrix
    is_stalled: NDArray[np.bool_]


_LEAST_DEVIATIONS = {
    # Between identical GPUs with equal work, means over half a minute differ by less than these values.
    Metric.SM_CLOCK: 0.02,
    Metric.SM_ACTIVE: 0.03,
    Metric.POWER: 0.06,
    Metric.UTIL: 0.04,
    Metric.THROTTLE: 0.1,
}
_RATIOS = (Metric.SM_CLOCK, Metric.SM_ACTIVE, Metric.POWER)
_RECENT = 3
# Number of recent bins; older bins are a GPU's past.
_SETTLED = 6
_NOISES = 4.0
# Factor that raises the threshold for a GPU without a past, since roles and GPUs differ permanently.
_WITHOUT_PAST = 2.0
# Minimum relative fall, over all GPUs of a job, that is worth a diagnosis.
_LEAST_FALLS = {Metric.TENSOR: 0.05, Metric.POWER: 0.03, Metric.INFINIBAND: 0.08}
# Number of bins for a fall. A pause shorter than half of these bins may be a checkpoint.
_FALL_BINS = 6
_LAST = 2
_STALLED = 0.3
_IDLE_POWER = 0.12


def screen(table: LiveTable) -> ScreeningResult:
    """Screen all jobs at once, in O(GPUs × bins) time."""
    jobs, starts, rows = table.rows()
    deviations = np.zeros(len(jobs))
    is_stalled = np.zeros(len(jobs), dtype=bool)
    if jobs:
        counts = np.diff(np.append(starts, len(rows)))
        for metric, least in _LEAST_DEVIATIONS.items():
            deviations = np.maximum(
                deviations, _deviations(metric, least, table.matrix(metric, rows), starts, counts)
            )
        for metric, least in _LEAST_FALLS.items():
            deviations = np.maximum(deviations, _falls(least, table.matrix(metric, rows), starts))
        is_stalled = _stalled(table, rows, starts)
    return ScreeningResult(jobs, deviations, is_stalled)


def _deviations(
    metric: Metric,
    least: float,
    values: NDArray[np.float32],
    starts: NDArray[np.intp],
    counts: NDArray[np.intp],
) -> Matrix:
    """Return, for each job, the largest recent change of a GPU relative to its peers, in units of `least`."""
    if metric in _RATIOS:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(np.maximum(values, 0.01))
    apart = values - np.repeat(_of_jobs(values, starts), counts, axis=0)
    now, _ = _mean(apart[:, -_RECENT - 1 :])
    settled = apart[:, : -_SETTLED - _RECENT]
    has_past = np.isfinite(settled).sum(axis=1) >= _SETTLED
    # At the beginning of a job, the first node to report seems to deviate; the median ignores these bins.
    past = median(settled)
    moved = np.where(has_past, np.abs(now - past), np.abs(now) / _WITHOUT_PAST)
    far = moved / least
    noisy = np.flatnonzero(has_past & (far >= 1))
    if noisy.size:
        noise = MAD_TO_SIGMA / np.sqrt(_RECENT) * median(np.abs(settled[noisy] - past[noisy, None]))
        far[noisy] = moved[noisy] / np.maximum(least, _NOISES * noise)
    found: Matrix = np.maximum.reduceat(np.where(np.isfinite(far), far, 0.0), starts)
    return found


def _falls(least: float, values: NDArray[np.float32], starts: NDArray[np.intp]) -> Matrix:
    """Return how far the mean of each job's GPUs fell below its past, in units of `least`.

    Such a fall indicates a cause that affects all workers alike, such as slow links.
    """
    job = _of_jobs(values, starts).astype(np.float64)
    now, settled = median(job[:, -_FALL_BINS - 1 : -1]), job[:, : -_SETTLED - _RECENT]
    past = median(settled)
    noise = MAD_TO_SIGMA / np.sqrt(_FALL_BINS) * median(np.abs(settled - past[:, None]))
    has_past = np.isfinite(settled).sum(axis=1) >= _SETTLED
    with np.errstate(invalid="ignore", divide="ignore"):
        fell = (past - now) / np.maximum(least * past, _NOISES * noise)
    return np.where(has_past & np.isfinite(fell) & (fell > 0), fell, 0.0)


def _of_jobs(values: NDArray[np.float32], starts: NDArray[np.intp]) -> NDArray[Any]:
    """Return the mean of each job's GPUs in each bin (n_jobs, N_BINS), ignoring NaN."""
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0), starts, axis=0)
    number = np.add.reduceat(known.astype(np.float32), starts, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / number)


def _stalled(table: LiveTable, rows: NDArray[np.intp], starts: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Mark jobs in which most GPUs do far less than before, judged by the first known activity metric."""
    activity = np.full(len(rows), np.nan)
    for metric in (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.UTIL):
        values = table.matrix(metric, rows)
        amount = np.maximum(values - _IDLE_POWER, 0) if metric is Metric.POWER else values
        usual = table.peak(metric, rows, _mean(amount[:, :-_RECENT])[0])
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(usual > 0.01, _mean(amount[:, -_LAST:])[0] / usual, np.nan)
        activity = np.where(np.isfinite(activity), activity, share)
    known = np.isfinite(activity)
    quiet = np.add.reduceat((activity < _STALLED) & known, starts, dtype=np.intp)
    number = np.add.reduceat(known, starts, dtype=np.intp)
    return np.asarray((number > 0) & (quiet > 0.5 * number))


def _mean(rows: NDArray[np.floating[Any]]) -> tuple[Matrix, Matrix]:
    """Return the mean and number of the values in each row, ignoring NaN. The mean of no values is NaN."""
    known = np.isfinite(rows)
    number = known.sum(axis=1).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, rows, 0).sum(axis=1, dtype=np.float64) / number, number
