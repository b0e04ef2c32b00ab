"""A job that computes no more: does it hang, or does it write a checkpoint, load, or end?"""

from __future__ import annotations

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.metric import HOST_METRICS, Metric
from slurm_gpu.diagnose.phases import held_s
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile
from slurm_gpu.diagnose.verdict import Cause, Evidence, Verdict

_SPINS = 0.9
_IDLE = 0.1
_QUIET = 0.3
"""Of the traffic while it computes: what moves more is not hanging."""
_TRAFFIC = (Metric.NETWORK, Metric.INFINIBAND, Metric.PCIE)
_TAIL_S = 12.0
"""Who spins, and what moves, is asked of the end alone: before it the job stopped."""
_APART_S = 5.0
_PAUSES = 2.0
"""Times the longest pause so far that it may stand still."""


def hanging(case: Case) -> Verdict | None:
    """A job that did compute, and has stood still to the end for longer than it ever did before."""
    start = case.phases.stands_from()
    if start is None:
        return None
    series, rules = case.series, case.rules
    stands_s = (series.n_bins - start) * series.width_s
    longest_s = max(((b - a) * series.width_s for a, b in case.phases.pauses()), default=0.0)
    tail = max(start, series.n_bins - max(1, round(_TAIL_S / series.width_s)))
    quiet, loud = _traffic(case, tail)
    util = series.get(Metric.UTIL)
    now = np.full(case.n, np.nan) if util is None else median(util[:, tail:])
    with np.errstate(invalid="ignore"):
        spinning, idle = now >= _SPINS, now <= _IDLE
        goes_on = util is not None and (spinning & (median(util[:, start:tail]) <= _IDLE)).any()
    if loud or goes_on:
        return None  # utilisation is read each second: whoever was waited for is back
    waits = spinning.sum() >= 0.5 * max(case.judged.sum(), 1)
    # Whoever writes for all is the first, and the others wait for it as they would in a hang.
    writes = waits and idle[0] and idle.sum() == 1
    enough_s = rules.hang_s if quiet or (waits and not writes) else rules.unsure_hang_s
    enough_s = max(enough_s, _PAUSES * longest_s, 2 * series.width_s if series.width_s > 5 else 0.0)
    if not case.running:
        enough_s = max(enough_s, rules.over_hang_s)
    if stands_s < enough_s:
        return None
    # Who does not take part while the others spin is whom they wait for.
    rows = idle if waits and idle.any() else _first_to_stop(case, start)
    activity = float(np.nanmean(case.phases.activity[start:]))
    evidence = [
        Evidence(
            text=f"nothing computed for {stands_s:.0f} s; the longest pause before was {longest_s:.0f} s",
            metric="activity",
            value=activity,
            expected=1.0,
        )
    ]
    if waits:
        text = f"{spinning.sum()} workers spin at full utilisation: they wait for others"
        evidence.append(Evidence(text=text, metric="util", value=float(np.nanmax(now)), expected=1.0))
    if rows.any():
        text = "do not take part, or stopped first"
        names = tuple(worker.name for worker in case.workers(rows))
        evidence.append(Evidence(text=text, metric="util", value=0.0, expected=1.0, workers=names))
    return case.verdict(
        Cause.HANG,
        0.9 if quiet or (waits and not writes) else 0.7,
        kind="waits for others" if waits else "stands still",
        culprits=case.workers(rows) if rows.sum() <= 0.5 * case.judged.sum() else (),
        since_s=series.start_s + start * series.width_s,
        evidence=tuple(evidence),
    )


def _traffic(case: Case, tail: int) -> tuple[bool, bool]:
    """(whether a host told that it is quiet, whether anything still moves)."""
    quiet = loud = False
    for metric in _TRAFFIC:
        matrix = case.series.get(metric)
        if matrix is None:
            continue
        usual = middle(median(matrix[:, case.phases.active].T)) if case.phases.active.any() else np.nan
        most = _greatest(matrix[:, tail:])
        if not usual > 0 or not np.isfinite(most):
            continue
        loud |= most > _QUIET * usual
        quiet |= metric in HOST_METRICS and most <= _QUIET * usual
    return quiet, loud


def _greatest(rows: Matrix) -> float:
    """Of what any worker did for a good part of the time: one that writes is enough."""
    levels = quantile(rows, 0.75)
    known = levels[np.isfinite(levels)]
    return float(known.max()) if known.size else float("nan")


def _first_to_stop(case: Case, start: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Those that stopped well before the others, by more than clocks may be apart."""
    of = case.phases.of[:, :start]
    rows = np.zeros(case.n, dtype=bool)
    with np.errstate(invalid="ignore"):
        busy = of >= 0.4
    there = busy.any(axis=1)
    if there.sum() < 3:
        return rows
    last = np.where(there, of.shape[1] - 1 - np.argmax(busy[:, ::-1], axis=1), -1)
    ahead_s = (np.median(last[there]) - last) * case.series.width_s
    # Of two nodes one may have read its counters just before, the other nearly so long ago.
    rows[there] = ahead_s[there] > max(_APART_S + 2 * held_s(case.series), 2 * case.series.width_s)
    return rows
