"""Find workers with more work by the gaps between kernels, on GPUs older than Hopper.

Between two kernels, a GPU has nothing to run for a moment. A GPU that spins in a collective operation has no
such gaps, so its utilisation is higher by a fraction of a percent. Utilisation alone is not enough evidence,
since the CPU may also launch kernels late. However, a worker with more work takes more power, while one with
late launches takes less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile, sigma
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.diagnose.verdict import SUSPICION, Cause, Evidence, Verdict

_LEAST_WORKERS = 4
# Minimum gaps and σ, as fractions of utilisation, and minimum gaps in σ.
_LEAST_GAPS, _ALIKE, _Z = 0.0018, 0.00035, 6.0
# Minimum distance between workers with and without gaps, as a share of their mean difference.
_CLEAR = 0.3
# Logarithms of power: for all workers that never wait together; for a single one, which may always take more;
# and for each one.
_MORE_POWER, _MORE_OF_ONE, _NO_LESS = 0.03, 0.06, 0.01


def heavier_by_gaps(case: Case) -> Verdict | None:
    """Find workers that take more power than others and, unlike them, have gaps between kernels."""
    util, power = case.signals.get(Signal.UTIL), case.signals.get(Signal.POWER)
    if util is None or power is None or Signal.BUSY in case.signals:
        return None
    used, taken = median(util), np.log(np.maximum(median(power), 1e-6))
    rows = np.zeros(case.n, dtype=bool)
    for members in case.groups.members():
        there = members[case.judged[members] & np.isfinite(used[members]) & np.isfinite(taken[members])]
        if there.size >= _LEAST_WORKERS:
            rows[there] = _never_wait(used[there], taken[there], case.series.step)
    if not rows.any():
        return None
    names, who = case.named(rows)
    rest = ~rows & case.judged
    apart = middle(used[rest]) - middle(used[rows])
    more = float(np.expm1(middle(taken[rows]) - middle(taken[rest])))
    evidence = (
        Evidence(
            text=f"{who}: {more:.1%} more power than the others",
            metric="power",
            value=more,
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


def _never_wait(used: Matrix, taken: Matrix, step: float) -> NDArray[np.bool_]:
    """Mark those workers of a group that never wait."""
    usual = float(quantile(used[None, :], 0.75)[0])
    alike = max(sigma(used[used >= middle(used)]), _ALIKE)
    rows = usual - used >= max(_LEAST_GAPS, 1.5 * step, _Z * alike)
    none = np.zeros_like(rows)
    if not rows.any() or 2 * rows.sum() > rows.size:
        return none
    between = float(used[~rows].min() - used[rows].max())
    if between < _CLEAR * (usual - float(used[rows].mean())):
        return none
    more = taken[rows] - middle(taken[~rows])
    least = _MORE_OF_ONE if more.size == 1 else _MORE_POWER
    return rows if middle(more) >= least and more.min() >= _NO_LESS else none
