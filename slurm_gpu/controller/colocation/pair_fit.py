"""Predict, in the background, the speeds of unmeasured pairs from the speeds of measured pairs.

The predictor, colocation.speeds.predictor, uses numpy. The run time of the predictor grows with the cube of
the number of speeds, and its memory use with the square of the number of applications, so both numbers are
limited.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping
from urllib.parse import unquote

from slurm_gpu.clock import Clock
from slurm_gpu.controller.background import Background, BackgroundTask
from slurm_gpu.controller.colocation.store import (
    ColocationStore,
    KeyProfile,
    PairPrediction,
    time_sliced,
)

log = logging.getLogger("slurm-gpuctld")

Speeds = Mapping[tuple[str, str], PairPrediction]

EVERY_S = 60.0
# Maximum number of keys in a fit. Keys with the most current jobs are chosen first, then the keys that were
# measured with others most often.
MOST_KEYS = 32
# Maximum number of speeds in a fit; the most informative speeds are used (see predictor.predict).
MOST_SPEEDS = 300
# Minimum number of measured speeds for a fit.
LEAST_SPEEDS = 4
_NUMBER = re.compile(r"(?P<before>.*?)(?P<size>\d{1,9})(?P<after>\D*)", re.DOTALL)


class PairFit:
    """Runs a fit when there is new data; runs one fit at a time, and at most one per minute."""

    def __init__(self, background: Background, clock: Clock) -> None:
        self._clock = clock
        self._fit = BackgroundTask[Speeds](background)
        self._made_of: object = None
        self._next_s = 0.0
        self._failed = self._has_left_out = False

    def forget(self) -> None:
        """Discard the last fit, to prepare for another store."""
        self._fit.drop()
        self._made_of = None

    def refresh(
        self, store: ColocationStore, there: Mapping[str, int], slowdown: float | None = None
    ) -> None:
        """Pass the finished fit to the store, and start another fit if needed.

        `there` contains the number of current jobs with each key. `slowdown` is the guaranteed slowdown.
        """
        if self._fit.is_done:
            try:
                store.predict(self._fit.take())
                self._failed = False
            except (ImportError, ArithmeticError, ValueError) as error:  # numpy's LinAlgError is a ValueError
                if not self._failed:
                    log.warning("speeds of unmeasured pairs are estimated only from utilisation: %s", error)
                self._failed = True
        if not self._fit.is_free or self._clock.monotonic() < self._next_s:
            return
        profiles, speeds = _chosen(store, there)
        n_left_out = len((there.keys() & store.profiles.keys()) - profiles.keys())
        if n_left_out and not self._has_left_out:
            log.warning(
                "%d keys have jobs but a fit uses at most %d; unmeasured speeds of the %d keys "
                "with the fewest jobs are estimated only from utilisation",
                n_left_out + len(profiles),
                MOST_KEYS,
                n_left_out,
            )
        self._has_left_out = n_left_out > 0
        made_of = tuple(profiles), tuple(sorted(speeds.items())), slowdown
        if len(speeds) < LEAST_SPEEDS or made_of == self._made_of:
            return
        self._made_of, self._next_s = made_of, self._clock.monotonic() + EVERY_S
        self._fit.start(lambda: predicted(profiles, speeds, slowdown))


def _chosen(
    store: ColocationStore, there: Mapping[str, int]
) -> tuple[dict[str, KeyProfile], dict[tuple[str, str], tuple[float, int]]]:
    """Return the profiles that a fit uses, and the measured speeds of pairs of their keys."""
    met = Counter[str]()
    for (key, other), (_, times) in store.speeds.items():
        met[other] += times
        met[key] += times
    candidates = (there.keys() | met.keys()) & store.profiles.keys()
    keys = sorted(candidates, key=lambda key: (-there.get(key, 0), -met[key], key))[:MOST_KEYS]
    chosen = frozenset(keys)
    seen = {pair: one for pair, one in store.speeds.items() if chosen.issuperset(pair)}
    return {key: store.profiles[key] for key in sorted(keys)}, seen


def predicted(
    profiles: Mapping[str, KeyProfile],
    speeds: Mapping[tuple[str, str], tuple[float, int]],
    slowdown: float | None = None,
) -> Speeds:
    """Predict the speeds of all pairs that are not in `speeds`.

    `speeds` maps a key and the key of its co-runner to the measured speed and the number of measurements.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more threads would need more memory and save no time
    import numpy as np

    from slurm_gpu.colocation.profiles.traits import Traits
    from slurm_gpu.colocation.speeds.predictor import predict
    from slurm_gpu.colocation.trials import CONFIDENCE

    keys = list(profiles)
    at = {key: index for index, key in enumerate(keys)}
    measured, counts = np.full((len(keys), len(keys)), np.nan), np.zeros((len(keys), len(keys)))
    for (key, other), (speed, times) in speeds.items():
        measured[at[key], at[other]], counts[at[key], at[other]] = speed, times
    traits = [
        Traits(*family_and_size(key), (one.util_frac, one.memory_frac)) for key, one in profiles.items()
    ]
    prior = np.array([[time_sliced(one, other) for other in profiles.values()] for one in profiles.values()])
    found = predict(traits, measured, counts, prior, most=MOST_SPEEDS)
    lower = found.lower(CONFIDENCE)
    chance = np.zeros_like(lower) if slowdown is None else found.chance(1 / slowdown)
    return {
        (key, other): PairPrediction(
            *(round(float(one[at[key], at[other]]), 4) for one in (found.speed, lower, chance))
        )
        for key in keys
        for other in keys
        if (key, other) not in speeds
    }


def family_and_size(key: str) -> tuple[str, float | None]:
    """Return the family of a key and its size, which is the last number in the name.

    For example, `resnet50` and `resnet101` belong to one family.
    """
    found = _NUMBER.fullmatch(unquote(key))
    if found is None:
        return key, None
    return f"{found['before']}#{found['after']}", float(found["size"])
