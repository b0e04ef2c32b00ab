"""Compare the clocks of a job with those of earlier runs of the same application on the same GPU model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.hardware import ALWAYS_LOWER
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import MODELS
from slurm_gpu.diagnose.phases import phases
from slurm_gpu.diagnose.robust import median, middle, sigma
from slurm_gpu.diagnose.series import Series
from slurm_gpu.diagnose.signals import LEAST_BLOCKS, Signal
from slurm_gpu.diagnose.verdict import SUSPICION, Cause, Evidence, Verdict

_LEAST_RUNS = 5
_SIGMAS = 3.0
# If power reaches this share of its limit, the limit may lower the clock, for example with a larger batch.
_POWER_LIMITED = 0.9


def usual_clock(series: Series) -> float:
    """Return the median SM clock of a run while it computes, as a fraction of the maximum; NaN if unknown."""
    clocks = series.get(Metric.SM_CLOCK)
    if clocks is None:
        return float("nan")
    return middle(median(np.where(phases(series).active, clocks, np.nan)))


def below_earlier_runs(case: Case, clocks: Sequence[float]) -> Verdict | None:
    """Find GPUs below their power limit whose clocks are far below `clocks`, those of earlier runs.

    The comparison does not need peers. The median of the earlier runs is not affected by a few slow ones.
    """
    own, power = case.signals.get(Signal.CLOCK), case.signals.get(Signal.POWER)
    if len(clocks) < _LEAST_RUNS or own is None or power is None or case.active_blocks < LEAST_BLOCKS:
        return None
    if case.groups.source.startswith(MODELS):
        return None
    past = np.array(clocks)
    usual = middle(past)
    with np.errstate(invalid="ignore"):
        low = median(own) <= usual * (1 - ALWAYS_LOWER) - _SIGMAS * sigma(past)
        rows = case.judged & low & (median(power) < _POWER_LIMITED)
    if not rows.any():
        return None
    level = float(np.median(median(own)[rows]))
    names, who = case.named(rows)
    text = f"{who}: SM clock {level:.0%}, compared with {usual:.0%} in {len(past)} earlier runs"
    verdict = case.verdict(
        Cause.SLOW,
        SUSPICION,
        kind="clock",
        culprits=case.workers(rows),
        nodes=case.whole_nodes(rows),
        evidence=(Evidence(text=text, metric="clock", value=level, expected=usual, workers=names),),
    )
    return verdict.limited("the earlier runs may have had other inputs or settings")
