"""Speeds of pairs that nobody saw, from those that were seen: fitted beside the watcher, which never waits.

The predictor is colocation.speeds.predictor, in numpy. A fit takes the cube of the speeds that it is
made of, and memory by the square of the applications; so it is made of a bounded number of both.
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
from slurm_gpu.controller.colocation.store import ColocationStore, KeyProfile, by_turns

log = logging.getLogger("slurm-gpuctld")

Speeds = Mapping[tuple[str, str], float]

EVERY_S = 60.0
MOST_KEYS = 32
"""Keys of current jobs, most jobs first, then keys that were most often seen with others."""
MOST_SPEEDS = 300
"""A fit uses at most this many speeds, the most informative ones (see predictor.predict)."""
LEAST_SPEEDS = 4
"""Fewer say nothing of others."""
_NUMBER = re.compile(r"(?P<before>.*?)(?P<size>\d{1,9})(?P<after>\D*)", re.DOTALL)


class PairFit:
    """One fit at a time, as something was learned, and once a minute at most."""

    def __init__(self, background: Background, clock: Clock) -> None:
        self._clock = clock
        self._fit = BackgroundTask[Speeds](background)
        self._made_of: object = None
        self._next_s = 0.0
        self._failed = self._has_left_out = False

    def forget(self) -> None:
        """The next store is another one."""
        self._fit.drop()
        self._made_of = None

    def turn(self, store: ColocationStore, there: Mapping[str, int]) -> None:
        """Give the store the finished fit, and start another if needed. `there`: current jobs by key."""
        if self._fit.is_done:
            try:
                store.predict(self._fit.take())
                self._failed = False
            except (ImportError, ArithmeticError, ValueError) as error:  # numpy's LinAlgError is a ValueError
                if not self._failed:
                    log.warning("pairs that nobody saw are judged by their use alone: %s", error)
                self._failed = True
        if not self._fit.is_free or self._clock.monotonic() < self._next_s:
            return
        profiles, speeds = _chosen(store, there)
        n_left_out = len((there.keys() & store.profiles.keys()) - profiles.keys())
        if n_left_out and not self._has_left_out:
            log.warning(
                "%d keys have jobs, and a fit takes %d: pairs of the other %d, with the fewest jobs, "
                "are judged by utilisation alone if they never ran together",
                n_left_out + len(profiles),
                MOST_KEYS,
                n_left_out,
            )
        self._has_left_out = n_left_out > 0
        made_of = tuple(profiles), tuple(sorted(speeds.items()))
        if len(speeds) < LEAST_SPEEDS or made_of == self._made_of:
            return
        self._made_of, self._next_s = made_of, self._clock.monotonic() + EVERY_S
        self._fit.start(lambda: predicted(profiles, speeds))


def _chosen(
    store: ColocationStore, there: Mapping[str, int]
) -> tuple[dict[str, KeyProfile], dict[tuple[str, str], tuple[float, int]]]:
    """The profiles, and the speeds of their pairs, that a fit uses."""
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
    profiles: Mapping[str, KeyProfile], speeds: Mapping[tuple[str, str], tuple[float, int]]
) -> Speeds:
    """Of all pairs of these that are not in `speeds`, which has (speed, times seen) of who beside whom."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads cost more than they give, and memory each
    import numpy as np

    from slurm_gpu.colocation.profiles.traits import Traits
    from slurm_gpu.colocation.speeds.predictor import predict

    keys = list(profiles)
    at = {key: index for index, key in enumerate(keys)}
    measured, counts = np.full((len(keys), len(keys)), np.nan), np.zeros((len(keys), len(keys)))
    for (key, other), (speed, times) in speeds.items():
        measured[at[key], at[other]], counts[at[key], at[other]] = speed, times
    traits = [
        Traits(*family_and_size(key), (one.util_frac, one.memory_frac)) for key, one in profiles.items()
    ]
    prior = np.array([[by_turns(one, other) for other in profiles.values()] for one in profiles.values()])
    predicted = predict(traits, measured, counts, prior, most=MOST_SPEEDS).speed
    return {
        (key, other): round(float(predicted[at[key], at[other]]), 4)
        for key in keys
        for other in keys
        if (key, other) not in speeds
    }


def family_and_size(key: str) -> tuple[str, float | None]:
    """`resnet50` and `resnet101` are of one family: a name without its last number, which is the size."""
    found = _NUMBER.fullmatch(unquote(key))
    if found is None:
        return key, None
    return f"{found['before']}#{found['after']}", float(found["size"])
