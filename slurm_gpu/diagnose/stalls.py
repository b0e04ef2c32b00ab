"""A job that computes no more: does it hang, or does it write a checkpoint, load, or end?"""

from __future__ import annotations

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.metric import BACKGROUND, HOST_METRICS, Metric
from slurm_gpu.diagnose.phases import held_s
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile
from slurm_gpu.diagnose.verdict import SUSPICION, Cause, Evidence, Verdict

_SPINS = 0.9
_IDLE = 0.1
_QUIET = 0.3
"""Of the traffic while it computes: what moves more is not hanging."""
_TRAFFIC = (Metric.NETWORK, Metric.INFINIBAND, Metric.PCIE)
SURE = 0.9
"""Told of a hang that nothing else looks like; who is less sure may wait whether it goes on."""
_WORKS, _RESTS = 0.4, 0.5
_TENSOR_WORKS = 0.15
"""Who spins uses no tensor core; an evaluation uses them less than the training does."""
_POWER_WORKS, _POWER_APART = 0.8, 0.15
"""Who waits takes less than that of what it takes while it computes."""
_AT_WORK = {Metric.SM_ACTIVE: 0.6, Metric.POWER: 0.9}
"""Of what is usual: who spins holds a quarter of the SMs, and seldom takes four fifths of the power."""
_WHOLE = 0.9
"""Of the usual activity: a reading in which it did not stop."""
_TAIL_S = 12.0
"""Who spins, and what moves, is asked of the end alone: before it the job stopped."""
_APART_S = 5.0
_PAUSES = 2.0
"""Times the longest pause so far that it may stand still."""
_COMPUTE_INSTEAD = 0.55
"""Of their use in training: CPUs that do more may well compute, or load, what the GPUs wait for."""
_LONG_S = 300.0
"""Longer than that nobody evaluates on CPUs."""
_SETTLED_S = 60.0
"""A training that has computed for less still compiles and captures graphs, and stands still for it."""
_EARLY_S = 25.0
"""Where no host tells of work: from then on it is a suspicion, unless it began with a copy to the hosts."""
_BACK = 2
"""Readings: a process that asks the GPU something is seen in one of them."""
_COPIED = 0.25
"""Of what PCIe usually carries, beyond what was computed meanwhile: what takes long to write was copied."""
STOOD = "stood still at its end"


def hanging(case: Case) -> Verdict | None:
    """A job that did compute, and has stood still to the end for longer than it ever did before."""
    start = case.phases.stands_from()
    if start is None:
        return None
    series, rules = case.series, case.rules
    stands_s = _stands_s(case, start)
    tail = max(start, _tail(case))
    quiet, loud = _traffic(case, tail)
    util = series.get(Metric.UTIL)
    now, before = (np.full(case.n, np.nan),) * 2 if util is None else _last_told(util, start, tail)
    with np.errstate(invalid="ignore"):
        spinning, idle = now >= _SPINS, now <= _IDLE
        goes_on = ((now > _IDLE) & (before <= _IDLE)).any()
        at_work = ((now > _IDLE) & (now < _SPINS)).any()
    # Of one that has stood for long, or was ended, a moment of something to run says little.
    goes_on |= case.running and stands_s < _LONG_S and _came_back(util, before)
    if loud or goes_on or at_work or _somebody_works(case, tail) or _most_work(case, start, tail):
        return None  # utilisation is read each second: whoever was waited for is back
    waits = spinning.sum() >= 0.5 * max(case.judged.sum(), 1)
    longest_s = _longest_pause_s(case, quiet=quiet, waits=bool(waits))
    # Whoever writes for all is the first, and the others wait for it as they would in a hang.
    writes = waits and not now[0] > _IDLE and idle[1:].sum() == 0
    settled = case.phases.active.sum() * series.width_s >= _SETTLED_S
    sure = settled and ((waits and not writes) or (quiet and _hosts_rest(case, tail)))
    enough_s = rules.hang_s if settled and (quiet or (waits and not writes)) else rules.unsure_hang_s
    early = settled and not (quiet or waits) and enough_s > _EARLY_S and not _copied(case, start)
    early = early and not _hosts_work(case, tail)
    enough_s = _EARLY_S if early else enough_s
    enough_s = max(enough_s, _PAUSES * longest_s, 2 * series.width_s if series.width_s > 10 else 0.0)
    if not case.running:
        waited = case.cut_short and waits and not writes
        enough_s = max(enough_s, rules.unsure_hang_s if waited else rules.over_hang_s)
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
        names, who = case.named(rows)
        text = f"{who} {'does' if len(names) == 1 else 'do'} not take part, or stopped first"
        evidence.append(Evidence(text=text, metric="util", value=0.0, expected=1.0, workers=names))
    verdict = case.verdict(
        Cause.HANG,
        SURE if sure else 0.8 if quiet else 0.7,
        kind="waits for others" if waits else "stands still",
        culprits=case.workers(rows) if rows.sum() <= 0.5 * case.judged.sum() else (),
        since_s=series.start_s + start * series.width_s,
        evidence=tuple(evidence),
    )
    if early and stands_s < rules.unsure_hang_s:
        silent = _cpus(case, tail) is None
        who = "no host told whether it loads or writes" if silent else "it may load or write while CPUs rest"
        unknown = f"{who}, which looks alike for a while"
        return verdict.limited(unknown, most=SUSPICION)
    if sure or stands_s >= _LONG_S or (why := _maybe_on_cpus(case, tail, writes=bool(writes))) is None:
        return verdict
    return verdict.limited(why, most=SUSPICION)


def _tail(case: Case) -> int:
    return case.series.n_bins - max(1, round(_TAIL_S / case.series.width_s))


def stood(case: Case) -> str | None:
    """Of a job that was cut short: for how long nothing was computed at its end, where that is long."""
    start = case.phases.stands_from() if case.cut_short else None
    if start is None:
        return None
    stands_s, width_s = _stands_s(case, start), case.series.width_s
    if _most_work(case, start, max(start, _tail(case))):
        return None
    if stands_s < max(case.rules.unsure_hang_s, _PAUSES * _longest_pause_s(case), 2 * width_s):
        return None
    return f"nothing computed for the last {stands_s:.0f} s: it hung, or had nothing more to compute"


def _longest_pause_s(case: Case, *, quiet: bool = False, waits: bool = False) -> float:
    """Of the pauses so far that may be of the same kind as what is now.

    `quiet`: hosts told that they move nothing; `waits`: most workers spin.
    """
    width_s = case.series.width_s
    pauses = [
        (a, b)
        for a, b in case.phases.pauses()
        if not (quiet and _moved_meanwhile(case, a, b)) and not (waits and _nobody_spun(case, a, b))
    ]
    return max(((b - a) * width_s for a, b in pauses), default=0.0)


def _moved_meanwhile(case: Case, first: int, stop: int) -> bool:
    """Whether a host moved data in a pause: it was one to write or to read."""
    for metric in _TRAFFIC:
        matrix = case.series.get(metric)
        if matrix is None or metric not in HOST_METRICS or not case.phases.active.any():
            continue
        usual = middle(median(matrix[:, case.phases.active].T))
        most = quantile(matrix[:, first:stop], 0.5)
        if (most[np.isfinite(most)] > max(usual, BACKGROUND)).any():
            return True
    return False


def _nobody_spun(case: Case, first: int, stop: int) -> bool:
    util = case.series.get(Metric.UTIL)
    if util is None:
        return False
    levels = median(util[:, first:stop])
    return bool((levels[np.isfinite(levels)] <= _IDLE).all()) and bool(np.isfinite(levels).any())


def _copied(case: Case, start: int) -> bool:
    """Whether a GPU sent more over PCIe than for what it computed, in the reading in which all stopped.

    True as well where it was not told.
    """
    pcie = case.series.get(Metric.PCIE)
    if pcie is None or not case.phases.active.any():
        return True
    held = max(1, round(held_s(case.series) / case.series.width_s))
    usual = median(pcie[:, case.phases.active])[:, None]
    here = slice(max(0, start - held), start + 2 * held)
    with np.errstate(invalid="ignore", divide="ignore"):
        beyond = pcie[:, here] / usual - case.phases.of[:, here]
    return bool((beyond[np.isfinite(beyond)] >= _COPIED).any())


def _maybe_on_cpus(case: Case, tail: int, *, writes: bool) -> str | None:
    """Why it may be that somebody computes on CPUs, as who evaluates for all does while the others wait."""
    share = _cpus(case, tail)
    if share is None and writes:
        return "the first worker alone does not wait: no host told whether it works for all, on CPUs"
    if share is not None and share >= _COMPUTE_INSTEAD:
        return f"CPUs do {share:.0%} of what they did: they may compute or load what the GPUs wait for"
    return None


def _last_told(util: Matrix, start: int, tail: int) -> tuple[Matrix, Matrix]:
    """(what each uses at the end, and before that since the job stopped): NaN where not told.

    Of values each ten seconds, which are of one moment, the second is the least.
    """
    coarse = util.shape[1] - tail <= 1
    return median(_end(util, tail)), quantile(util[:, start:tail], 0.0 if coarse else 0.5)


def _came_back(util: Matrix | None, before: Matrix) -> bool:
    """Whether anybody who had nothing to run has had something in each of the last readings."""
    if util is None:
        return False
    last = util[:, -_BACK:]
    with np.errstate(invalid="ignore"):
        return bool(((last > _IDLE).all(axis=1) & (before <= _IDLE)).any())


def _end(rows: Matrix, tail: int) -> Matrix:
    """Columns from `tail` on; of a single one, that not all have told yet, what they told before."""
    last = rows[:, tail:]
    if last.shape[1] > 1 or tail == 0:
        return last
    return np.where(np.isfinite(last), last, rows[:, tail - 1 : tail])


def _somebody_works(case: Case, tail: int) -> bool:
    """Whether a worker computes while the others wait, as one does that evaluates for all."""
    least = {Metric.TENSOR: _TENSOR_WORKS, Metric.SM_ACTIVE: _WORKS}.get(case.phases.metric or Metric.UTIL)
    levels = median(case.phases.of[:, tail:])
    if least is not None and (levels[np.isfinite(levels)] >= least).any():
        return True
    power = case.series.get(Metric.POWER)
    if power is None or not case.phases.active.any():
        return False
    share = _of_usual(case, power, tail)
    with np.errstate(invalid="ignore"):
        return bool((share >= max(_POWER_WORKS, middle(share) + _POWER_APART)).any())


def _most_work(case: Case, start: int, tail: int) -> bool:
    """Whether most compute, though without tensor cores or without a word to each other: they evaluate."""
    for metric, least in _AT_WORK.items():
        matrix = case.series.get(metric)
        if matrix is None or not case.phases.active.any():
            continue
        for since in (tail, start):  # who tells nothing at the end told what it did before
            share = _of_usual(case, matrix, since)
            known = share[np.isfinite(share)]
            if 2 * known.size >= case.judged.sum():
                return bool(2 * (known >= least).sum() >= known.size)
    return False


def _of_usual(case: Case, matrix: Matrix, tail: int) -> Matrix:
    """What each does at the end, of what it does while it computes; NaN where that was nothing."""
    usual = median(matrix[:, case.phases.active])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(usual > 0, median(_end(matrix, tail)) / usual, np.nan)


def _hosts_rest(case: Case, tail: int) -> bool:
    """Whether CPUs do far less than in training: who compiles, loads or writes uses them."""
    share = _cpus(case, tail)
    return share is not None and share <= _RESTS


def _hosts_work(case: Case, tail: int) -> bool:
    """Whether CPUs are told to do no less than many do in training."""
    share = _cpus(case, tail)
    return share is not None and share > _RESTS


def _cpus(case: Case, tail: int) -> float | None:
    """What the busiest host's CPUs do at the end, of what is usual in training; None where not told."""
    cpu = case.series.get(Metric.CPU)
    if cpu is None or not case.phases.active.any():
        return None
    usual, now = middle(median(cpu[:, case.phases.active].T)), _greatest(_end(cpu, tail))
    return now / usual if usual > 0 and np.isfinite(now) else None


def _stands_s(case: Case, start: int) -> float:
    """For how long nothing has been computed: of the reading in which it stopped, what is lacking in it.

    A mean over ten seconds of 60 % is six seconds of work, and four of the standstill that shows since.
    """
    width_s = case.series.width_s
    first = max(0, start - max(1, round(held_s(case.series) / width_s)))
    before = case.phases.activity[first:start]
    whole = np.flatnonzero(~(before < _WHOLE))
    lacking = 1.0 - np.clip(before[whole[-1] + 1 if whole.size else 0 :], 0.0, 1.0)
    return float(width_s * (case.series.n_bins - start + lacking.sum()))


def _traffic(case: Case, tail: int) -> tuple[bool, bool]:
    """(whether a host told that it is quiet, whether anything still moves)."""
    quiet = loud = False
    for metric in _TRAFFIC:
        matrix = case.series.get(metric)
        if matrix is None:
            continue
        usual = middle(median(matrix[:, case.phases.active].T)) if case.phases.active.any() else np.nan
        most = _greatest(_end(matrix, tail))
        of_host = metric in HOST_METRICS
        if not np.isfinite(most) or not (usual >= 0 if of_host else usual > 0):
            continue
        loud |= most > max(_QUIET * usual, BACKGROUND if of_host else 0.0)
        quiet |= of_host and usual >= BACKGROUND and most <= _QUIET * usual
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
