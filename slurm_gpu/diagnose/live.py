"""The last ten minutes of the GPUs of all jobs that run, by what nodes tell each ten seconds.

All jobs lie in one array, so that a look over thousands of GPUs is a few operations on it. That finds who
looks different; whether that is trouble, slurm_gpu.diagnose.judge says.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import Metric, of_host
from slurm_gpu.diagnose.robust import MAD_TO_SIGMA, Matrix, median
from slurm_gpu.diagnose.series import BAD_THROTTLES, JobWorker, Series
from slurm_gpu.wire import DeviceFacts, LiveDevice

WIDTH_S = 10.0
"""So often a node tells."""
N_BINS = 60
METRICS = (
    *(Metric.UTIL, Metric.MEM_USED, Metric.POWER, Metric.SM_CLOCK, Metric.SM_ACTIVE, Metric.TENSOR),
    *(Metric.THROTTLE, Metric.CPU, Metric.NETWORK, Metric.INFINIBAND),
)
BYTES_OF_A_GPU = len(METRICS) * N_BINS * 4
_PLACE = {metric: place for place, metric in enumerate(METRICS)}
_BAD = frozenset(BAD_THROTTLES)
_AHEAD_S = 30.0
"""A clock that is farther ahead is not believed."""
_LEAST_ROWS = 64


class SoleHolder(NamedTuple):
    """A job that holds a GPU alone, and which GPU that is."""

    job_id: int
    worker: JobWorker


@dataclass(slots=True)
class _Job:
    start_s: float
    rows: dict[tuple[str, str], int]
    """By node and UUID."""
    workers: dict[tuple[str, str], JobWorker]


class LiveTable:
    """float32 (metric, row, bin): rows are GPUs in the order in which they came, bins a ring over time."""

    def __init__(self) -> None:
        self._values = np.full((len(METRICS), _LEAST_ROWS, N_BINS), np.nan, dtype=np.float32)
        self._most = np.zeros((len(METRICS), _LEAST_ROWS))
        self._free = list(range(_LEAST_ROWS))[::-1]
        self._jobs: dict[int, _Job] = {}
        self._newest = -1
        """The bin, counted from the epoch, that was begun last."""

    def look(
        self,
        now_s: float,
        jobs: Mapping[int, float],
        told: Iterable[tuple[SoleHolder, float, tuple[float, ...]]],
    ) -> None:
        """Take in what was told: (who, wall clock, values as METRICS), NaN for gaps.

        `jobs` are all that run, and since when: another start is another run, watched anew.
        """
        for job_id in [job_id for job_id, job in self._jobs.items() if jobs.get(job_id) != job.start_s]:
            self._drop(job_id)
        self._begin(int(now_s // WIDTH_S))
        rows, bins, values = [], [], []
        for holder, at_s, item in told:
            at = int(at_s // WIDTH_S)
            start_s = jobs.get(holder.job_id)
            if start_s is None or not self._newest - N_BINS < at or at_s > now_s + _AHEAD_S or at_s < start_s:
                continue
            if at > self._newest:
                self._begin(at)
            job = self._jobs.setdefault(holder.job_id, _Job(start_s, {}, {}))
            place = holder.worker.node, holder.worker.device
            row = job.rows.get(place)
            if row is None:
                row = job.rows[place] = self._row()
            job.workers[place] = holder.worker
            rows.append(row)
            bins.append(at % N_BINS)
            values.append(item)
        if rows:
            self._values[:, rows, bins] = np.array(values, dtype=np.float32).T

    def keep(self, job_id: int, nodes: Collection[str]) -> None:
        """A job was resized: GPUs of other nodes are its own no more, and are missed by nobody."""
        job = self._jobs.get(job_id)
        if job is None:
            return
        gone = [place for place in job.rows if place[0] not in nodes]
        rows = [job.rows.pop(place) for place in gone]
        for place in gone:
            del job.workers[place]
        self._forget(rows)

    def jobs(self) -> Mapping[int, int]:
        """How many GPUs each job has that is watched: two and more, since one has no peers."""
        return {job_id: len(job.rows) for job_id, job in self._jobs.items() if len(job.rows) >= 2}

    def workers(self, job_id: int) -> Collection[JobWorker]:
        """The GPUs of one job; none of one that nobody told of."""
        job = self._jobs.get(job_id)
        return () if job is None else job.workers.values()

    def columns(self) -> NDArray[np.intp]:
        """The bins in the order of time, the newest last."""
        return np.arange(self._newest - N_BINS + 1, self._newest + 1) % N_BINS

    def rows(self) -> tuple[list[int], NDArray[np.intp], NDArray[np.intp]]:
        """(jobs, where each begins in the rows, the rows of all): of jobs that are watched."""
        watched = [(job_id, job.rows) for job_id, job in self._jobs.items() if len(job.rows) >= 2]
        sizes = [len(rows) for _, rows in watched]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if sizes else np.zeros(0)
        flat = np.fromiter((row for _, rows in watched for row in rows.values()), dtype=np.intp)
        return [job_id for job_id, _ in watched], starts.astype(np.intp), flat

    def matrix(self, metric: Metric, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """(n_rows, N_BINS) of a metric, in the order of time."""
        chosen: NDArray[np.float32] = self._values[_PLACE[metric]][np.ix_(rows, self.columns())]
        return chosen

    def most(self, metric: Metric, rows: NDArray[np.intp], usual: Matrix) -> Matrix:
        """The greatest `usual` (n_rows,) that was ever asked about: who hangs for long has it still."""
        most = self._most[_PLACE[metric]]
        most[rows] = np.fmax(most[rows], usual)
        found: Matrix = most[rows]
        return found

    def series(self, job_id: int) -> Series:
        """What one job's GPUs told, for slurm_gpu.diagnose.judge; KeyError for one that is not watched."""
        job = self._jobs[job_id]
        workers = tuple(sorted(job.workers.values(), key=_order))
        rows = np.array([job.rows[worker.node, worker.device] for worker in workers], dtype=np.intp)
        whole = self._values[:, rows][:, :, self.columns()].astype(np.float64)
        said = np.isfinite(whole).any(axis=0)
        # Nodes tell one after the other: of the bin that is going on there may be too few yet.
        there = np.flatnonzero(said.mean(axis=0) >= 0.5)
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
        """Of the array."""
        return int(self._values.nbytes)

    def _row(self) -> int:
        if not self._free:
            n = self._values.shape[1]
            more = np.full((len(METRICS), n, N_BINS), np.nan, dtype=np.float32)
            self._values = np.concatenate([self._values, more], axis=1)
            self._most = np.concatenate([self._most, np.zeros((len(METRICS), n))], axis=1)
            self._free = list(range(n, 2 * n))[::-1]
        return self._free.pop()

    def _drop(self, job_id: int) -> None:
        self._forget(list(self._jobs.pop(job_id).rows.values()))

    def _forget(self, rows: list[int]) -> None:
        self._values[:, rows] = np.nan
        self._most[:, rows] = 0.0
        self._free += rows

    def _begin(self, newest: int) -> None:
        """Make room for a bin, and for those since the last that nobody told of."""
        if newest > self._newest:
            n_new = min(newest - self._newest, N_BINS)
            self._values[:, :, np.arange(newest - n_new + 1, newest + 1) % N_BINS] = np.nan
            self._newest = newest


def _order(worker: JobWorker) -> tuple[str, float, str]:
    return worker.node, math.inf if worker.index is None else worker.index, worker.device


def fractions(device: LiveDevice, facts: DeviceFacts | None, host: Mapping[str, float]) -> tuple[float, ...]:
    """One GPU's last values as METRICS; what cannot be told as a fraction is a gap."""
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
        *of_host(host),
    )


def _or_gap(value: float | None) -> float:
    return math.nan if value is None else value


def _share(value: float | None, whole: float | None) -> float:
    return math.nan if value is None or not whole else value / whole


@dataclass(frozen=True, slots=True)
class Screened:
    """Of each job (n_jobs,): how far a GPU strays from its place among its peers, or all of them fell below
    what they did; whether the job stands.

    From 1 on it is worth a closer look. A job that stands does next to nothing of what it did.
    """

    jobs: list[int]
    strays: Matrix
    stands: NDArray[np.bool_]


_LOOKED_AT = {
    # What is told of two GPUs that are alike, and do alike, differs by less, in means over half a minute.
    Metric.SM_CLOCK: 0.02,
    Metric.SM_ACTIVE: 0.03,
    Metric.POWER: 0.06,
    Metric.UTIL: 0.04,
    Metric.THROTTLE: 0.1,
}
_RATIOS = (Metric.SM_CLOCK, Metric.SM_ACTIVE, Metric.POWER)
_RECENT = 3
_SETTLED = 6
"""Bins: older ones are a GPU's past."""
_NOISES = 4.0
_UNLIKE = 2.0
"""Times as much has somebody to differ who has no past yet: roles differ, and so do GPUs, for ever."""
_FELL = {Metric.TENSOR: 0.05, Metric.POWER: 0.03, Metric.INFINIBAND: 0.08}
"""So much less than before does a job as a whole that is worth a look."""
_FALLEN = 6
"""Bins: what passes within half of them is a checkpoint or the like."""
_LAST = 2
_STANDS = 0.3
_IDLE_POWER = 0.12


def screen(table: LiveTable) -> Screened:
    """All jobs at once: some forty passes over an array, O(GPUs × bins)."""
    jobs, starts, rows = table.rows()
    strays = np.zeros(len(jobs))
    stands = np.zeros(len(jobs), dtype=bool)
    if jobs:
        counts = np.diff(np.append(starts, len(rows)))
        for metric, least in _LOOKED_AT.items():
            strays = np.maximum(strays, _strays(metric, least, table.matrix(metric, rows), starts, counts))
        for metric, least in _FELL.items():
            strays = np.maximum(strays, _fallen(least, table.matrix(metric, rows), starts))
        stands = _standing(table, rows, starts)
    return Screened(jobs, strays, stands)


def _strays(
    metric: Metric,
    least: float,
    told: NDArray[np.float32],
    starts: NDArray[np.intp],
    counts: NDArray[np.intp],
) -> Matrix:
    """How far each job's farthest GPU moved among its peers lately, in what is worth a look."""
    if metric in _RATIOS:
        with np.errstate(divide="ignore", invalid="ignore"):
            told = np.log(np.maximum(told, 0.01))
    apart = told - np.repeat(_of_jobs(told, starts), counts, axis=0)
    now, _ = _mean(apart[:, -_RECENT - 1 :])
    settled = apart[:, : -_SETTLED - _RECENT]
    has_past = np.isfinite(settled).sum(axis=1) >= _SETTLED
    # By medians: at the beginning of a job one node is heard of before another, which lies far apart.
    past = median(settled)
    moved = np.where(has_past, np.abs(now - past), np.abs(now) / _UNLIKE)
    far = moved / least
    noisy = np.flatnonzero(has_past & (far >= 1))
    if noisy.size:
        noise = MAD_TO_SIGMA / np.sqrt(_RECENT) * median(np.abs(settled[noisy] - past[noisy, None]))
        far[noisy] = moved[noisy] / np.maximum(least, _NOISES * noise)
    found: Matrix = np.maximum.reduceat(np.where(np.isfinite(far), far, 0.0), starts)
    return found


def _fallen(least: float, told: NDArray[np.float32], starts: NDArray[np.intp]) -> Matrix:
    """How far each job as a whole fell below what it did, in what is worth a look.

    Links that are slow for all move nobody among its peers.
    """
    job = _of_jobs(told, starts).astype(np.float64)
    now, settled = median(job[:, -_FALLEN - 1 : -1]), job[:, : -_SETTLED - _RECENT]
    past = median(settled)
    noise = MAD_TO_SIGMA / np.sqrt(_FALLEN) * median(np.abs(settled - past[:, None]))
    has_past = np.isfinite(settled).sum(axis=1) >= _SETTLED
    with np.errstate(invalid="ignore", divide="ignore"):
        fell = (past - now) / np.maximum(least * past, _NOISES * noise)
    return np.where(has_past & np.isfinite(fell) & (fell > 0), fell, 0.0)


def _of_jobs(told: NDArray[np.float32], starts: NDArray[np.intp]) -> NDArray[Any]:
    """The mean of each job's GPUs in each bin (n_jobs, N_BINS), without gaps."""
    known = np.isfinite(told)
    sums = np.add.reduceat(np.where(known, told, 0), starts, axis=0)
    number = np.add.reduceat(known.astype(np.float32), starts, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / number)


def _standing(table: LiveTable, rows: NDArray[np.intp], starts: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Jobs of which most GPUs do far less than they did: by the tensor pipe, SMs, power or use."""
    does = np.full(len(rows), np.nan)
    for metric in (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.UTIL):
        told = table.matrix(metric, rows)
        amount = np.maximum(told - _IDLE_POWER, 0) if metric is Metric.POWER else told
        usual = table.most(metric, rows, _mean(amount[:, :-_RECENT])[0])
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(usual > 0.01, _mean(amount[:, -_LAST:])[0] / usual, np.nan)
        does = np.where(np.isfinite(does), does, share)
    known = np.isfinite(does)
    quiet = np.add.reduceat((does < _STANDS) & known, starts, dtype=np.intp)
    number = np.add.reduceat(known, starts, dtype=np.intp)
    return np.asarray((number > 0) & (quiet > 0.5 * number))


def _mean(rows: NDArray[np.floating[Any]]) -> tuple[Matrix, Matrix]:
    """Of each row without its gaps, and of how many bins; NaN of gaps alone."""
    known = np.isfinite(rows)
    number = known.sum(axis=1).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, rows, 0).sum(axis=1, dtype=np.float64) / number, number
