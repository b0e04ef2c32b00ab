"""Find the worker for which the others wait: its values changed differently when the job became slower."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.robust import Matrix, middle, sigma
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.diagnose.trend import Trend
from slurm_gpu.diagnose.verdict import SUSPICION, Cause, Evidence, Verdict

_LEAST_JUDGED = 3
# Minimum change in power and minimum gap to the other workers, as logarithms.
_LEAST_MOVE, _LEAST_GAP = 0.015, 0.01
_MANY = 5
# Minimum fall in the power of a slow worker, as a share of the fall in the waiting workers' power.
_FELL = 0.25
# Thresholds for utilisation, which is 1 except for the gaps between kernels.
_LEAST_WAIT, _WAITS_ALIKE, _WAIT_Z = 0.0018, 0.00035, 5.0


def starving_outlier(case: Case, trend: Trend, evidence: Sequence[Evidence], lack: float) -> Verdict | None:
    """Find workers whose utilisation fell by at least `-lack` when the job became slower.

    All other workers spin while they wait for these workers.
    """
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
    text = f"{who}: utilisation fell by {-change:.0%} at the same time, while the others wait"
    found = Evidence(text=text, metric="util", value=change, expected=0.0, workers=names)
    nodes = case.whole_nodes(rows)
    return case.verdict(
        Cause.STARVATION,
        0.7,
        kind="node" if nodes else "workers",
        culprits=case.workers(rows),
        nodes=nodes,
        evidence=(*evidence, found),
    )


def power_outlier(case: Case, trend: Trend, evidence: Sequence[Evidence]) -> Verdict | None:
    """Find the worker for which the others wait: its power fell least or most when all became slower.

    A slow link changes the power of all GPUs equally. A worker with more to do draws as much power as before,
    and more than the waiting workers. The power of a worker with a fault falls, sometimes further than that
    of its waiting peers.
    """
    power = case.signals.get(Signal.POWER)
    if power is None:
        return None
    own = _moved(case, trend, np.log(np.maximum(power, 1e-6)))
    moved = own.copy()
    for members in case.groups.members():
        # In a group of two, it is unknown which worker changed.
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
    chosen = high if 2 * len(high) <= len(order) else low
    if chosen is low and len(low) > 1:
        return None
    fell = own[high].mean() < _FELL * own[low].mean()
    # If the power of both halves fell, either half may be unusual, but many GPUs rarely become slow at once.
    if fell and len(low) == len(high) < _MANY:
        return None
    rows = np.isin(np.arange(case.n), chosen)
    names, who = case.named(rows)
    change = float(np.expm1(apart if chosen is high else -apart))
    text = f"{who}: power changed by {change:+.1%} relative to the other GPUs at the same time"
    found = (*evidence, Evidence(text=text, metric="power", value=change, expected=0.0, workers=names))
    # A fall on only one GPU is a fault of that GPU; added work often affects several GPUs.
    if len(names) > 1 or (chosen is high and not fell):
        verdict = case.verdict(Cause.IMBALANCE, 0.55, kind="workers", roles=names, evidence=found)
    else:
        verdict = case.verdict(Cause.SLOW, 0.55, kind="power", culprits=case.workers(rows), evidence=found)
    return verdict.limited("without SM activity, power is the only evidence", most=SUSPICION)


def utilisation_outlier(case: Case, trend: Trend, evidence: Sequence[Evidence]) -> Verdict | None:
    """Find the only worker whose utilisation did not rise when that of all other workers did.

    Between two kernels, a GPU has nothing to run for a moment. A spinning GPU has no such pauses. Utilisation
    therefore rises on workers that wait longer, but not on the worker that they wait for.
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
    # By chance, medians of rounded values may differ by one rounding step.
    error = middle(trend.error(util)[case.judged])
    least = max(_LEAST_WAIT, 1.5 * case.series.step, _WAIT_Z * max(sigma(others), _WAITS_ALIKE, error))
    if rose <= 0 or apart < least or gap < 0.5 * apart:
        return None
    rows = np.arange(case.n) == lowest
    names, who = case.named(rows)
    text = f"{who}: utilisation changed by {own:+.1%} at the same time, and that of the others by {rose:+.1%}"
    found = Evidence(text=text, metric="util", value=own, expected=rose, workers=names)
    verdict = case.verdict(
        Cause.SLOW, 0.55, kind="never waits", culprits=case.workers(rows), evidence=(*evidence, found)
    )
    return verdict.limited("without SM activity, utilisation is the only evidence", most=SUSPICION)


def _moved(case: Case, trend: Trend, rows: Matrix) -> Matrix:
    """Return the change of each judged worker since the trend began."""
    return np.where(case.judged, trend.moved(rows), np.nan)
