"""Predict the speeds of pairs from those of other pairs, for the planners in bench/colocation.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.colocation_trial_belief import TrialBelief
from slurm_gpu.colocation.profiles.traits import traits_of_table
from slurm_gpu.colocation.simulation.world import World
from slurm_gpu.colocation.speeds.predictor import predict
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.trials import CONFIDENCE

FOLDS = 5
DIVISIONS = 5
CAP = 1.10
"""The cap for which the probabilities of pairs are written."""


def write_predictions(measured: Measured, folder: Path, n_seeds: int) -> tuple[Path, ...]:
    """Write predictions for several divisions into folds, because a plan depends on few pairs."""
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


def predicted_belief(world: World, path: Path, *, most_together: int, cap: float) -> TrialBelief:
    """Return a belief that starts with the predictions that `predict_unseen` wrote."""
    with np.load(path) as arrays:
        return TrialBelief(
            world,
            arrays["mean"],
            arrays["lower"],
            arrays["chance"],
            most_together=most_together,
            cap=cap,
        )
