"""Split a recorded run into phases at lasting changes in its GPU use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.profiles.profile import ProfilePhase
from slurm_gpu.wire.timeline import Timeline

MOST_PHASES = 8
_SERIES = ("util", "mem_used", "sm_active", "pcie")
_MEMORY = _SERIES.index("mem_used")
# Minimum standard deviation of a series within a phase: the resolution of the record.
_LEAST_DEVIATION = 0.02
_GAP_DEVIATION = 0.2
# If a series was measured in at most this share of a phase, its value there is unknown.
_MOSTLY = 0.5

Floats = NDArray[np.float64]


def phases_of(
    timeline: Timeline, memory_mib: float | None, elapsed_s: float | None = None
) -> list[ProfilePhase]:
    """Split a run on one device into at most MOST_PHASES stretches of even use; none if there are no bins.

    `memory_mib` is the device's memory; without it, memory use is unknown. `elapsed_s` is the duration of the
    run, which differs from that of the bins if the first and last bins are partial. The memory of a phase is
    the maximum over its bins; other values are means. A value is None if it was measured in too little of
    the phase. The boundaries of phases are those with the least squared error (found by dynamic programming).
    The Bayesian information criterion determines the number of phases.
    """
    if timeline.n_bins == 0:
        return []
    series = np.array(
        [[math.nan if one is None else one for one in timeline.fractions(name)] for name in _SERIES]
    )
    ends = segments(series, MOST_PHASES)
    whole_s = timeline.n_bins * timeline.width_s
    stretch = 1.0 if elapsed_s is None or elapsed_s <= 0 else elapsed_s / whole_s
    found = []
    for begin, end in zip((0, *ends), ends, strict=False):
        util, memory, sm, pcie = (_of_phase(series[row, begin:end], row) for row in range(len(_SERIES)))
        mib = None if memory is None or memory_mib is None else memory * memory_mib
        seconds = (end - begin) * timeline.width_s * stretch
        found.append(ProfilePhase(seconds=seconds, util=util, memory_mib=mib, sm=sm, pcie=pcie))
    return found


def segments(series: Floats, most: int) -> list[int]:
    """Return the ends of at most `most` even stretches of a series (rows, n); the last end is n.

    NaN marks values that were not measured; n must be at least 1.
    """
    standard = _standardised(series)
    cost = _costs(standard)
    n, rows = standard.shape[1], standard.shape[0]
    # best[k][j] is the least cost of bins 0 to j as k + 1 stretches, the last of which begins at came[k][j].
    best, came = [cost[0]], [np.zeros(n, dtype=np.int64)]
    for _ in range(1, min(most, n)):
        before = np.concatenate(([math.inf], best[-1][:-1]))
        every = before[:, None] + cost
        came.append(np.argmin(every, axis=0))
        best.append(every[came[-1], np.arange(n)])
    # Each stretch adds a level in every row and a boundary, so it must reduce the cost by at least this
    # amount.
    penalty = (rows + 1) * math.log(max(n, 2))
    chosen = int(np.argmin([row[-1] + penalty * k for k, row in enumerate(best)]))
    ends = [n]
    for k in range(chosen, 0, -1):
        ends.append(int(came[k][ends[-1] - 1]))
    return ends[::-1]


def _standardised(series: Floats) -> Floats:
    """Return each row in units of its noise, which is estimated from its steps; mark gaps in extra rows."""
    rows = []
    for row in series:
        known = ~np.isnan(row)
        if not known.any():
            continue
        values = row[known]
        steps = np.abs(np.diff(values))
        # The median of |steps| of normal noise is 0.6745·√2 standard deviations.
        noise = float(np.median(steps)) / 0.954 if len(steps) else 0.0
        filled = np.full(row.shape, values.mean())
        filled[known] = values
        rows.append(filled / max(noise, _LEAST_DEVIATION))
        if not known.all():
            rows.append(known / _GAP_DEVIATION)
    return np.array(rows) if rows else np.zeros((1, series.shape[1]))


def _costs(rows: Floats) -> Floats:
    """Return (n, n): [i, j] is the sum of squared deviations of bins i to j from their mean; inf if j < i.

    The sum includes all rows.
    """
    n = rows.shape[1]
    sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
    squares = np.concatenate([[0.0], np.cumsum((rows**2).sum(axis=0))])
    begin, end = np.arange(n)[:, None], np.arange(1, n + 1)[None]
    length = np.maximum(end - begin, 1)
    between = ((sums[:, None, 1:] - sums[:, :-1, None]) ** 2).sum(axis=0)
    cost = squares[None, 1:] - squares[:-1, None] - between / length
    return np.asarray(np.where(end > begin, np.maximum(cost, 0.0), math.inf))


def _of_phase(values: Floats, row: int) -> float | None:
    known: Sequence[float] = values[~np.isnan(values)].tolist()
    if len(known) <= _MOSTLY * len(values):
        return None
    return max(known) if row == _MEMORY else math.fsum(known) / len(known)
