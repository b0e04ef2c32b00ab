"""Find periods in which a job computes nothing, by comparison with its own past."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.changes import split
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import smooth
from slurm_gpu.diagnose.verdict import LONG_PAUSE, SUSPICION, UNEXPLAINED, Cause, Evidence, Verdict

# Maximum utilisation of GPUs without work.
_IDLE = 0.1
# Shares of time are compared in parts of one minute, because a minute covers several steps and data loads.
_PART_S = 60.0
_LEAST_PARTS = 2
# Minimum increase in the share of time without computation.
_LEAST_MORE = 0.1
# More pauses than this are a pattern, such as late input. A few may be checkpoints and evaluations.
_A_FEW = 3
# Regular pauses, such as evaluations, begin after one interval. Only pauses that begin later are a change.
_INTERVALS = 2.0


def stalls(case: Case) -> Verdict | None:
    """Find whether the job computes for less of the time than before, or paused for a long time.

    Other checks judge only the time in which the job computes. Regular pauses for checkpoints or evaluations
    do not change this share.
    """
    computing = np.flatnonzero(case.phases.active)
    if not computing.size:
        return None
    stop = int(computing[-1]) + 1  # its end is judged as a hang
    known = np.isfinite(case.phases.activity[:stop]) & (np.arange(stop) >= computing[0])
    nothing = case.phases.computes_nothing[:stop]
    if (pause := _long_pause(case, nothing)) is not None:
        return pause
    width_s = case.series.width_s
    n = max(1, round(_PART_S / width_s))
    found = split(smooth(np.where(known, nothing, np.nan)[None, :], n, 0.5), _LEAST_PARTS)
    at = int(found.at[0]) * n
    before, after = float(found.before[0]), float(found.after[0])
    starts = [first for first, _ in _runs(nothing) if first >= at - n]
    if at == 0 or after - before < _LEAST_MORE or len(starts) <= _A_FEW:
        return None
    if at < _INTERVALS * np.median(np.diff(starts)):
        return None
    since_s = case.series.start_s + at * width_s
    text = f"the GPUs compute nothing for {after:.0%} of the time, compared with {before:.0%} before"
    evidence = (Evidence(text=text, metric="activity", value=1 - after, expected=1 - before),)
    if _is_idle(case, nothing, at):
        verdict = case.verdict(Cause.STARVATION, SUSPICION, kind="all", since_s=since_s, evidence=evidence)
        return verdict.limited("the GPUs may also wait for something other than input")
    return case.verdict(
        Cause.INCONCLUSIVE, 0.0, kind=UNEXPLAINED, since_s=since_s, evidence=evidence, why_not=(text,)
    )


def _long_pause(case: Case, nothing: NDArray[np.bool_]) -> Verdict | None:
    """Find a pause that took a large share of the time and was much longer than all others."""
    runs = sorted(_runs(nothing), key=lambda run: run[1] - run[0])
    if not runs:
        return None
    (first, stop), others = runs[-1], runs[:-1]
    longest = stop - first
    second = others[-1][1] - others[-1][0] if others else 0
    if longest < max(_LEAST_MORE * len(nothing), 2 * second):
        return None
    width_s = case.series.width_s
    since_s = case.series.start_s + first * width_s
    text = f"nothing computed for {longest * width_s:.0f} s; then the job continued"
    evidence = (Evidence(text=text, metric="activity", value=0.0, expected=1.0),)
    return case.verdict(
        Cause.INCONCLUSIVE,
        0.0,
        kind=LONG_PAUSE,
        excludes_faults=True,
        since_s=since_s,
        until_s=case.series.start_s + stop * width_s,
        evidence=evidence,
        why_not=(text,),
    )


def _runs(marked: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs [first, stop) of marked bins that lie between unmarked bins."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(int)))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(first, stop) for first, stop in runs if first > 0 and stop < len(marked)]


def _is_idle(case: Case, nothing: NDArray[np.bool_], since: int) -> bool:
    """Return whether most GPUs have nothing to run in this time, rather than waiting for each other."""
    util = case.series.get(Metric.UTIL)
    if util is None:
        return False
    there = util[:, : len(nothing)][:, nothing & (np.arange(len(nothing)) >= since)]
    there = there[np.isfinite(there)]
    return bool(there.size) and float((there <= _IDLE).mean()) >= 0.5
