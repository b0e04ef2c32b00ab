"""All that a judgement of one job stands on: its series, who is compared with whom, how far each lies off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import HOST_METRICS, Metric
from slurm_gpu.diagnose.peers import Groups, infer_groups
from slurm_gpu.diagnose.phases import Phases, in_passing, phases, surely_active, without_offsets
from slurm_gpu.diagnose.robust import Matrix, median, quantile
from slurm_gpu.diagnose.series import JobWorker, Series
from slurm_gpu.diagnose.signals import LEAST_BLOCKS, Deviation, Signal, all_deviations, blocks
from slurm_gpu.diagnose.verdict import Cause, Evidence, Verdict

_PASSING_S = 45.0
"""What lasts no longer is no slowness."""
_NOTHING = 0.02
"""Utilisation of who runs nothing: setting a context up, and what else looks at GPUs, is some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisThresholds:
    """What is asked for before anything is said."""

    min_coverage: float = 0.8
    """Of the bins of all workers that told anything; as `sampling.min_coverage` of slurm-gpu.yaml."""
    missing_below: float = 0.2
    """A worker that told less than this told nothing."""
    z: float = 6.0
    """So many spreads of its peers off: of 128 workers in ten signals none is, by chance."""
    hang_s: float = 15.0
    """For so long a job that spins, or whose host is quiet, may stand still."""
    unsure_hang_s: float = 90.0
    """And so long where nothing tells whether it writes a checkpoint."""
    over_hang_s: float = 600.0
    """And so long at the end of a job that is over: that is how jobs end."""
    trend_s: float = 120.0
    """For so long the job as a whole has to be slower than before."""

    def __post_init__(self) -> None:
        if not 0 < self.min_coverage <= 1:
            raise ValueError(f"min_coverage must be above 0 and at most 1, not {self.min_coverage}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job. `judged` are the rows that told enough and are nobody else's as well; the others are gaps."""

    series: Series
    groups: Groups
    phases: Phases
    signals: dict[Signal, Matrix]
    deviations: dict[Signal, Deviation]
    bins_of_block: int
    rules: DiagnosisThresholds
    running: bool
    cut_short: bool
    """It is over, and not because it had done all that it had to."""
    judged: NDArray[np.bool_]
    missing: tuple[JobWorker, ...]
    """Those that told nothing."""
    barely: tuple[JobWorker, ...]
    """Those that told something, and less than `rules.missing_below`."""
    shared: tuple[JobWorker, ...]
    unused: tuple[JobWorker, ...]
    """Never had anything to run, while others had."""
    coverage: float

    @property
    def n(self) -> int:
        """How many workers there are."""
        return len(self.series.workers)

    @property
    def n_blocks(self) -> int:
        """How many blocks there are."""
        return next(iter(self.signals.values())).shape[1] if self.signals else 0

    @property
    def active_blocks(self) -> int:
        """In how many of them the job computed."""
        told = [np.isfinite(rows).any(axis=0) for rows in self.signals.values()]
        return int(np.logical_or.reduce(told).sum()) if told else 0

    def nothing_to_run(self) -> bool:
        """Whether that was told of all, for all of the time."""
        util = self.series.get(Metric.UTIL)
        return util is not None and bool(_idle(util)[self.judged].all())

    def time_of(self, block: int) -> float:
        """Wall clock at which a block begins."""
        return self.series.start_s + block * self.bins_of_block * self.series.width_s

    def up(self, signal: Signal, least: float, z: float | None = None) -> NDArray[np.bool_]:
        """Who lies above its peers by `least`; nobody where it was not told."""
        found = self.deviations.get(signal)
        asked = self.rules.z if z is None else z
        return np.zeros(self.n, dtype=bool) if found is None else found.up(least, asked)

    def down(self, signal: Signal, least: float, z: float | None = None) -> NDArray[np.bool_]:
        """Who lies below its peers by `least`; nobody where it was not told."""
        found = self.deviations.get(signal)
        asked = self.rules.z if z is None else z
        return np.zeros(self.n, dtype=bool) if found is None else found.down(least, asked)

    def began(self, signal: Signal) -> NDArray[np.bool_]:
        """Whose signal changed clearly in the course of the job."""
        found = self.deviations.get(signal)
        return np.zeros(self.n, dtype=bool) if found is None else np.asarray(found.first > 0)

    def level(self, signal: Signal) -> Matrix:
        """Of each worker how far it lies off; NaN where it was not told."""
        found = self.deviations.get(signal)
        return np.full(self.n, np.nan) if found is None else found.level

    def job(self, signal: Signal) -> Matrix | None:
        """The median of all workers in each block; None where it was not told."""
        rows = self.signals.get(signal)
        return None if rows is None else median(rows.T)

    def span(self, signal: Signal, rows: NDArray[np.bool_]) -> tuple[float | None, float | None]:
        """Since when and until when these workers lie off; None: from the beginning, to the end."""
        found = self.deviations[signal]
        first = int(np.median(found.first[rows]))
        stop = int(np.median(found.stop[rows]))
        until = self.time_of(stop) if stop <= self.n_blocks - LEAST_BLOCKS else None
        return (self.time_of(first) if first > 0 else None, until)

    def sure(self, signal: Signal, rows: NDArray[np.bool_], base: float) -> float:
        """`base`, less where the workers lie only just outside of what peers spread by."""
        z = float(np.min(np.abs(self.deviations[signal].z[rows])))
        return base * (0.75 + 0.25 * min(1.0, max(0.0, (z - self.rules.z) / self.rules.z)))

    def evidence(self, signal: Signal, rows: NDArray[np.bool_]) -> Evidence:
        """What these workers show, in numbers."""
        found = self.deviations[signal]
        own, apart = float(np.median(found.own[rows])), float(np.median(found.apart[rows]))
        is_ratio = signal not in (Signal.UTIL, Signal.THROTTLE, Signal.CPU)
        expected = own / math.exp(apart) if is_ratio else own - apart
        if signal not in _BYTES:
            expected = min(max(expected, 0.0), max(1.0, own))
        names, who = self.named(rows)
        z = float(np.median(np.abs(found.z[rows])))
        text = (
            f"{who}: {_WORDS[signal]} {_shown(signal, own)} where peers have {_shown(signal, expected)} "
            f"({z:.0f} spreads off)"
        )
        return Evidence(text=text, metric=signal.value, value=own, expected=expected, workers=names)

    def tells(self, signal: Signal, rows: NDArray[np.bool_]) -> bool:
        """Whether there is something to show of a signal, for each of these workers."""
        return signal in self.deviations and bool(np.isfinite(self.level(signal)[rows]).all())

    def workers(self, rows: NDArray[np.bool_]) -> tuple[JobWorker, ...]:
        """Those of these rows."""
        return tuple(self.series.workers[row] for row in np.flatnonzero(rows))

    def named(self, rows: NDArray[np.bool_]) -> tuple[tuple[str, ...], str]:
        """(their names, how a sentence calls them)."""
        names = tuple(worker.name for worker in self.workers(rows))
        return names, names[0] if len(names) == 1 else f"{len(names)} workers"

    def whole_nodes(self, rows: NDArray[np.bool_]) -> tuple[str, ...]:
        """Nodes of which (nearly) all of two workers or more are among these rows."""
        nodes = []
        for node in self.series.nodes:
            there = self.series.on(node)[self.judged[self.series.on(node)]]
            if there.size >= 2 and rows[there].mean() >= 0.75:
                nodes.append(node)
        return tuple(nodes)

    def verdict(self, cause: Cause, confidence: float, **more: object) -> Verdict:
        """A verdict with what it stands on."""
        names = [worker.name for worker in self.series.workers]
        groups = {
            name: [names[row] for row in members]
            for name, members in zip(self.groups.names, self.groups.members(), strict=True)
        }
        base = Verdict(
            cause=cause,
            confidence=confidence,
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
    Signal.THROTTLE: "held down by heat or power supply",
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
    """Find peers, phases and deviations; ValueError where the groups are of other workers."""
    n = len(series.workers)
    if groups is not None and len(groups.of) != n:
        raise ValueError(f"the groups are of {len(groups.of)} workers, the job has {n}")
    coverage = series.coverage()
    gone = coverage < rules.missing_below
    shared = np.array([worker.shared for worker in series.workers], dtype=bool)
    judged = ~gone & ~shared
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
        passing = in_passing(found, n_bins, least)
        signals = {signal: np.where(passing, np.nan, rows) for signal, rows in signals.items()}
    return Case(
        series=seen,
        groups=groups,
        phases=found,
        signals=signals,
        deviations=all_deviations(signals, groups, seen.step, n_bins * seen.width_s),
        bins_of_block=n_bins,
        rules=rules,
        running=running,
        cut_short=cut_short,
        judged=judged,
        missing=tuple(worker for worker, told in zip(series.workers, coverage, strict=True) if told == 0),
        barely=tuple(
            worker
            for worker, told in zip(series.workers, coverage, strict=True)
            if 0 < told < rules.missing_below
        ),
        shared=tuple(worker for worker in series.workers if worker.shared),
        unused=tuple(worker for worker, is_so in zip(series.workers, unused, strict=True) if is_so),
        coverage=float(coverage[judged].mean()) if judged.any() else 0.0,
    )


def _unused(series: Series, judged: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Who has had nothing to run, where others have: the job does not use all that it holds."""
    util = series.get(Metric.UTIL)
    if util is None or _idle(util)[judged].all():
        return np.zeros(len(series.workers), dtype=bool)
    return _idle(util)


def _idle(util: Matrix) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        return np.asarray(quantile(util, 0.98) <= _NOTHING)


def only_utilisation(case: Case) -> bool:
    """Whether nothing else was told of the GPUs: a worker that waits for its peers has 100 % as well."""
    telling = {Metric.SM_ACTIVE, Metric.TENSOR, Metric.POWER, Metric.SM_CLOCK, Metric.THROTTLE}
    return telling.isdisjoint(case.series.values)
