"""Use the gaps between kernels to find workers with more work, on GPUs older than Hopper.

Between two kernels, a GPU has nothing to run for a moment. A GPU that spins in a collective operation has no
such gaps, so its utilisation is higher by a fraction of a percent. Utilisation alone is not enough evidence,
because the CPU may also launch kernels late. However, a worker with more work draws more power, while a
worker with late launches draws less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile, sigma
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.diagnose.verdict import SUSPICION, Cause, Evidence, Verdict

_LEAST_WORKERS = 4
# Minimum gap and minimum σ, as fractions of utilisation, and minimum gap in σ.
_LEAST_GAPS, _ALIKE, _Z = 0.0018, 0.00035, 6.0
# Minimum distance between workers with and without gaps, as a share of their mean difference.
_CLEAR = 0.3
# Minimum mean excess of power, as a logarithm and in standard errors, and the minimum standard deviation,
# since identical GPUs may always differ in power.
_MORE_POWER, _POWER_Z, _POWER_STD = 0.025, 3.0, 0.02


def heavier_by_gaps(case: Case) -> Verdict | None:
    """Find workers that draw more power than others and, unlike them, have gaps between kernels."""
    util, power = case.signals.get(Signal.UTIL), case.signals.get(Signal.POWER)
    if util is None or power is None or Signal.BUSY in case.signals:
        return None
    used, taken = median(util), np.log(np.maximum(median(power), 1e-6))
    rows, more = np.zeros(case.n, dtype=bool), np.full(case.n, np.nan)
    for members in case.groups.members():
        there = members[case.judged[members] & np.isfinite(used[members]) & np.isfinite(taken[members])]
        if there.size >= _LEAST_WORKERS:
            rows[there] = _never_wait(used[there], case.series.step)
            more[there] = taken[there] - middle(taken[there[~rows[there]]])
    rest = np.isfinite(more) & ~rows
    std = max(sigma(more[rest]), _POWER_STD)
    if not rows.any() or more[rows].mean() < max(_MORE_POWER, _POWER_Z * std / np.sqrt(rows.sum())):
        return None
    names, who = case.named(rows)
    apart = middle(used[rest]) - middle(used[rows])
    power_ratio = float(np.exp(more[rows].mean()))
    evidence = (
        Evidence(
            text=f"{who}: {power_ratio - 1:.1%} more power than the others",
            metric="power",
            value=power_ratio - 1,
            expected=0.0,
            workers=names,
        ),
        Evidence(
            text=f"{who}: utilisation {apart:.2%} lower, since the others spin while they wait",
            metric="util",
            value=-apart,
            expected=0.0,
            workers=names,
        ),
    )
    verdict = case.verdict(Cause.IMBALANCE, SUSPICION, kind="workers", roles=names, evidence=evidence)
    return verdict.limited(
        "without SM activity, power and gaps between kernels are the only evidence", most=SUSPICION
    )


def _never_wait(used: Matrix, step: float) -> NDArray[np.bool_]:
    """Mark those workers of a group that never wait."""
    usual = float(quantile(used[None, :], 0.75)[0])
    alike = max(sigma(used[used >= middle(used)]), _ALIKE)
    rows = usual - used >= max(_LEAST_GAPS, 1.5 * step, _Z * alike)
    none = np.zeros_like(rows)
    if not rows.any() or 2 * rows.sum() > rows.size:
        return none
    between = float(used[~rows].min() - used[rows].max())
    return rows if between >= _CLEAR * (usual - float(used[rows].mean())) else none
