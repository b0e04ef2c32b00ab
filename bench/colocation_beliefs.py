"""Beliefs of planners in bench/colocation.py: true speeds, or predictions for unmeasured pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np

from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.traits import Floats, traits_of_table
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.sharing import SharingStretch
from slurm_gpu.colocation.simulation.world import TableWorld, World
from slurm_gpu.colocation.speeds.groups import ends_s
from slurm_gpu.colocation.speeds.predictor import predict
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.pair_table import PairTable

FOLDS = 5
DIVISIONS = 5
CONFIDENCE = 0.95
"""Under a cap, the lower end of a pair's one-sided interval with this confidence must be within it."""
CAP = 1.10
"""The cap for which the chances of pairs are written."""
SEEN_S = 5.0
"""The shared run time in seconds after which the speed of a pair counts as known."""
CHECK_S = 20.0
"""The time after which the guard separates a pair, as in slurm-gpuctld."""
MOST_SLOWED = 1.15
"""The largest slowdown of a job that makes no progress in a trial."""


def write_predictions(measured: Measured, folder: Path, n_seeds: int) -> tuple[Path, ...]:
    """Write predictions of several divisions: a plan depends on few pairs, so one division is not enough."""
    paths = tuple(folder / f"predicted-{one}.npz" for one in range(min(DIVISIONS, n_seeds)))
    errors = [predict_unseen(measured, path, one) for one, path in enumerate(paths)]
    print(
        "speeds of pairs, each predicted without it, by division into folds: mean absolute errors "
        + " ".join(f"{one:.3f}" for one in errors)
    )
    return paths


def predict_unseen(measured: Measured, path: Path, division: int = 0) -> float:
    """Write each pair's speed, predicted from other pairs, to a file, and return the mean absolute error.

    Each fold leaves out a random fifth of all pairs; `division` selects the random folds. Pairs that cannot
    run together are taken as known, since such tables have no memory sizes.
    """
    true = measured.table().speeds
    n = len(true)
    traits = traits_of_table(measured)
    pairs = [(i, j) for i in range(n) for j in range(i, n)]
    order = np.random.default_rng(division).permutation(len(pairs))
    mean, lower, chance = true.copy(), true.copy(), (true * CAP >= 1).astype(float)
    for fold in range(FOLDS):
        fifth = [pairs[int(at)] for at in order[fold::FOLDS]]
        seen = true.copy()
        for i, j in fifth:
            seen[i, j] = seen[j, i] = np.nan
        found = predict(traits, seen)
        least, within = found.lower(CONFIDENCE), found.chance(1 / CAP)
        for i, j in fifth:
            for one, other in ((i, j), (j, i)):
                if true[one, other] != 0:
                    mean[one, other], lower[one, other] = found.speed[one, other], least[one, other]
                    chance[one, other] = within[one, other]
    np.savez(path, mean=mean, lower=lower, chance=chance)
    return float(np.nanmean(np.abs(mean - true)[true > 0]))


class PredictedBelief(KnownBelief):
    """A belief that starts with predictions, and learns the speed of each pair that it sees running.

    With a cap, the belief is also the guard of the simulation. A pair that has not run together is tried if
    the time that sharing likely saves exceeds the time that a failed trial likely costs. The running jobs
    must be able to bear a trial at the lower end of the pair's interval, over their whole runs.
    """

    after_s = CHECK_S

    def __init__(
        self, world: World, names: Sequence[str], path: Path, *, most_together: int, cap: float
    ) -> None:
        with np.load(path) as arrays:
            self._mean: Floats = arrays["mean"]
            self._lower: Floats = arrays["lower"]
            self._chance: Floats = arrays["chance"]
        table = PairTable(names, self._mean)
        self._careful = PairTable(names, self._lower)
        self._ran = np.zeros(self._mean.shape, dtype=bool)
        super().__init__(
            TableWorld(world.profiles, table, world.capacity_mib), most_together=most_together, cap=cap
        )

    def may_share(self, members: Sequence[Member]) -> bool:
        """See planner.Belief; the cap applies to whole runs, including the time lost in earlier trials."""
        if len(members) < 2 or math.isinf(self.cap):
            return super().may_share(members)
        if len(members) > self.most_together or not self.fits(members):
            return False
        if self._is_known(members):
            return super().may_share(members) and self._keeps_cap(members)
        return self._may_try(members)

    def requeues(self, members: Sequence[Member]) -> int | None:
        """See sharing.SharingGuard; the job that started last leaves, or the shorter of two."""
        return None if self._run_within_cap(members) else _newcomer(members).job

    def _is_known(self, members: Sequence[Member]) -> bool:
        return all(self._ran[one.application, other.application] for one, other in permutations(members, 2))

    def _may_try(self, members: Sequence[Member]) -> bool:
        if any(one.killed for one in members):
            return False
        applications = tuple(one.application for one in members)
        mean, lowest = self.speeds(applications), self._careful.together(applications)
        if not all(speed > 0 for speed in mean):
            return False
        works = math.prod(self._chance[one, other] for one, other in permutations(applications, 2))
        saved_s = (sum(mean) - 1) * min(one.left_s for one in members)
        if not works * saved_s > (1 - works) * CHECK_S:
            return False
        newcomer = _newcomer(members)
        return all(
            one.lost_s + CHECK_S * (1 - low) <= (self.cap - 1) * (one.done_s + one.left_s)
            and one.lost_s + CHECK_S <= (MOST_SLOWED - 1) * (one.done_s + one.left_s)
            for one, low in zip(members, lowest, strict=True)
            if one is not newcomer
        )

    def at_worst_s(self, members: Sequence[Member]) -> float:
        """See planner.Belief."""
        if not self.fits(members):
            return math.inf
        if math.isfinite(self.cap):
            # The guard limits the loss, and `may_share` weighs it against the gain.
            return sum(one.left_s for one in members)
        applications = [one.application for one in members]
        return ends_s(
            [one.left_s for one in members],
            lambda some: self._careful.together(tuple(applications[one] for one in some)),
        )

    def ran(self, stretch: SharingStretch) -> None:
        """See sharing.Watcher."""
        if len(stretch.ran) == 2 and stretch.to_s - stretch.from_s >= SEEN_S:
            one, other = stretch.ran
            self._learn(one.application, other.application, one.speed)
            self._learn(other.application, one.application, other.speed)

    def ran_out(self, gpu: int, at_s: float, together: Sequence[Member], killed: Member) -> None:
        """See sharing.Watcher."""
        if len(together) == 2:
            one, other = (member.application for member in together)
            self._learn(one, other, 0.0)
            self._learn(other, one, 0.0)

    def _learn(self, one: int, other: int, speed: float) -> None:
        self._ran[one, other] = True
        for table in (self._mean, self._lower):
            table[one, other] = speed
        self.forget()


def _newcomer(members: Sequence[Member]) -> Member:
    """Return the job that started last; of several, the one with the least work."""
    return min(members, key=lambda one: (one.ran_s, one.done_s + one.left_s))
