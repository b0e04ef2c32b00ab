"""Trains on the past, judges on its last part, and forecasts.

Tables and regression are both made to forecast the last blocks of history from what was known before each.
For jobs with and without GPUs apart, the one that was nearer to the truth is taken, and its errors there give
the forecasts their interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.forecast.regression import Regression
from slurm_gpu.forecast.samples import Floats, QueueSamples, WaitSamples
from slurm_gpu.forecast.tables import WaitTables, wait_tables
from slurm_gpu.forecast.wait_grid import around, likeliest, quantile, spread_of

# The share of jobs whose wait is to lie within the interval.
INTERVAL = 0.8


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of earlier forecasts: log2 of the true wait ÷ the forecast, and the weight of each."""

    log2_ratio: Floats
    weight: Floats
    """For what forecasts are judged and corrected by: that of an array with a thousand tasks is one."""
    n_jobs: Floats
    """How many jobs each stands for, recent ones more: an interval is to hold a share of all jobs."""
    n_groups: int
    """How many groups of like jobs these are of: tasks of one array are wrong together."""

    def within(self, factor: float) -> float:
        """The share of forecasts that were not further than `factor` from the truth; NaN of none."""
        total = self.weight.sum()
        near = np.abs(self.log2_ratio) <= np.log2(factor)
        return float((self.weight * near).sum() / total) if total > 0 else float("nan")

    def score(self) -> float:
        """Return the score of forecasts: the mean of the shares within 2x and within 3x."""
        return (self.within(2.0) + self.within(3.0)) / 2

    def spread(self) -> Floats:
        """How errors lie about the forecast, see `waitgrid.spread_of`.

        An array counts for the root of its tasks: between one and all, as they are wrong together, but many.
        """
        return spread_of(self.log2_ratio, np.sqrt(self.weight * self.n_jobs))

    def bounds(self) -> tuple[float, float]:
        """Octaves between which INTERVAL of the errors lay, as much of the rest on either side."""
        order = np.argsort(self.log2_ratio)
        total = np.cumsum(self.n_jobs[order])
        place = (total - self.n_jobs[order] / 2) / total[-1]
        low, high = np.interp([(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], place, self.log2_ratio[order])
        return float(low), float(high)


TABLES, LEARNED = "tables", "learned"
# Jobs without and with GPUs: the codes of the grouping `kind`.
KINDS: Mapping[str, int] = {"cpu": 0, "gpu": 1}
KIND = "kind"
# At so many moments jobs must have been looked at before forecasts can be judged.
FEWEST_MOMENTS = 4
# Of so many groups of like jobs must the fate be known, or nothing can be said of the accuracy.
FEWEST_JUDGED = 30

# Into so many blocks is cut what forecasts are judged by; each costs a training.
BLOCKS = 4
_JUDGED_SHARE = 0.5
# A thousand tasks of one array say little more than a few of them.
_MOST_ALIKE = 8
# What n like jobs count for, compared with one: n to this power.
_ALIKE_POWER = 0.3
_HALF_LIFE_DAYS = 60.0
_ERROR_HALF_LIFE_DAYS = 10.0
_STILL_WAITING_OCTAVES = 1.0

Learner = Callable[[WaitSamples, Sequence[str], Floats], Regression]


@dataclass(frozen=True, slots=True)
class Correction:
    """What the errors of the last blocks say for one kind of jobs."""

    source: str
    """TABLES or LEARNED."""
    bounds: Mapping[str, tuple[float, float]]
    """By source, octaves to add to what it says, for the ends of the interval."""
    judged: int
    """How many groups of like jobs that stands on."""
    within: Mapping[str, tuple[float, float]]
    """By source, the shares of forecasts within 2x and within 3x of the truth."""
    spread: Sequence[float] = ()
    """How far the truth lay from the middle of what was learned, see `waitgrid.spread_of`."""


@dataclass(frozen=True, slots=True)
class ForecastIntervals:
    """Of n jobs, seconds from the look on."""

    lower_s: Floats
    median_s: Floats
    upper_s: Floats
    source: NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Made of what was known at a moment; forecasts for looks at that moment or later."""

    made_at_s: float
    tables: WaitTables
    regression: Regression | None
    corrections: Mapping[str, Correction]
    """By kind; a kind that is missing had too little history to be judged by."""

    def forecast(self, looks: QueueSamples) -> ForecastIntervals:
        """How long each of these jobs goes on to wait, with an interval that is to hold 80 % of the truth."""
        mass = self.tables.distribution(looks)
        low, middle, high = (np.log2(quantile(mass, share)) for share in (0.1, 0.5, 0.9))
        source = np.full(len(looks), TABLES, dtype="U8")
        for kind, correction in self.corrections.items():
            of_kind = looks.groups[KIND] == KINDS[kind]
            if correction.source == LEARNED and self.regression is not None:
                said = _Learned.of(self.regression, looks[of_kind])
                base = said.likeliest(np.array(correction.spread))
            else:
                base = np.log2(likeliest(mass[of_kind]))
            middle[of_kind] = base
            below, above = correction.bounds[correction.source]
            low[of_kind], high[of_kind] = base + below, base + above
            source[of_kind] = correction.source
        # The likeliest wait may lie outside of the middle 80 %: then the interval reaches as far.
        return ForecastIntervals(
            2.0 ** np.minimum(low, middle), 2.0**middle, 2.0 ** np.maximum(high, middle), source
        )


@dataclass(frozen=True, slots=True)
class _Learned:
    """What a regression says of n looks."""

    middle: Floats
    mass: Floats

    @classmethod
    def of(cls, regression: Regression, looks: QueueSamples) -> _Learned:
        return cls(regression.log2_wait(looks), regression.distribution(looks))

    def likeliest(self, spread: Floats) -> Floats:
        """(n) log2 of the seconds from which the truth is least likely to be far.

        Jobs that the trees take for alike count half, what is usual about the middle the other half: the
        first knows of two peaks where there are two, the second that days to come are unlike those seen.
        """
        return np.log2(likeliest((self.mass + around(self.middle, spread)) / 2))


def train(
    past: WaitSamples,
    order: Sequence[str],
    names: Sequence[str],
    learner: Learner | None = None,
    blocks: int = BLOCKS,
) -> Forecaster:
    """A forecaster of what is known of the past.

    `order` names groupings for the tables, the widest first, `names` the features for the `learner`. Without
    a learner, or without enough history to judge it by, the tables forecast. The more
    `blocks`, the fresher is what they are judged by, and the longer it takes.
    """
    sample, weight, _ = _sample(past)
    tables = wait_tables(sample, order, weight)
    errors, spreads = _walk_forward(past, order, names, learner, blocks)
    corrections: dict[str, Correction] = {}
    for kind, of_sources in errors.items():
        if of_sources[TABLES].n_groups >= FEWEST_JUDGED:
            corrections[kind] = _correction(of_sources, spreads.get(kind))
    learned = any(correction.source == LEARNED for correction in corrections.values())
    regression = learner(sample, names, weight) if learner is not None and learned else None
    return Forecaster(past.now_s, tables, regression, corrections)


def _sample(past: WaitSamples) -> tuple[WaitSamples, Floats, Floats]:
    """A few of each group of like jobs, what each counts for, and for how many jobs it stands."""
    order = np.lexsort((_scattered(len(past.wait_s)), past.looks.alike))
    alike = past.looks.alike[order]
    first = np.flatnonzero(np.concatenate([[True], alike[1:] != alike[:-1]])) if len(order) else order
    sizes = np.diff([*first, len(order)])
    rank = np.arange(len(order)) - np.repeat(first, sizes)
    taken = rank < _MOST_ALIKE
    size = np.repeat(sizes, sizes)[taken]
    sample = past[order[taken]]
    n_jobs = size / np.minimum(size, _MOST_ALIKE)
    weight = n_jobs * size ** (_ALIKE_POWER - 1.0)
    return sample, weight * 0.5 ** (sample.age_days / _HALF_LIFE_DAYS), n_jobs


def _scattered(n: int) -> NDArray[np.uint64]:
    """N different numbers in no order, always the same ones: the golden ratio's multiples."""
    return np.arange(n, dtype=np.uint64) * np.uint64(11400714819323198485)


def _walk_forward(
    past: WaitSamples, order: Sequence[str], names: Sequence[str], learner: Learner | None, most_blocks: int
) -> tuple[dict[str, dict[str, Errors]], dict[str, Floats]]:
    """By kind and source, the errors of forecasts of the last blocks from what was known before each; and by
    kind how the truth lay about the middle of what was learned.
    """
    moments = np.unique(past.looks.at_s)
    if len(moments) < FEWEST_MOMENTS:
        return {}, {}
    judged = moments[-max(1, int(len(moments) * _JUDGED_SHARE)) :]
    blocks = np.array_split(judged, min(most_blocks, len(judged)))
    tables: list[_Part] = []
    learned: list[_Part] = []
    found: list[_Learned] = []
    for block in blocks:
        before, weight, _ = _sample(past.looks.known_at(block[0]))
        now, _, n_jobs = _sample(past[(past.looks.at_s >= block[0]) & (past.looks.at_s <= block[-1])])
        tables.append((now, n_jobs, wait_tables(before, order, weight).log2_wait(now.looks)))
        if learner is not None:
            found.append(_Learned.of(learner(before, names, weight), now.looks))
            learned.append((now, n_jobs, found[-1].middle))
    errors: dict[str, dict[str, Errors]] = {}
    spreads: dict[str, Floats] = {}
    for kind, code in KINDS.items():
        errors[kind] = {TABLES: _errors(tables, code)}
        middle = _errors(learned, code) if learned else None
        if middle is not None and middle.n_groups:
            spread = spreads[kind] = middle.spread()
            said = [
                (now, n_jobs, of.likeliest(spread))
                for (now, n_jobs, _), of in zip(learned, found, strict=True)
            ]
            errors[kind][LEARNED] = _errors(said, code)
    return errors, spreads


# Looks, for how many jobs each stands, and log2 of the seconds that were said.
_Part = tuple[WaitSamples, Floats, Floats]


def _errors(parts: Sequence[_Part], code: int) -> Errors:
    ratios, weights, jobs, n_groups = [], [], [], 0
    for now, n_jobs, said in parts:
        of_kind = now.looks.groups[KIND] == code
        wait = np.log2(now.wait_s)
        # Who still waits was wrong by this at least; as long again is as good a guess as any.
        wait = np.where(now.started, wait, np.maximum(wait + _STILL_WAITING_OCTAVES, said))
        n_groups += len(np.unique(now.looks.alike[of_kind]))
        _, group, size = np.unique(now.looks.alike, return_inverse=True, return_counts=True)
        ratios.append((wait - said)[of_kind])
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
