"""Check whether a job's GPUs work in step, since independent programs have no peers.

In synchronous training no worker computes while another is stalled. GPUs that keep working while another GPU
does nothing for half a minute are therefore not in step with that GPU. GPUs of a node that exchange no data
are not in step either. Differences between GPUs that are not in step are meaningless.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import BY_WORK, MIN_PEERS
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile, smooth
from slurm_gpu.diagnose.signals import LEAST_BLOCKS, Signal

_EACH_S = 10.0
# Ten-second samples of two workers may cover different parts of a pause.
_APART_S = 30.0
# In a job of two GPUs, one GPU may evaluate for both for a while.
_APART_OF_TWO_S = 120.0
# Maximum utilisation of a worker with nothing to run, and minimum activity, relative to the usual activity,
# of a worker that keeps working.
_STALLED, _WORKING = 0.05, 0.8
_LEAST_WORKING = 0.5
# Maximum traffic of unused links, as fractions of their capacity. Gradients of a small model use a thousandth
# of NVLink's capacity, and input data uses some of PCIe's.
_NO_NVLINK, _NO_PCIE = 1e-5, 0.05
# Minimum difference between the paces of independent GPUs, as a logarithm, and maximum difference between two
# signals.
_PACES_APART, _SAME_PACE = 0.1, 0.3
# Number of blocks over which the mean of traffic in bursts is steady, unless steps are long.
_BLOCKS_OF_BURSTS = 3
# Minimum number of samples, and minimum standard deviation and correlation of variations.
_LEAST_SAMPLES, _LEAST_VARIATION, _TOGETHER = 100, 0.01, 0.8


def out_of_step(case: Case) -> str | None:
    """Return why workers cannot be compared with each other; None if they can."""
    return _one_stalled(case) or _nothing_sent(case) or _own_pace(case) or _own_variation(case)


def _one_stalled(case: Case) -> str | None:
    """Find a worker that does nothing while most others work as usual."""
    found, width_s = case.phases, case.series.width_s
    if found.metric in (None, Metric.UTIL):
        # A waiting worker spins at 100 % utilisation, like one that computes.
        return None
    n = max(1, round(_EACH_S / width_s))
    of = smooth(_relative_to_best(case), n)
    each_s = n * width_s
    enough_s = _APART_S if case.judged.sum() > 2 else _APART_OF_TWO_S
    least = int(np.ceil(enough_s / each_s))
    if of.shape[1] < least:
        return None
    means, util = _rolling(of, least), case.series.get(Metric.UTIL)
    # A worker that waits for a long step of the other workers spins.
    runs = means if util is None else _rolling(smooth(np.where(case.judged[:, None], util, np.nan), n), least)
    with np.errstate(invalid="ignore"):
        is_idle, is_working = runs <= _STALLED, means >= _WORKING
    known = np.isfinite(means)
    others, n_working = known.sum(axis=0) - known, is_working.sum(axis=0) - is_working
    apart = is_idle & (others > 0) & (n_working >= np.maximum(1, _LEAST_WORKING * others))
    rows = apart.any(axis=1)
    if not rows.any():
        return None
    first = int(np.flatnonzero(rows)[0])
    seconds = (least + int(apart[first].sum()) - 1) * each_s
    working = int(n_working[first][apart[first]].max())
    return (
        f"its GPUs are not in step: {case.series.workers[first].name} was idle for {seconds:.0f} s while "
        f"{working} others continued, so they cannot be compared"
    )


def _relative_to_best(case: Case) -> NDArray[np.float64]:
    """Return each worker's activity relative to its maximum, reached while it does not wait."""
    most = quantile(case.phases.of, 0.95)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(most > 0, case.phases.of / most, np.nan)


def _rolling(rows: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return the mean of the `n` values that begin at each position; NaN if one of these values is NaN."""
    sums = np.cumsum(np.pad(np.where(np.isfinite(rows), rows, 0.0), ((0, 0), (1, 0))), axis=1)
    gaps = np.cumsum(np.pad((~np.isfinite(rows)).astype(int), ((0, 0), (1, 0))), axis=1)
    means = (sums[:, n:] - sums[:, :-n]) / n
    return np.where(gaps[:, n:] == gaps[:, :-n], means, np.nan)


def _nothing_sent(case: Case) -> str | None:
    """Find a job whose GPUs send each other nothing although they share a node."""
    nvlink, pcie = case.series.get(Metric.NVLINK), case.series.get(Metric.PCIE)
    if nvlink is None or pcie is None or case.series.step > 0 or not case.phases.active.any():
        # Rounding may hide small values.
        return None
    here = case.phases.active
    known = case.judged & np.isfinite(nvlink[:, here]).any(axis=1) & np.isfinite(pcie[:, here]).any(axis=1)
    shared = [node for node in case.series.nodes if known[case.series.on(node)].sum() >= 2]
    if not shared or not known[case.judged].all():
        return None
    sent, over = (float(np.nanmax(quantile(rows[known][:, here], 0.98))) for rows in (nvlink, pcie))
    if not (sent <= _NO_NVLINK and over <= _NO_PCIE and middle(case.phases.activity[here]) > 0):
        return None
    return "its GPUs send each other nothing over NVLink or PCIe: each works by itself"


def _own_pace(case: Case) -> str | None:
    """Find whether each GPU sends in proportion to its own work, as independent GPUs do.

    In synchronous training, GPUs with unequal work send equal amounts of gradients in the same time, and a
    slow link does not change the traffic of other links.
    """
    signals = case.signals
    pairs = [(Signal.WORK, Signal.NVLINK), (Signal.WORK, Signal.PCIE), (Signal.PCIE, Signal.NVLINK)]
    # Independent GPUs at two paces resemble two roles.
    of_all = case.groups.source == BY_WORK
    groups = [np.arange(case.n)] if of_all else case.groups.members()
    for one, other in pairs:
        if one not in signals or other not in signals:
            continue
        known = np.isfinite(signals[one]) & np.isfinite(signals[other]) & case.judged[:, None]
        for members in groups:
            rows = members[known[members].any(axis=1)]
            # Use only the blocks that all workers have in common, without the gaps that pauses leave.
            there = np.ix_(rows, np.flatnonzero(known[rows].all(axis=0)))
            done, moved = signals[one][there], signals[other][there]
            if done.shape[1] < LEAST_BLOCKS:
                continue
            # Try both lengths: a few unusual blocks change the mean of all blocks, and most means of few
            # blocks contain no burst if steps are long.
            for n in (_BLOCKS_OF_BURSTS, done.shape[1]):
                done_by, moved_by = _paces(done, n), _paces(moved, n)
                send = np.isfinite(done_by) & np.isfinite(moved_by)
                if send.sum() < MIN_PEERS:
                    continue
                done_by, moved_by = done_by[send], moved_by[send]
                apart = float(np.ptp(moved_by))
                if apart >= _PACES_APART and float(np.abs(moved_by - done_by).max()) <= _SAME_PACE * apart:
                    return (
                        f"its GPUs are not in step: their {one} and their {other} traffic differ by up to "
                        f"{np.expm1(apart):.0%} in the same proportion, so they have no peers"
                    )
    return None


def _paces(rows: Matrix, n: int) -> Matrix:
    """Return the logarithm of each row's usual ratio to the other rows at the same time; NaN if unknown.

    A block contains only a few bursts of traffic, or none, so `n` blocks are averaged.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(smooth(rows, n, 1.0))
    logs[np.isinf(logs)] = np.nan
    return median(logs - median(logs.T))


def _own_variation(case: Case) -> str | None:
    """Find whether the traffic of each GPU varies with its own work, because the GPUs are independent."""
    tensor, nvlink = case.series.get(Metric.TENSOR), case.series.get(Metric.NVLINK)
    if tensor is None or nvlink is None:
        return None
    done, moved = (relative_series(case, matrix) for matrix in (tensor, nvlink))
    known = np.isfinite(done) & np.isfinite(moved)
    a, b = done[known], moved[known]
    if a.size < _LEAST_SAMPLES or min(a.std(), b.std()) < _LEAST_VARIATION:
        return None
    # A sample with more of a long step's computation contains less of its communication.
    if not abs(np.corrcoef(a, b)[0, 1]) >= _TOGETHER:
        return None
    return (
        f"its GPUs are not in step: their {Signal.WORK} and their {Signal.NVLINK} traffic vary together on "
        "each GPU, independently of the others"
    )


def relative_series(case: Case, matrix: Matrix, kept: NDArray[np.bool_] | None = None) -> Matrix:
    """Return each worker's values, relative to its own level and to its peers on the node at the same time.

    Only workers in `kept`, by default all, count as workers and as peers.
    """
    own = np.full(matrix.shape, np.nan)
    for node in case.series.nodes:
        there = case.series.on(node)
        for group in range(len(case.groups.names)):
            rows = there[case.groups.of[there] == group]
            rows = rows if kept is None else rows[kept[rows]]
            if rows.size < 2:
                continue
            part = np.where(case.phases.active, matrix[rows], np.nan)
            usual = median(part)[:, None]
            with np.errstate(invalid="ignore", divide="ignore"):
                relative = np.where(usual > 0.02, part / usual, np.nan)
            together = median(relative.T)
            own[rows] = relative - together
    return own
