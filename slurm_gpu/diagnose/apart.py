"""Who changed otherwise than the rest when all became slower: whom the others wait for, and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.robust import Matrix, middle, sigma
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.diagnose.trend import Trend
from slurm_gpu.diagnose.verdict import SUSPICION, Cause, Evidence, Verdict

_LEAST_JUDGED = 3
_LEAST_MOVE, _LEAST_GAP = 0.015, 0.01
"""Of power."""
_LEAST_WAIT, _WAITS_ALIKE, _WAIT_Z = 0.0018, 0.00035, 5.0
"""Of utilisation, which is 1 but for what launches of kernels leave."""


def wants_data(case: Case, trend: Trend, evidence: Sequence[Evidence], lack: float) -> Verdict | None:
    """Those that have had less to run, by `lack` or more, since all are slower, while the others spin."""
    util = case.signals.get(Signal.UTIL)
    if util is None:
        return None
    moved = _moved(case, trend, util)
    with np.errstate(invalid="ignore"):
        rows = moved <= lack
    if not rows.any() or rows.sum() > 0.5 * case.judged.sum():
        return None
    change = float(np.median(moved[rows]))
    names, who = case.named(rows)
    text = f"{who}: utilisation fell by {-change:.0%} with it, while the others wait for them"
    told = Evidence(text=text, metric="util", value=change, expected=0.0, workers=names)
    nodes = case.whole_nodes(rows)
    return case.verdict(
        Cause.STARVATION,
        0.7,
        kind="node" if nodes else "workers",
        culprits=case.workers(rows),
        nodes=nodes,
        evidence=(*evidence, told),
    )


def power_apart(case: Case, trend: Trend, evidence: Sequence[Evidence]) -> Verdict | None:
    """Who kept its power, or lost most of it, when all became slower: whom the others wait for.

    Of links that are slow all have the same. Who has more to do waits less than the others since then, and
    takes more than they do; one that takes less than those who wait for it is held up by something in itself.
    """
    power = case.signals.get(Signal.POWER)
    if power is None:
        return None
    moved = _moved(case, trend, np.log(np.maximum(power, 1e-6)))
    for members in case.groups.members():
        # Of two nobody knows which one moved.
        enough = np.isfinite(moved[members]).sum() >= _LEAST_JUDGED
        moved[members] -= middle(moved[members]) if enough else np.nan
    order = np.argsort(moved)[: int(np.isfinite(moved).sum())]
    if len(order) < _LEAST_JUDGED:
        return None
    cut = int(np.argmax(np.diff(moved[order]))) + 1
    low, high = order[:cut], order[cut:]
    apart = float(moved[high].mean() - moved[low].mean())
    within = max(float(moved[low].std()), float(moved[high].std()), _LEAST_MOVE / case.rules.z)
    gap = float(moved[high].min() - moved[low].max())
    if apart < max(_LEAST_MOVE, case.rules.z * within) or gap < max(_LEAST_GAP, 0.5 * apart):
        return None
    # What begins on one GPU alone is trouble of that GPU; who has more to do since then is a group's.
    chosen = high if 2 * len(high) <= len(order) else low
    if chosen is low and len(low) > 1:
        return None
    rows = np.isin(np.arange(case.n), chosen)
    names, who = case.named(rows)
    change = float(np.expm1(apart if chosen is high else -apart))
    text = f"{who}: power changed by {change:+.1%} against the other GPUs' at the same time"
    told = (*evidence, Evidence(text=text, metric="power", value=change, expected=0.0, workers=names))
    if len(names) > 1:
        verdict = case.verdict(Cause.IMBALANCE, 0.55, kind="workers", roles=names, evidence=told)
    else:
        verdict = case.verdict(Cause.SLOW, 0.55, kind="power", culprits=case.workers(rows), evidence=told)
    return verdict.limited("without SM activity it is told by power alone", most=SUSPICION)


def never_waits(case: Case, trend: Trend, evidence: Sequence[Evidence]) -> Verdict | None:
    """The one whose utilisation did not rise when all others' did.

    Between kernels a GPU has nothing to run for a moment, and who waits spins without any: all that wait
    longer since then show more utilisation, and whom they wait for shows as much as ever.
    """
    util = case.signals.get(Signal.UTIL)
    if util is None:
        return None
    moved = _moved(case, trend, util)
    order = np.argsort(moved)[: int(np.isfinite(moved).sum())]
    if len(order) < _LEAST_JUDGED:
        return None
    lowest, others = int(order[0]), moved[order[1:]]
    own, rose = float(moved[lowest]), float(np.median(others))
    apart, gap = rose - own, float(others[0]) - own
    # Middles of what is rounded lie a whole step apart by chance.
    least = max(_LEAST_WAIT, 1.5 * case.series.step, _WAIT_Z * max(sigma(others), _WAITS_ALIKE))
    if rose <= 0 or apart < least or gap < 0.5 * apart:
        return None
    rows = np.arange(case.n) == lowest
    names, who = case.named(rows)
    text = (
        f"{who}: its utilisation changed by {own:+.1%} with it, that of those who wait for it by {rose:+.1%}"
    )
    told = Evidence(text=text, metric="util", value=own, expected=rose, workers=names)
    verdict = case.verdict(
        Cause.SLOW, 0.55, kind="never waits", culprits=case.workers(rows), evidence=(*evidence, told)
    )
    return verdict.limited("without SM activity it is told by utilisation alone", most=SUSPICION)


def _moved(case: Case, trend: Trend, rows: Matrix) -> Matrix:
    """By how much each moved, of those that are judged."""
    return np.where(case.judged, trend.moved(rows), np.nan)
