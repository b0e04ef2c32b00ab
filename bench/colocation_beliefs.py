"""Beliefs of planners in bench/colocation.py: true speeds, or predictions for unmeasured pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
SEEN_S = 5.0
"""The shared run time in seconds after which the speed of a pair counts as known."""


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
    mean, lower = true.copy(), true.copy()
    for fold in range(FOLDS):
        fifth = [pairs[int(at)] for at in order[fold::FOLDS]]
        seen = true.copy()
        for i, j in fifth:
            seen[i, j] = seen[j, i] = np.nan
        found = predict(traits, seen)
        least = found.lower(CONFIDENCE)
        for i, j in fifth:
            for one, other in ((i, j), (j, i)):
                if true[one, other] != 0:
                    mean[one, other], lower[one, other] = found.speed[one, other], least[one, other]
    np.savez(path, mean=mean, lower=lower)
    return float(np.nanmean(np.abs(mean - true)[true > 0]))


class PredictedBelief(KnownBelief):
    """A belief that starts with predictions, and learns the speed of each pair that it sees running."""

    def __init__(
        self, world: World, names: Sequence[str], path: Path, *, most_together: int, cap: float
    ) -> None:
        with np.load(path) as arrays:
            self._mean: Floats = arrays["mean"]
            self._lower: Floats = arrays["lower"]
        table = PairTable(names, self._mean)
        self._careful = PairTable(names, self._lower)
        super().__init__(
            TableWorld(world.profiles, table, world.capacity_mib), most_together=most_together, cap=cap
        )

    def may_share(self, members: Sequence[Member]) -> bool:
        """See planner.Belief; the cap applies to the lower end of the interval."""
        if len(members) > 1 and math.isfinite(self.cap):
            speeds = self._careful.together(tuple(one.application for one in members))
            if not all(speed > 0 and 1 / speed <= self.cap for speed in speeds):
                return False
        return super().may_share(members)

    def at_worst_s(self, members: Sequence[Member]) -> float:
        """See planner.Belief."""
        if not self.fits(members):
            return math.inf
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
        for table in (self._mean, self._lower):
            table[one, other] = speed
        self.forget()
