"""Whether a job's GPUs do one thing together. Those of several programs beside each other have no peers.

In synchronous training nobody computes while somebody stands still: who waits takes part in nothing. So GPUs
that go on as ever beside one that does nothing for half a minute are not in step with it, nor are those of a
node that send each other nothing. What differs between them then says nothing of any of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import middle, quantile, smooth

_EACH_S = 10.0
_APART_S = 30.0
"""A reading of ten seconds may show another ten of a pause than its neighbour's does."""
_APART_OF_TWO_S = 120.0
"""Of two one may evaluate for both for a while."""
_STANDS, _GOES_ON = 0.05, 0.8
"""Utilisation, or the share of what it usually does, of who has nothing to run; the latter of who goes on."""
_MOST_GO_ON = 0.5
_NO_NVLINK, _NO_PCIE = 1e-5, 0.05
"""Of what a link carries: a small model's gradients take a thousandth, data for a GPU alone some of PCIe."""


def out_of_step(case: Case) -> str | None:
    """Why workers cannot be compared with each other; None where nothing speaks against it."""
    return _one_stands(case) or _nothing_sent(case)


def _one_stands(case: Case) -> str | None:
    """Somebody does nothing while most of the others do what they always do."""
    found, width_s = case.phases, case.series.width_s
    if found.metric in (None, Metric.UTIL):
        return None  # who waits spins, and has 100 % as who computes
    n = max(1, round(_EACH_S / width_s))
    of = smooth(_of_its_most(case), n)
    each_s = n * width_s
    enough_s = _APART_S if case.judged.sum() > 2 else _APART_OF_TWO_S
    least = int(np.ceil(enough_s / each_s))
    if of.shape[1] < least:
        return None
    means, util = _rolling(of, least), case.series.get(Metric.UTIL)
    # Whoever waits for a long step of the others spins.
    runs = means if util is None else _rolling(smooth(np.where(case.judged[:, None], util, np.nan), n), least)
    with np.errstate(invalid="ignore"):
        stands, goes_on = runs <= _STANDS, means >= _GOES_ON
    known = np.isfinite(means)
    others, going = known.sum(axis=0) - known, goes_on.sum(axis=0) - goes_on
    apart = stands & (others > 0) & (going >= np.maximum(1, _MOST_GO_ON * others))
    rows = apart.any(axis=1)
    if not rows.any():
        return None
    first = int(np.flatnonzero(rows)[0])
    seconds = (least + int(apart[first].sum()) - 1) * each_s
    going_on = int(going[first][apart[first]].max())
    return (
        f"its GPUs are not in step: {case.series.workers[first].name} stood still for {seconds:.0f} s while "
        f"{going_on} others went on, so there is nobody to compare with"
    )


def _of_its_most(case: Case) -> NDArray[np.float64]:
    """Of each worker what it does of what it does at its best, most of which is none that waits."""
    most = quantile(case.phases.of, 0.95)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(most > 0, case.phases.of / most, np.nan)


def _rolling(rows: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Means of `n` neighbours, at each place; a gap where one of them is."""
    sums = np.cumsum(np.pad(np.where(np.isfinite(rows), rows, 0.0), ((0, 0), (1, 0))), axis=1)
    gaps = np.cumsum(np.pad((~np.isfinite(rows)).astype(int), ((0, 0), (1, 0))), axis=1)
    means = (sums[:, n:] - sums[:, :-n]) / n
    return np.where(gaps[:, n:] == gaps[:, :-n], means, np.nan)


def _nothing_sent(case: Case) -> str | None:
    """GPUs that are joined by links, and have sent each other nothing over any."""
    nvlink, pcie = case.series.get(Metric.NVLINK), case.series.get(Metric.PCIE)
    if nvlink is None or pcie is None or case.series.step > 0 or not case.phases.active.any():
        return None  # rounded, a little is nothing
    here = case.phases.active
    told = case.judged & np.isfinite(nvlink[:, here]).any(axis=1) & np.isfinite(pcie[:, here]).any(axis=1)
    shared = [node for node in case.series.nodes if told[case.series.on(node)].sum() >= 2]
    if not shared or not told[case.judged].all():
        return None
    sent, over = (float(np.nanmax(quantile(rows[told][:, here], 0.98))) for rows in (nvlink, pcie))
    if not (sent <= _NO_NVLINK and over <= _NO_PCIE and middle(case.phases.activity[here]) > 0):
        return None
    return "its GPUs send each other nothing, over NVLink or PCIe: each does what it does by itself"
