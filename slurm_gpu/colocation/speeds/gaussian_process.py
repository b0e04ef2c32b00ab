"""Fit a Gaussian process over pairs of applications that share a GPU.

The speed of one application with another is the sum of the sensitivity of the first, the effect of the second
on any co-runner, and an effect of this pair. Each of these parts is similar for similar applications.
Applications are similar if they belong to one family and have similar sizes, or if they use a GPU similarly
when running alone. Applications with similar learned speeds, or with similar effects on others, also count as
similar (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2 and 5).

A use that deviates from its family's linear fit changes the speed in proportion (`odd`). An example is a step
that takes longer than smaller and larger inputs suggest.

A measured speed of 1 is only a bound: it hides how much capacity two applications leave each other. The fit
is therefore a Tobit regression. Outliers have less weight, because the noise has Student's t distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.profiles.traits import Floats, Likeness

# Minimum predicted speed.
SLOWEST = 0.02
# An application at this speed or above is not slowed down; how much faster it could run is unknown.
_BOUND = 0.999
# Maximum speed in the fit, where speeds may exceed the bound.
_FARTHEST = 2.0
# Degrees of freedom of Student's t noise.
_FREEDOM = 6.0
# Number of iterations of a fit; further iterations do not change predictions measurably.
_STEPS = 8
# Prior variance of speeds; it counts like _AS_MANY measurements.
USUAL_VARIANCE = 0.04
_AS_MANY = 10


@dataclass(frozen=True, slots=True)
class Scales:
    """Variances relative to the variance of all speeds, and distances within which applications are similar.

    The values were chosen by five-fold cross-validation, over pairs and over applications, on Gavel's table
    of the P100 only. `uses_family` and `odd` were added later: they improve the predictions for the V100, and
    do not worsen those for the P100 and the K80.
    """

    suffers: float = 1.2
    does: float = 0.45
    pair: float = 0.4
    learned: float = 0.56
    level: float = 0.64
    noise: float = 0.002
    """Variance of the noise of one measurement."""
    octaves: float = 3.8
    uses_suffers: float = 0.9
    uses_does: float = 1.5
    foreign_suffers: float = 0.09
    """Maximum similarity of two applications of different families, relative to two of the same family."""
    foreign_does: float = 1.5
    uses_family: float = 2.5
    """Distance in `Likeness.uses` within which two applications of one family are similar."""
    odd: float = 1.0
    """Variance added by a deviation from the family's linear fit, per unit of `Likeness.odd` squared."""
    own: float = 0.04
    speed_distance: float = 0.44
    """Root mean square difference of speeds within which applications are similar in slowdowns or effects."""

    def of(self, variance: float) -> Scales:
        """Return the scales for speeds with this variance."""
        parts = {name: getattr(self, name) * variance for name in _VARIANCES}
        return replace(
            self, **parts, odd=self.odd * variance, speed_distance=self.speed_distance * math.sqrt(variance)
        )

    @property
    def variances(self) -> tuple[float, ...]:
        """Return all components of the variance of one measurement of an unknown pair."""
        return (*(getattr(self, name) for name in _VARIANCES), self.noise)


_VARIANCES = ("suffers", "does", "pair", "learned", "level")


@dataclass(frozen=True, slots=True)
class Entries:
    """The m measurements, as arrays."""

    one: NDArray[np.intp]
    """The application whose speed was measured."""
    other: NDArray[np.intp]
    """The co-runner of this application."""
    speed: Floats
    count: Floats
    """Number of measurements that `speed` averages."""

    def at(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Entries:
        """Return a selection of the measurements."""
        return Entries(self.one[which], self.other[which], self.speed[which], self.count[which])

    def joined(self, other: Entries) -> Entries:
        """Return these measurements, then the others."""
        return Entries(
            np.concatenate((self.one, other.one)),
            np.concatenate((self.other, other.other)),
            np.concatenate((self.speed, other.speed)),
            np.concatenate((self.count, other.count)),
        )

    def __len__(self) -> int:
        return len(self.speed)


@dataclass(frozen=True)
class Covariance:
    """The covariance of the speeds of pairs, without noise, as matrices (n, n); `of` contains the scales."""

    of: Scales
    suffers: Floats
    does: Floats
    odd: Floats
    learned: tuple[Floats, Floats] | None
    """The learned similarities of slowdowns and of effects."""

    def across(self, one: NDArray[np.intp], other: NDArray[np.intp], entries: Entries) -> Floats:
        """Return the covariance (k, m) between k pairs and m entries."""
        return self._total(np.ix_(one, entries.one), np.ix_(other, entries.other))

    def variance(self, one: NDArray[np.intp], other: NDArray[np.intp]) -> Floats:
        """Return the variance of each of k pairs before any measurement, (k)."""
        return self._total((one, one), (other, other))

    def _total(self, ones: tuple[Any, ...], others: tuple[Any, ...]) -> Floats:
        of, mine, theirs = self.of, self.suffers[ones], self.does[others]
        total = of.suffers * mine + of.does * theirs + of.pair * mine * theirs + of.level
        total += of.odd * self.odd[ones]
        if self.learned is not None:
            total += of.learned * self.learned[0][ones] * self.learned[1][others]
        return np.asarray(total)


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process."""

    entries: Entries
    """The entries that were fitted."""
    own_only: Entries
    """Entries that were not fitted; each corrects only the prediction of its own pair."""
    prior_mean: Floats
    """(n, n) the mean before any measurement."""
    covariance: Covariance
    inverse: Floats
    """(m, m) inverse of the entries' covariance, including noise."""
    unbound: Floats
    """(m) the estimated speeds, which are not limited to 1."""
    noise: Floats
    """(m) variance of the noise of each entry."""
    fresh_noise: float
    """Variance of one measurement of typical quality."""

    def everywhere(self) -> tuple[Floats, Floats]:
        """Return the speeds (not limited to 1) and the standard deviation of one measurement, both (n, n)."""
        speed, variance = self._fitted_alone
        at, own = (self.own_only.one, self.own_only.other), self.own_only
        if len(own):
            mean, latent = speed[at], variance[at]
            # A measured speed of 1, the maximum, is consistent with every higher prediction.
            wanted = np.where(own.speed >= _BOUND, np.maximum(own.speed, mean), own.speed)
            usual = self.fresh_noise / own.count
            noise = usual
            for _ in range(_STEPS):
                gain = latent / (latent + noise)
                noise = _weighed(usual, (wanted - mean) ** 2 * (1 - gain) ** 2 + noise * gain)
            gain = latent / (latent + noise)
            speed, variance = speed.copy(), variance.copy()
            speed[at], variance[at] = mean + gain * (wanted - mean), latent * (1 - gain)
        return speed, np.sqrt(variance + self.fresh_noise)

    @cached_property
    def _fitted_alone(self) -> tuple[Floats, Floats]:
        """Return the speeds (not limited to 1) and their variance, both (n, n), from fitted entries only."""
        n = len(self.prior_mean)
        one, other = np.divmod(np.arange(n * n), n)
        across = self.covariance.across(one, other, self.entries)
        speed = self.prior_mean.ravel() + across @ (self.inverse @ self._residual)
        explained = np.einsum("ij,jk,ik->i", across, self.inverse, across, optimize=True)
        variance = np.maximum(self.covariance.variance(one, other) - explained, 0.0)
        return speed.reshape(n, n), variance.reshape(n, n)

    def left_out(self) -> tuple[Entries, Floats, Floats]:
        """Return entries, and the speed and standard deviation of each as predicted from all other pairs.

        The result contains each fitted entry, then the other entries whose reverse is not fitted either. A
        prediction leaves out both directions of the pair; the learned similarity of applications still
        includes them.
        """
        speed, deviation = self._left_out()
        fitted_to = np.zeros(self.prior_mean.shape, dtype=bool)
        fitted_to[self.entries.one, self.entries.other] = True
        rest = self.own_only.at(~fitted_to[self.own_only.other, self.own_only.one])
        mean, variance = self._fitted_alone
        at = rest.one, rest.other
        return (
            self.entries.joined(rest),
            np.concatenate((speed, mean[at])),
            np.concatenate((deviation, np.sqrt(variance[at] + self.fresh_noise))),
        )

    def _left_out(self) -> tuple[Floats, Floats]:
        """Return the speed and standard deviation of each entry, both (m), as predicted without its pair."""
        speed, deviation = np.empty(len(self.unbound)), np.empty(len(self.unbound))
        weighed = self.inverse @ self._residual
        at = {pair: k for k, pair in enumerate(zip(self.entries.one, self.entries.other, strict=True))}
        for (one, other), k in at.items():
            both = [k] if one == other or (other, one) not in at else [k, at[other, one]]
            block = np.linalg.inv(self.inverse[np.ix_(both, both)])
            speed[k] = self.unbound[k] - (block @ weighed[both])[0]
            deviation[k] = np.sqrt(max(block[0, 0] - self.noise[k], 0.0) + self.fresh_noise)
        return speed, deviation

    @property
    def _residual(self) -> Floats:
        return self.unbound - self.prior_mean[self.entries.one, self.entries.other]


def fitted(
    like: Likeness, entries: Entries, prior_mean: Floats, scales: Scales, most: int
) -> GaussianProcess:
    """Fit entries by the traits of applications, then also by learned speeds.

    At most `most` of the entries are fitted; there must be at least one. The cost is cubic in `most`, and
    quadratic in `most` for each further entry and each pair of applications.
    """
    residual = entries.speed - prior_mean[entries.one, entries.other]
    scales = scales.of((USUAL_VARIANCE * _AS_MANY + (residual**2).sum()) / (_AS_MANY + len(residual)))
    prior = _covariance(like, scales, None)
    kept = np.ones(len(entries), dtype=bool)
    if len(entries) > most:
        kept[:] = False
        kept[most_informative(prior, entries, scales.noise, most)] = True
    some, rest = entries.at(kept), entries.at(~kept)
    first = _conditioned(prior, some, rest, prior_mean, scales)
    speeds, _ = first.everywhere()
    learned = _covariance(like, scales, np.clip(speeds, 0, 1.2))
    return _conditioned(learned, some, rest, prior_mean, scales)


def most_informative(prior: Covariance, entries: Entries, noise: float, most: int) -> NDArray[np.intp]:
    """Return the indices of the `most` most informative entries.

    The selection is greedy: each entry has the largest variance given those before it. The variances result
    from a partial, pivoted Cholesky factorisation over all entries. An entry that averages many measurements
    has less noise and is therefore preferred.
    """
    noises = noise / entries.count
    variance = prior.variance(entries.one, entries.other)
    rows, chosen = np.zeros((most, len(entries))), np.zeros(most, dtype=np.intp)
    left = np.ones(len(entries), dtype=bool)
    for k in range(most):
        best = int(np.argmax(np.where(left, variance**2 / (variance + noises), -1.0)))
        chosen[k], left[best] = best, False
        one = entries.at(np.array([best]))
        row = prior.across(one.one, one.other, entries)[0] - rows[:k, best] @ rows[:k]
        rows[k] = row / math.sqrt(variance[best] + noises[best])
        variance = np.maximum(variance - rows[k] ** 2, 0.0)
    return chosen


def _covariance(like: Likeness, scales: Scales, speeds: Floats | None) -> Covariance:
    own = scales.own * np.eye(len(like.same_family))
    near = like.same_family * _near(like.octaves, scales.octaves) * _near(like.uses, scales.uses_family)
    return Covariance(
        scales,
        near + scales.foreign_suffers * _near(like.uses, scales.uses_suffers) + own,
        near + scales.foreign_does * _near(like.uses, scales.uses_does) + own,
        like.odd @ like.odd.T,
        None
        if speeds is None
        else (_alike(speeds, scales.speed_distance), _alike(speeds.T, scales.speed_distance)),
    )


def _near(distance: Floats, scale: float) -> Floats:
    return np.asarray(np.exp(-0.5 * (distance / scale) ** 2))


def _alike(rows: Floats, distance: float) -> Floats:
    squares = ((rows[:, None] - rows) ** 2).mean(axis=2)
    return np.asarray(np.exp(-0.5 * squares / distance**2), dtype=np.float64)


def _conditioned(
    covariance: Covariance, entries: Entries, own_only: Entries, prior_mean: Floats, scales: Scales
) -> GaussianProcess:
    """Fit by expectation-maximisation, estimating the speeds above the bound and the entries' weights."""
    prior = covariance.across(entries.one, entries.other, entries)
    mean = prior_mean[entries.one, entries.other]
    bound = entries.speed >= _BOUND
    usual = scales.noise / entries.count
    unbound, noise = entries.speed.copy(), usual
    inverse: Floats = _inverse(prior, noise)
    for _ in range(_STEPS):
        weighed, own = inverse @ (unbound - mean), np.diag(inverse)
        # Each bounded entry's prediction from all others, and its standard deviation.
        unbound[bound] = _truncated_mean(unbound[bound] - weighed[bound] / own[bound], own[bound] ** -0.5)
        weighed = inverse @ (unbound - mean)
        # The expected square of the noise of each entry.
        noise = _weighed(usual, noise**2 * (weighed**2 - own) + noise)
        inverse = _inverse(prior, noise)
    return GaussianProcess(
        entries,
        own_only,
        prior_mean,
        covariance,
        inverse,
        unbound,
        noise,
        float(np.median(noise * entries.count)),
    )


def _weighed(usual: Floats, square: Floats) -> Floats:
    """Return the effective variance of Student's t noise from its expected square."""
    return np.asarray(usual * (_FREEDOM + square / usual) / (_FREEDOM + 1))


def _inverse(prior: Floats, noise: Floats) -> Floats:
    return np.asarray(np.linalg.inv(prior + np.diag(noise)), dtype=np.float64)


def _truncated_mean(mean: Floats, deviation: Floats) -> Floats:
    """Return the mean of a normal distribution truncated to values above 1."""
    short = (1.0 - mean) / deviation
    return np.minimum(mean + deviation * _hazard(short), _FARTHEST)


def _hazard(short: Floats) -> Floats:
    """Return the inverse Mills ratio of the standard normal distribution: density ÷ survival function."""
    return np.array([_hazard_at(one) for one in short.tolist()])


def _hazard_at(short: float) -> float:
    if short > _FAR:
        return short + 1 / short
    survival = 0.5 * math.erfc(short / math.sqrt(2))
    return math.exp(-0.5 * short * short) / math.sqrt(2 * math.pi) / survival


# Above this many deviations, both parts of the quotient are near 0, so its limit is used.
_FAR = 8.0
