"""Train forecasts on the past, evaluate them on its last part, and forecast waits.

For each of the last blocks of history, the tables and the regression forecast from the data before it. The
more accurate of the two is used, chosen separately for jobs with and without GPUs. Its errors determine the
interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.regression import Regression
from slurm_gpu.forecast.samples import Floats, QueueSamples, WaitSamples
from slurm_gpu.forecast.tables import WaitTables, wait_tables
from slurm_gpu.forecast.wait_grid import around, error_distribution, likeliest, quantile

# The share of jobs whose wait should be inside the interval.
INTERVAL = 0.8


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of earlier forecasts, as log2 of true wait ÷ forecast, with their weights."""

    log2_ratio: Floats
    weight: Floats
    """Weights for scores and corrections. A group of similar jobs, such as an array, counts as one job."""
    n_jobs: Floats
    """The number of jobs that each error represents, weighted by age.

    Intervals use these numbers, since an interval is meant to cover a share of all jobs.
    """
    n_groups: int
    """Number of groups of similar jobs, such as tasks of one array; errors in a group are correlated."""

    def within(self, factor: float) -> float:
        """Return the share of forecasts within `factor` of the true wait; NaN if there are no forecasts."""
        total = self.weight.sum()
        near = np.abs(self.log2_ratio) <= np.log2(factor)
        return float((self.weight * near).sum() / total) if total > 0 else float("nan")

    def score(self) -> float:
        """Return the mean of the shares of forecasts within 2x and within 3x of the true wait."""
        return (self.within(2.0) + self.within(3.0)) / 2

    def spread(self) -> Floats:
        """Return the distribution of the errors, computed by `wait_grid.error_distribution`.

        An array of n tasks has the weight √n, because the errors of its tasks are correlated.
        """
        return error_distribution(self.log2_ratio, np.sqrt(self.weight * self.n_jobs))

    def bounds(self) -> tuple[float, float]:
        """Return the bounds, in octaves, of the central INTERVAL of the errors."""
        order = np.argsort(self.log2_ratio)
        total = np.cumsum(self.n_jobs[order])
        place = (total - self.n_jobs[order] / 2) / total[-1]
        low, high = np.interp([(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], place, self.log2_ratio[order])
        return float(low), float(high)


TABLES, LEARNED = "tables", "learned"
# Jobs without and with GPUs: the codes of the grouping `kind`.
KINDS: Mapping[str, int] = {"cpu": 0, "gpu": 1}
KIND = "kind"
# Number of sampled moments that an evaluation requires.
MIN_MOMENTS = 4
# Number of groups of like jobs with a known outcome that an estimate of the accuracy requires.
MIN_GROUPS = 30

# Number of blocks in the evaluation; each requires one training.
BLOCKS = 4
_EVALUATED_SHARE = 0.5
# A thousand tasks of one array give little more information than a few of them.
_MAX_ALIKE = 8
# n like jobs have n to this power times the weight of one.
_ALIKE_POWER = 0.3
_HALF_LIFE_DAYS = 60.0
_ERROR_HALF_LIFE_DAYS = 10.0
_STILL_WAITING_OCTAVES = 1.0

Learner = Callable[[WaitSamples, Sequence[str], Floats], Regression]


@dataclass(frozen=True, slots=True)
class Correction:
    """The source and the interval for one kind of job, determined from the errors in the last blocks."""

    source: str
    """TABLES or LEARNED."""
    bounds: Mapping[str, tuple[float, float]]
    """Octaves to add to the forecast to obtain the ends of the interval, by source."""
    judged: int
    """Number of groups of similar jobs in the evaluation."""
    within: Mapping[str, tuple[float, float]]
    """Shares of forecasts within 2x and within 3x of the true wait, by source."""
    spread: Sequence[float] = ()
    """Distribution of the regression's errors, computed by `wait_grid.error_distribution`."""


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
    """Corrections by kind of job. A kind with too little history for an evaluation is absent."""

    def forecast(self, samples: QueueSamples) -> ForecastIntervals:
        """Return the remaining wait of each job, with an 80 % interval."""
        mass = self.tables.distribution(samples)
        low, middle, high = (np.log2(quantile(mass, share)) for share in (0.1, 0.5, 0.9))
        source = np.full(len(samples), TABLES, dtype="U8")
        for kind, correction in self.corrections.items():
            of_kind = samples.groups[KIND] == KINDS[kind]
            if correction.source == LEARNED and self.regression is not None:
                learned = _LearnedForecasts.of(self.regression, samples[of_kind])
                base = learned.likeliest(np.array(correction.spread))
            else:
                base = np.log2(likeliest(mass[of_kind]))
            middle[of_kind] = base
            below, above = correction.bounds[correction.source]
            low[of_kind], high[of_kind] = base + below, base + above
            source[of_kind] = correction.source
        # The likeliest wait may be outside the central 80 %; the interval is extended to it.
        return ForecastIntervals(
            2.0 ** np.minimum(low, middle), 2.0**middle, 2.0 ** np.maximum(high, middle), source
        )


@dataclass(frozen=True, slots=True)
class _LearnedForecasts:
    """The forecasts of a regression for n samples."""

    middle: Floats
    mass: Floats

    @classmethod
    def of(cls, regression: Regression, samples: QueueSamples) -> _LearnedForecasts:
        return cls(regression.log2_wait(samples), regression.distribution(samples))

    def likeliest(self, spread: Floats) -> Floats:
        """Return (n) log2 of the wait in seconds that is most likely close to the true wait.

        The distribution is the mean of two: the waits of jobs in the same leaves of the trees, and past
        errors around `middle`. The first can have two peaks; the second reflects how much new days differ
        from earlier ones.
        """
        return np.log2(likeliest((self.mass + around(self.middle, spread)) / 2))


def train(
    past: WaitSamples,
    order: Sequence[str],
    names: Sequence[str],
    learner: Learner | None = None,
    blocks: int = BLOCKS,
) -> Forecaster:
    """Return a forecaster trained on the known past.

    `order` contains the groupings for the tables, widest first; `names` contains the features for the
    `learner`. Without a learner, or without enough history for an evaluation, forecasts come from the tables.
    With more `blocks`, the evaluation uses more recent training data and takes longer.
    """
    sample, weight, _ = _sample(past)
    tables = wait_tables(sample, order, weight)
    errors, spreads = _walk_forward(past, order, names, learner, blocks)
    corrections: dict[str, Correction] = {}
    for kind, of_sources in errors.items():
        if of_sources[TABLES].n_groups >= MIN_GROUPS:
            corrections[kind] = _correction(of_sources, spreads.get(kind))
    learned = any(correction.source == LEARNED for correction in corrections.values())
    regression = learner(sample, names, weight) if learner is not None and learned else None
    return Forecaster(past.now_s, tables, regression, corrections)


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
    # Multiples of the golden ratio.
    return np.arange(n, dtype=np.uint64) * np.uint64(11400714819323198485)


def _walk_forward(
    past: WaitSamples, order: Sequence[str], names: Sequence[str], learner: Learner | None, most_blocks: int
) -> tuple[dict[str, dict[str, Errors]], dict[str, Floats]]:
    """Return the errors of forecasts in the last blocks, each trained on the time before its block.

    The first result contains the errors by kind and source, the second the regression's error distribution by
    kind.
    """
    moments = np.unique(past.samples.at_s)
    if len(moments) < MIN_MOMENTS:
        return {}, {}
    evaluated = moments[-max(1, int(len(moments) * _EVALUATED_SHARE)) :]
    blocks = np.array_split(evaluated, min(most_blocks, len(evaluated)))
    tables: list[_Part] = []
    learned: list[_Part] = []
    found: list[_LearnedForecasts] = []
    for block in blocks:
        before, weight, _ = _sample(past.samples.known_at(block[0]))
        now, _, n_jobs = _sample(past[(past.samples.at_s >= block[0]) & (past.samples.at_s <= block[-1])])
        tables.append((now, n_jobs, wait_tables(before, order, weight).log2_wait(now.samples)))
        if learner is not None:
            found.append(_LearnedForecasts.of(learner(before, names, weight), now.samples))
            learned.append((now, n_jobs, found[-1].middle))
    errors: dict[str, dict[str, Errors]] = {}
    spreads: dict[str, Floats] = {}
    for kind, code in KINDS.items():
        errors[kind] = {TABLES: _errors(tables, code)}
        middle = _errors(learned, code) if learned else None
        if middle is not None and middle.n_groups:
            spread = spreads[kind] = middle.spread()
            predicted = [
                (now, n_jobs, of.likeliest(spread))
                for (now, n_jobs, _), of in zip(learned, found, strict=True)
            ]
            errors[kind][LEARNED] = _errors(predicted, code)
    return errors, spreads


# Samples, the number of jobs that each represents, and log2 of the predicted seconds.
_Part = tuple[WaitSamples, Floats, Floats]


def _errors(parts: Sequence[_Part], code: int) -> Errors:
    ratios, weights, jobs, n_groups = [], [], [], 0
    for now, n_jobs, predicted in parts:
        of_kind = now.samples.groups[KIND] == code
        wait = np.log2(now.wait_s)
        # A job that still waits counts with twice its wait so far, or as predicted if that is longer.
        wait = np.where(now.started, wait, np.maximum(wait + _STILL_WAITING_OCTAVES, predicted))
        n_groups += len(np.unique(now.samples.alike[of_kind]))
        _, group, size = np.unique(now.samples.alike, return_inverse=True, return_counts=True)
        ratios.append((wait - predicted)[of_kind])
        recent = 0.5 ** (now.age_days / _ERROR_HALF_LIFE_DAYS)
        weights.append((recent / size[group])[of_kind])
        jobs.append((recent * n_jobs)[of_kind])
    return Errors(np.concatenate(ratios), np.concatenate(weights), np.concatenate(jobs), n_groups)


def _correction(of_sources: Mapping[str, Errors], spread: Floats | None) -> Correction:
    best = max(of_sources, key=lambda source: of_sources[source].score())
    bounds = {source: found.bounds() for source, found in of_sources.items()}
    within = {source: (found.within(2.0), found.within(3.0)) for source, found in of_sources.items()}
    about = () if spread is None else tuple(spread.tolist())
    return Correction(best, bounds, of_sources[best].n_groups, within, about)
