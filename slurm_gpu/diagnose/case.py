"""Collect the input of one diagnosis: a job's time series, groups of peers, and deviations of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import HOST_METRICS, Metric
from slurm_gpu.diagnose.peers import Groups, infer_groups
from slurm_gpu.diagnose.phases import Phases, phases, short_dips, surely_active, without_offsets
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile
from slurm_gpu.diagnose.series import JobWorker, Series
from slurm_gpu.diagnose.signals import LEAST_BLOCKS, Deviation, Signal, blocks, compute_deviations
from slurm_gpu.diagnose.verdict import Cause, Evidence, Verdict
from slurm_gpu.text.units import counted

# Shorter slowdowns are ignored.
_PASSING_S = 45.0
# Maximum utilisation of a worker that runs nothing: monitoring tools and the creation of a context use the
# GPU slightly.
_NOTHING = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisThresholds:
    """The thresholds for verdicts."""

    min_coverage: float = 0.8
    """Minimum share of bins with data, set by `sampling.min_coverage` in slurm-gpu.yaml."""
    missing_below: float = 0.2
    """Minimum coverage of a worker; a worker with less counts as missing."""
    z: float = 6.0
    """Minimum deviation from the peers, in robust standard deviations.

    With 128 workers and ten signals, random deviations do not exceed this value.
    """
    hang_s: float = 15.0
    """Longest normal stall of a job whose workers wait for others."""
    unsure_hang_s: float = 90.0
    """Longest normal stall if the job may be writing a checkpoint."""
    over_hang_s: float = 600.0
    """Longest normal stall at the end of a job that has ended."""
    trend_s: float = 120.0
    """Minimum duration of a slowdown of all workers."""

    def __post_init__(self) -> None:
        if not 0 < self.min_coverage <= 1:
            raise ValueError(f"min_coverage must be above 0 and at most 1, not {self.min_coverage}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The input of the diagnosis of one job.

    `judged` marks the workers that are diagnosed: those that are not shared, are used by the job, and have
    enough data. The GPU metrics of all other workers are NaN.
    """

    series: Series
    groups: Groups
    phases: Phases
    signals: dict[Signal, Matrix]
    deviations: dict[Signal, Deviation]
    bins_of_block: int
    rules: DiagnosisThresholds
    running: bool
    cut_short: bool
    """Whether the job ended early: cancelled, failed or timed out."""
    judged: NDArray[np.bool_]
    missing: tuple[JobWorker, ...]
    """Workers without data."""
    barely: tuple[JobWorker, ...]
    """Workers that have data, but a coverage below `rules.missing_below`."""
    shared: tuple[JobWorker, ...]
    unused: tuple[JobWorker, ...]
    """Workers that never had anything to run, although other workers did."""
    coverage: float

    @property
    def n(self) -> int:
        """Return the number of workers."""
        return len(self.series.workers)

    @property
    def n_blocks(self) -> int:
        """Return the number of blocks."""
        return next(iter(self.signals.values())).shape[1] if self.signals else 0

    @property
    def active_blocks(self) -> int:
        """Return the number of blocks in which the job computed."""
        known = [np.isfinite(rows).any(axis=0) for rows in self.signals.values()]
        return int(np.logical_or.reduce(known).sum()) if known else 0

    def is_idle(self) -> bool:
        """Return whether all judged workers were always idle."""
        util = self.series.get(Metric.UTIL)
        return util is not None and bool(_idle(util)[self.judged].all())

    def time_of(self, block: int) -> float:
        """Return the wall-clock time at which a block begins."""
        return self.series.start_s + block * self.bins_of_block * self.series.width_s

    def above(self, signal: Signal, least: float, z: float | None = None) -> NDArray[np.bool_]:
        """Mark workers that exceed their peers by at least `least`; mark none if the signal is missing."""
        found = self.deviations.get(signal)
        threshold = self.rules.z if z is None else z
        return np.zeros(self.n, dtype=bool) if found is None else found.above(least, threshold)

    def below(self, signal: Signal, least: float, z: float | None = None) -> NDArray[np.bool_]:
        """Mark workers that are below their peers by at least `least`; mark none if the signal is missing."""
        found = self.deviations.get(signal)
        threshold = self.rules.z if z is None else z
        return np.zeros(self.n, dtype=bool) if found is None else found.below(least, threshold)

    def has_changed(self, signal: Signal) -> NDArray[np.bool_]:
        """Mark workers whose deviation began or changed during the job."""
        found = self.deviations.get(signal)
        return np.zeros(self.n, dtype=bool) if found is None else np.asarray(found.first > 0)

    def level(self, signal: Signal) -> Matrix:
        """Return the level of each worker's deviation; NaN if the signal is missing."""
        found = self.deviations.get(signal)
        return np.full(self.n, np.nan) if found is None else found.level

    def job(self, signal: Signal) -> Matrix | None:
        """Return the median over all workers in each block; None if the signal is missing."""
        rows = self.signals.get(signal)
        return None if rows is None else median(rows.T)

    def span(self, signal: Signal, rows: NDArray[np.bool_]) -> tuple[float | None, float | None]:
        """Return the times at which these workers' deviation began and ended.

        None means that the deviation lasted from the beginning or until the end of the job, respectively.
        """
        found = self.deviations[signal]
        first = int(np.median(found.first[rows]))
        stop = int(np.median(found.stop[rows]))
        until = self.time_of(stop) if stop <= self.n_blocks - LEAST_BLOCKS else None
        return (self.time_of(first) if first > 0 else None, until)

    def scaled_strength(self, signal: Signal, rows: NDArray[np.bool_], base: float) -> float:
        """Return the strength `base`, reduced if the deviation of the workers is close to the threshold."""
        z = float(np.min(np.abs(self.deviations[signal].z[rows])))
        return base * (0.75 + 0.25 * min(1.0, max(0.0, (z - self.rules.z) / self.rules.z)))

    def evidence(self, signal: Signal, rows: NDArray[np.bool_]) -> Evidence:
        """Describe the deviation of these workers in numbers."""
        found = self.deviations[signal]
        own, apart = float(np.median(found.own[rows])), float(np.median(found.apart[rows]))
        names, who = self.named(rows)
        n_peers, expected = self._peers(signal, rows)
        peers = f"{'its' if len(names) == 1 else 'their'} {counted(n_peers, 'peer')}"
        if not math.isfinite(expected):
            # No peer has data in this period; the deviation is relative to all workers of the group.
            is_ratio = signal not in (Signal.UTIL, Signal.THROTTLE, Signal.CPU)
            peers, expected = "usually", own / math.exp(apart) if is_ratio else own - apart
        text = f"{who}: {_WORDS[signal]} {_shown(signal, own)}, {peers} {_shown(signal, expected)}"
        return Evidence(text=text, metric=signal.value, value=own, expected=expected, workers=names)

    def _peers(self, signal: Signal, rows: NDArray[np.bool_]) -> tuple[int, float]:
        """Return the number of peers of these workers, and the peers' median level in the same period."""
        found, values = self.deviations[signal], self.signals[signal]
        peers = np.isin(self.groups.of, self.groups.of[rows]) & self.judged & ~rows
        levels = [
            middle(median(values[peers & (self.groups.of == self.groups.of[row]), first:stop]))
            for row, first, stop in zip(
                np.flatnonzero(rows), found.first[rows], found.stop[rows], strict=True
            )
        ]
        return int(peers.sum()), middle(np.array(levels))

    def has_data(self, signal: Signal, rows: NDArray[np.bool_]) -> bool:
        """Return whether the deviation in a signal is known for each of these workers."""
        return signal in self.deviations and bool(np.isfinite(self.level(signal)[rows]).all())

    def workers(self, rows: NDArray[np.bool_]) -> tuple[JobWorker, ...]:
        """Return the workers of these rows."""
        return tuple(self.series.workers[row] for row in np.flatnonzero(rows))

    def named(self, rows: NDArray[np.bool_]) -> tuple[tuple[str, ...], str]:
        """Return the names of the workers in these rows, and a phrase that describes them."""
        names = tuple(worker.name for worker in self.workers(rows))
        return names, names[0] if len(names) == 1 else f"{len(names)} workers"

    def whole_nodes(self, rows: NDArray[np.bool_]) -> tuple[str, ...]:
        """Return nodes with two or more judged workers if at least 75 % of them are in these rows."""
        nodes = []
        for node in self.series.nodes:
            there = self.series.on(node)[self.judged[self.series.on(node)]]
            if there.size >= 2 and rows[there].mean() >= 0.75:
                nodes.append(node)
        return tuple(nodes)

    def verdict(self, cause: Cause, strength: float, **more: object) -> Verdict:
        """Build a verdict with the groups and coverage of this case."""
        names = [worker.name for worker in self.series.workers]
        groups = {
            name: [names[row] for row in members]
            for name, members in zip(self.groups.names, self.groups.members(), strict=True)
        }
        base = Verdict(
            cause=cause,
            strength=strength,
            coverage=self.coverage,
            groups=groups,
            groups_by=self.groups.source,
        )
        return replace(base, **more)  # type: ignore[arg-type]


_WORDS = {
    Signal.BUSY: "SMs active",
    Signal.WORK: "tensor work",
    Signal.POWER: "power",
    Signal.CLOCK: "SM clock",
    Signal.THROTTLE: "throttled by heat or power supply",
    Signal.UTIL: "utilisation",
    Signal.NVLINK: "NVLink",
    Signal.PCIE: "PCIe",
    Signal.INFINIBAND: "InfiniBand",
    Signal.NETWORK: "network",
    Signal.CPU: "CPU",
}


_BYTES = (Signal.INFINIBAND, Signal.NETWORK)


def _shown(signal: Signal, value: float) -> str:
    if signal in _BYTES:
        return f"{value / 1e6:.0f} MB/s" if value >= 1e7 else f"{value / 1e6:.1f} MB/s"
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"


def build_case(
    series: Series, groups: Groups | None, rules: DiagnosisThresholds, running: bool, cut_short: bool = False
) -> Case:
    """Find peers, phases and deviations; raise ValueError if the groups do not contain every worker."""
    n = len(series.workers)
    if groups is not None and len(groups.of) != n:
        raise ValueError(f"the groups contain {len(groups.of)} workers, but the job has {n}")
    coverage = series.coverage()
    missing = coverage < rules.missing_below
    shared = np.array([worker.shared for worker in series.workers], dtype=bool)
    judged = ~missing & ~shared
    unused = judged & _unused(series, judged)
    judged = judged & ~unused
    kept = {
        metric: matrix if metric in HOST_METRICS else np.where(judged[:, None], matrix, np.nan)
        for metric, matrix in series.values.items()
    }
    kept = {metric: matrix for metric, matrix in kept.items() if np.isfinite(matrix).any()}
    seen = replace(series, values=kept)
    seen = without_offsets(seen, phases(seen))
    found = phases(seen)
    if groups is None:
        groups = infer_groups(seen, found.active)
    signals, n_bins = blocks(seen, surely_active(found, seen))
    least = round(_PASSING_S / (n_bins * seen.width_s)) + 1
    if least > 1 and seen.n_bins >= 2 * least * n_bins:
        passing = short_dips(found, n_bins, least)
        signals = {signal: np.where(passing, np.nan, rows) for signal, rows in signals.items()}
    return Case(
        series=seen,
        groups=groups,
        phases=found,
        signals=signals,
        deviations=compute_deviations(signals, groups, seen.step, n_bins * seen.width_s),
        bins_of_block=n_bins,
        rules=rules,
        running=running,
        cut_short=cut_short,
        judged=judged,
        missing=tuple(worker for worker, share in zip(series.workers, coverage, strict=True) if share == 0),
        barely=tuple(
            worker
            for worker, share in zip(series.workers, coverage, strict=True)
            if 0 < share < rules.missing_below
        ),
        shared=tuple(worker for worker in series.workers if worker.shared),
        unused=tuple(worker for worker, is_so in zip(series.workers, unused, strict=True) if is_so),
        coverage=float(coverage[judged].mean()) if judged.any() else 0.0,
    )


def _unused(series: Series, judged: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark workers that the job does not use, because only other workers ever had anything to run."""
    util = series.get(Metric.UTIL)
    if util is None or _idle(util)[judged].all():
        return np.zeros(len(series.workers), dtype=bool)
    return _idle(util)


def _idle(util: Matrix) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        return np.asarray(quantile(util, 0.98) <= _NOTHING)


def only_utilisation(case: Case) -> bool:
    """Return whether utilisation is the only known metric of the workers' activity.

    Utilisation is weak evidence, because it is also 100 % on a worker that waits for its peers.
    """
    informative = {Metric.SM_ACTIVE, Metric.TENSOR, Metric.POWER, Metric.SM_CLOCK, Metric.THROTTLE}
    return informative.isdisjoint(case.series.values)
