"""The usage of a synthetic cluster over the last days: busier by day than by night, with an outage."""

from __future__ import annotations

import math
import random

from slurm_gpu.wire.answers.usage import BINS_S, ClusterUsage

_DAY_S = 86400


def usage_of(n_gpus: int, days: int, now_s: float) -> ClusterUsage:
    """Return `days` of usage, up to `now_s`; one hour of each week is missing."""
    width_s = BINS_S[days]
    last_s = int(now_s // width_s) * width_s
    first_s = last_s - days * _DAY_S + width_s
    gpus: list[float | None] = []
    allocated: list[float | None] = []
    busy: list[float | None] = []
    waiting_jobs: list[float | None] = []
    waiting_gpus: list[float | None] = []
    for at_s in range(first_s, last_s + width_s, width_s):
        dice = random.Random(at_s)
        day = (1 + math.sin(2 * math.pi * (at_s / _DAY_S - 0.35))) / 2
        is_missing = 7 * 3600 <= (last_s - at_s) % (7 * _DAY_S) < 8 * 3600
        there = round(n_gpus * (0.985 if at_s % (3 * _DAY_S) < _DAY_S / 2 else 1))
        held = round(there * min(1, 0.7 + 0.28 * day + 0.02 * dice.random()))
        jobs = round(n_gpus / 100 * day * (1 + dice.random()))
        gpus.append(None if is_missing else there)
        allocated.append(None if is_missing else held)
        busy.append(None if is_missing else round(held * (0.6 + 0.2 * day + 0.03 * dice.random()), 1))
        waiting_jobs.append(None if is_missing else jobs)
        waiting_gpus.append(None if is_missing else 4 * jobs)
    return ClusterUsage(
        from_s=first_s,
        bin_s=width_s,
        gpus=gpus,
        allocated=allocated,
        busy=busy,
        waiting_jobs=waiting_jobs,
        waiting_gpus=waiting_gpus,
    )
