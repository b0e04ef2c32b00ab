"""Train forecasts on past data, evaluate them day by day on its most recent part, and forecast waits.

The tables and the regression are both sources of forecasts. For each of the last blocks of history, both are
trained again on the data before the block. The recent errors of a source correct its forecasts and determine
the interval. The source is chosen separately for jobs with and without GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.errors import ErrorTables, error_tables
from slurm_gpu.forecast.regression import Regression
from slurm_gpu.forecast.samples import KIND, KINDS, Floats, QueueSamples, WaitSamples
from slurm_gpu.forecast.tables import WaitTables, wait_tables
from slurm_gpu.forecast.wait_grid import likeliest, quantile, share_needed, shortest_window

# The share of jobs whose wait should be inside the interval.
INTERVAL = 0.8
TABLES, LEARNED = "tables", "learned"
# Number of hours with samples that an evaluation requires.
MIN_HOURS = 4
# Groups of similar jobs required for a regression, and with known outcomes for an estimate of accuracy.
MIN_GROUPS = 30

# Number of blocks in the evaluation; each source is trained again for every block.
BLOCKS = 4
_EVALUATED_SHARE = 0.5
# Maximum number of sampled jobs per group: many tasks of one array give little more information than a few.
_MAX_ALIKE = 8
# The total weight of n similar jobs is n to this power; a single job has the weight 1.
_ALIKE_POWER = 0.3
_HALF_LIFE_DAYS = 60.0
# Only errors of the last days correct forecasts; the choice of the source and the interval require more
# errors.
_ERROR_HALF_LIFE_DAYS = 2.0
_SCORE_HALF_LIFE_DAYS = 5.0
_STILL_WAITING_OCTAVES = 1.0
_DAY_S = 86400.0

Learner = Callable[[WaitSamples, Sequence[str], Floats], Regression]


@dataclass(frozen=True, slots=True)
class Correction:
    """The source and the interval for one kind of job, determined from forecasts of the last blocks."""

    source: str
    """TABLES or LEARNED."""
    shares: Mapping[str, float]
    """By source: the nominal probability of intervals that contain the waits of a share INTERVAL of jobs."""
    judged: int
    """Number of groups of similar jobs of this kind in the evaluation.

    With fewer than MIN_GROUPS, jobs of both kinds were evaluated together.
    """
    within: Mapping[str, tuple[float, float]]
    """Shares of forecasts within 2x and within 3x of the true wait, by source."""

    @property
    def is_validated(self) -> bool:
        """Return whether `within` was measured on this kind of job."""
        return self.judged >= MIN_GROUPS


@dataclass(frozen=True, slots=True)
class ForecastIntervals:
    """The remaining waits of n jobs, in seconds from the time of the sample."""

    lower_s: Floats
    median_s: Floats
    upper_s: Floats
    source: NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Forecaster:
    """A trained forecaster, for samples at the time of its training or later."""

    made_at_s: float
    tables: WaitTables
    regression: Regression | None
    corrections: Mapping[str, Correction]
    """Corrections by kind of job.

    Without enough history for an evaluation, there are none. Forecasts then come from the regression, if one
    exists, since its errors are smaller than those of the tables after one to three days of history.
    """
    errors: Mapping[str, ErrorTables]
    """Recent errors by source; empty without an evaluation."""

    def source_of(self, kind: str) -> str:
        """Return the source of the forecasts for one kind of job: TABLES or LEARNED."""
        found = self.corrections.get(kind)
        return found.source if found is not None else TABLES if self.regression is None else LEARNED

    def forecast(self, samples: QueueSamples) -> ForecastIntervals:
        """Return the remaining wait of each job, with an 80 % interval."""
        uncorrected = self.tables if self.regression is None else self.regression
        mass = uncorrected.distribution(samples)
        low, high = quantile(mass, 0.1), quantile(mass, 0.9)
        middle = 2.0 ** uncorrected.log2_wait(samples)
        source = np.full(len(samples), TABLES if self.regression is None else LEARNED, dtype="U8")
        for kind, correction in self.corrections.items():
            of_kind = samples.groups[KIND] == KINDS[kind]
            model = self.tables if correction.source == TABLES else self.regression
            assert model is not None
            corrected = _corrected(
                _Forecasts.of(model, samples[of_kind]), self.errors[correction.source], samples[of_kind]
            )
            low[of_kind], high[of_kind] = shortest_window(corrected, correction.shares[correction.source])
            middle[of_kind] = likeliest(corrected)
            source[of_kind] = correction.source
        # The likeliest wait may be outside the interval, which is then extended to include it.
        return ForecastIntervals(np.minimum(low, middle), middle, np.maximum(high, middle), source)


@dataclass(frozen=True, slots=True)
class _Forecasts:
    """Forecasts of one source for n samples, before the correction by its recent errors."""

    log2_wait: Floats
    mass: Floats
    """(n, N_BINS) waits of jobs like each sample: those in the same groups or leaves."""

    @classmethod
    def of(cls, model: WaitTables | Regression, samples: QueueSamples) -> _Forecasts:
        return cls(model.log2_wait(samples), model.distribution(samples))

    def __getitem__(self, rows: NDArray[np.bool_]) -> _Forecasts:
        return _Forecasts(self.log2_wait[rows], self.mass[rows])


def _corrected(forecasts: _Forecasts, errors: ErrorTables, samples: QueueSamples) -> Floats:
    """Return distributions (n, N_BINS): the mean of the waits of similar jobs and of the recent errors.

    The waits can have two peaks; the errors reflect how much the last days differ from earlier ones.
    """
    return (forecasts.mass + errors.around(forecasts.log2_wait, samples)) / 2


def train(
    past: WaitSamples,
    order: Sequence[str],
    names: Sequence[str],
    learner: Learner | None = None,
    blocks: int = BLOCKS,
) -> Forecaster:
    """Return a forecaster trained on the known past.

    `order` contains the groupings for the tables, widest first; `names` contains the features for the
    `learner`. Without a learner, or with too little history for one, forecasts come from the tables. With
    more `blocks`, the evaluation uses more recent training data and takes longer.
    """
    sample, weight, _ = _sample(past)
    tables = wait_tables(sample, order, weight)
    tests = _walk_forward(past, order, names, learner, blocks)
    scores = {source: test.score() for source, test in tests.items()}
    corrections: dict[str, Correction] = {}
    if tests and scores[TABLES].n_groups >= MIN_GROUPS:
        for kind, code in KINDS.items():
            of_kind = {source: score.of_kind(code) for source, score in scores.items()}
            n_groups = of_kind[TABLES].n_groups
            corrections[kind] = _correction(of_kind if n_groups >= MIN_GROUPS else scores, n_groups)
    uncorrected = not corrections and len(np.unique(sample.samples.alike)) >= MIN_GROUPS
    learned = uncorrected or any(correction.source == LEARNED for correction in corrections.values())
    regression = learner(sample, names, weight) if learner is not None and learned else None
    errors = {source: test.errors_at(past.now_s) for source, test in tests.items()}
    return Forecaster(past.now_s, tables, regression, corrections, errors)


def _sample(past: WaitSamples) -> tuple[WaitSamples, Floats, Floats]:
    """Sample a few jobs from each group of similar jobs.

    Return the samples, their weights, and the number of jobs that each sample represents.
    """
    order = np.lexsort((_scattered(len(past.wait_s)), past.samples.alike))
    alike = past.samples.alike[order]
    first = np.flatnonzero(np.concatenate([[True], alike[1:] != alike[:-1]])) if len(order) else order
    sizes = np.diff([*first, len(order)])
    rank = np.arange(len(order)) - np.repeat(first, sizes)
    taken = rank < _MAX_ALIKE
    size = np.repeat(sizes, sizes)[taken]
    sample = past[order[taken]]
    n_jobs = size / np.minimum(size, _MAX_ALIKE)
    weight = n_jobs * size ** (_ALIKE_POWER - 1.0)
    return sample, weight * 0.5 ** (sample.age_days / _HALF_LIFE_DAYS), n_jobs


def _scattered(n: int) -> NDArray[np.uint64]:
    """Return n distinct pseudo-random numbers, which are the same in each call."""
    # The factor is 2**64 divided by the golden ratio (Fibonacci hashing).
    return np.arange(n, dtype=np.uint64) * np.uint64(11400714819323198485)


@dataclass(frozen=True, slots=True)
class _Backtest:
    """Forecasts of one source for past samples, each trained on earlier data, and the known outcomes."""

    past: WaitSamples
    n_jobs: Floats
    """The number of jobs that each sample represents."""
    forecasts: _Forecasts

    def errors_at(self, now_s: float) -> ErrorTables:
        """Return the errors that were known at `now_s`."""
        before = self.past.samples.at_s < now_s
        known, predicted = self.past.samples.known_at(now_s), self.forecasts.log2_wait[before]
        weight = self._weight()[before] * 0.5 ** (known.age_days / _ERROR_HALF_LIFE_DAYS)
        weight *= ~known.is_cancelled
        return error_tables(_log2_wait(known, predicted) - predicted, weight, known.samples)

    def score(self) -> _Scores:
        """Return the accuracy of the forecasts of each day, corrected by the errors known before it.

        The first day is left out, since there are no errors before it.
        """
        day = np.floor(self.past.age_days).astype(np.int64)
        ratio, needed = np.zeros(len(day)), np.zeros(len(day))
        for one in np.unique(day):
            rows = day == one
            now = self.past[rows]
            errors = self.errors_at(now.samples.at_s.min())
            mass = _corrected(self.forecasts[rows], errors, now.samples)
            predicted = np.log2(likeliest(mass))
            wait = _log2_wait(now, predicted)
            ratio[rows], needed[rows] = wait - predicted, share_needed(mass, 2.0**wait)
        weight = self._weight() * 0.5 ** (self.past.age_days / _SCORE_HALF_LIFE_DAYS)
        kind, alike = self.past.samples.groups[KIND], self.past.samples.alike
        is_scored = (day < day.max(initial=0)) & ~self.past.is_cancelled
        return _Scores(ratio, needed, weight, day, kind, alike)[is_scored]

    def _weight(self) -> Floats:
        """Return weights that give an array of n tasks the weight √n, because its errors are correlated."""
        _, group, size = np.unique(self.past.samples.alike, return_inverse=True, return_counts=True)
        return np.asarray(np.sqrt(self.n_jobs / size[group]))


@dataclass(frozen=True, slots=True)
class _Scores:
    """Errors (n) of corrected forecasts, as log2 of true wait ÷ forecast."""

    log2_ratio: Floats
    needed: Floats
    """The lowest probability at which the interval contains the true wait."""
    weight: Floats
    day: NDArray[np.int64]
    kind: NDArray[np.int64]
    alike: NDArray[np.int64]

    def __getitem__(self, rows: NDArray[np.bool_]) -> _Scores:
        return _Scores(*(getattr(self, name)[rows] for name in self.__slots__))

    def of_kind(self, code: int) -> _Scores:
        """Return the rows of one kind of job."""
        return self[self.kind == code]

    @property
    def n_groups(self) -> int:
        """Return the number of groups of similar jobs; errors in a group are correlated."""
        return len(np.unique(self.alike))

    def within(self, factor: float) -> float:
        """Return the share of forecasts within `factor` of the true wait."""
        return float(np.average(np.abs(self.log2_ratio) <= np.log2(factor), weights=self.weight))

    def is_better_than(self, other: _Scores) -> bool:
        """Return whether more forecasts are within 2x and 3x, by more than the standard error over days."""
        near, far = (
            sum((np.abs(one.log2_ratio) <= np.log2(factor)) / 2 for factor in (2.0, 3.0))
            for one in (self, other)
        )
        _, day = np.unique(self.day, return_inverse=True)
        gain, total = np.bincount(day, self.weight * (near - far)), np.bincount(day, self.weight)
        mean, n_days = gain.sum() / total.sum(), len(total)
        noise = np.sqrt(((gain - mean * total) ** 2).sum() * n_days / max(n_days - 1, 1)) / total.sum()
        return bool(n_days > 1 and mean > noise)

    def share(self) -> float:
        """Return the nominal probability of intervals that contain the waits of a share INTERVAL of jobs."""
        order = np.argsort(self.needed)
        total = np.cumsum(self.weight[order])
        return float(np.interp(INTERVAL, total / total[-1], self.needed[order]))


def _log2_wait(known: WaitSamples, predicted: Floats) -> Floats:
    """Return the log2 of the waits, (n).

    For a job that still waits, use twice its wait so far, or the predicted wait if that is longer.
    """
    wait = np.log2(known.wait_s)
    return np.where(known.started, wait, np.maximum(wait + _STILL_WAITING_OCTAVES, predicted))


def _walk_forward(
    past: WaitSamples, order: Sequence[str], names: Sequence[str], learner: Learner | None, most_blocks: int
) -> dict[str, _Backtest]:
    """Return the forecasts of each source for the last blocks, each trained on the time before its block."""
    # Each hour counts once, regardless of its number of jobs, so a burst does not shorten the evaluation.
    hour = -np.floor(past.age_days * 24)
    hours = np.unique(hour)
    if len(hours) < MIN_HOURS:
        return {}
    evaluated = hours[-max(1, int(len(hours) * _EVALUATED_SHARE)) :]
    parts: list[WaitSamples] = []
    jobs: list[Floats] = []
    found: dict[str, list[_Forecasts]] = {
        source: [] for source in ((TABLES,) if learner is None else (TABLES, LEARNED))
    }
    for block in np.array_split(evaluated, min(most_blocks, len(evaluated))):
        there = past[(hour >= block[0]) & (hour <= block[-1])]
        before, weight, _ = _sample(past.samples.known_at(there.samples.at_s.min()))
        now, _, n_jobs = _sample(there)
        found[TABLES].append(_Forecasts.of(wait_tables(before, order, weight), now.samples))
        if learner is not None:
            found[LEARNED].append(_Forecasts.of(learner(before, names, weight), now.samples))
        parts.append(now)
        jobs.append(n_jobs)
    samples = QueueSamples.joined([part.samples for part in parts]).known_at(past.now_s)
    return {source: _Backtest(samples, np.concatenate(jobs), _joined(of)) for source, of in found.items()}


def _joined(parts: Sequence[_Forecasts]) -> _Forecasts:
    return _Forecasts(
        np.concatenate([part.log2_wait for part in parts]), np.concatenate([part.mass for part in parts])
    )


def _correction(of_sources: Mapping[str, _Scores], n_groups: int) -> Correction:
    tables, learned = of_sources[TABLES], of_sources.get(LEARNED)
    best = TABLES if learned is None or tables.is_better_than(learned) else LEARNED
    shares = {source: found.share() for source, found in of_sources.items()}
    within = {source: (found.within(2.0), found.within(3.0)) for source, found in of_sources.items()}
    return Correction(best, shares, n_groups, within)
