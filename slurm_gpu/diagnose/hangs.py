"""Decide whether a job that stopped computing is hung, writing a checkpoint, loading data or ending."""

from __future__ import annotations

import numpy as np

from slurm_gpu.diagnose.case import Case
from slurm_gpu.diagnose.metric import BACKGROUND, HOST_METRICS, Metric
from slurm_gpu.diagnose.phases import refresh_interval_s
from slurm_gpu.diagnose.robust import Matrix, median, middle, quantile
from slurm_gpu.diagnose.verdict import SUSPICION, TOO_EARLY, Cause, Evidence, Verdict
from slurm_gpu.text.units import counted

_SPINS = 0.9
_IDLE = 0.1
# Maximum traffic of a job that hangs, as a share of the traffic during computation.
_QUIET = 0.3
_TRAFFIC = (Metric.NETWORK, Metric.INFINIBAND, Metric.PCIE)
# Strength of a hang without another explanation. Callers may wait until a less certain hang persists.
CLEAR_HANG = 0.9
_WORKS, _RESTS = 0.4, 0.5
# Spinning does not use tensor cores, and an evaluation uses them less than training does.
_TENSOR_WORKS = 0.15
# A waiting worker draws less than this share of its power during computation.
_POWER_WORKS, _POWER_APART = 0.8, 0.15
# Minimum levels of a worker that computes, as shares of its usual levels. A spinning worker uses a quarter of
# the SMs, and rarely draws four fifths of the power.
_AT_WORK = {Metric.SM_ACTIVE: 0.6, Metric.POWER: 0.9}
# Minimum share of the usual activity in a sample that contains no part of the stall.
_WHOLE = 0.9
# Spinning and traffic are judged only in the last seconds, because the job was still stopping before them.
_TAIL_S = 12.0
_APART_S = 5.0
# A stall of up to this factor times the longest previous pause is normal.
_PAUSE_FACTOR = 2.0
# Share of the CPU use in training above which CPUs may compute or load the data for which the GPUs wait.
_COMPUTE_INSTEAD = 0.55
# Maximum duration of an evaluation on CPUs.
_LONG_S = 300.0
# A job that has computed for fewer seconds may be compiling or capturing graphs.
_SETTLED_S = 60.0
# Minimum stall if all GPUs are idle, as they also are between a job's last step and its end. If the stall
# began with a copy to the hosts, or if CPUs are busy, `unsure_hang_s` applies instead. If no host reports CPU
# use, the result is inconclusive until `unsure_hang_s`, because loading has the same symptoms.
_EARLY_S = 25.0
# Number of last samples to check: a process that queries the GPU appears in only one of them.
_BACK = 2
# Excess over the PCIe traffic of computation, as a share of the usual traffic, that indicates a copy to the
# hosts before a long write.
_COPIED = 0.25
STALLED_AT_END = "stalled at its end"


def hang(case: Case) -> Verdict | None:
    """Find a job that has computed, but has now been stalled for longer than ever before.

    The result is inconclusive as long as the job may just as well be loading data.
    """
    start = case.phases.stalled_from()
    if start is None:
        return None
    series, rules = case.series, case.rules
    stalled_s = _stalled_s(case, start)
    tail = max(start, _tail(case))
    quiet, loud = _traffic(case, tail)
    util = series.get(Metric.UTIL)
    now, before = (np.full(case.n, np.nan),) * 2 if util is None else _last_utilisation(util, start, tail)
    with np.errstate(invalid="ignore"):
        spinning, idle = now >= _SPINS, now <= _IDLE
        continues = ((now > _IDLE) & (before <= _IDLE)).any()
        at_work = ((now > _IDLE) & (now < _SPINS)).any()
    # Brief activity is no evidence of progress if the job has ended or was stalled for a long time.
    continues |= case.running and stalled_s < _LONG_S and _came_back(util, before)
    if loud or continues or at_work or _any_works(case, tail) or _most_work(case, start, tail):
        # The job is not stalled: for example, the missing worker is back.
        return None
    waits = spinning.sum() >= 0.5 * max(case.judged.sum(), 1)
    longest_s = _longest_pause_s(case, quiet=quiet, waits=bool(waits))
    # The first worker often writes for all workers, and the others wait for it as in a hang.
    writes = waits and not now[0] > _IDLE and idle[1:].sum() == 0
    settled = case.phases.active.sum() * series.width_s >= _SETTLED_S
    sure = settled and ((waits and not writes) or (quiet and _hosts_rest(case, tail)))
    enough_s = rules.unsure_hang_s
    if settled and waits and (quiet or not writes):
        enough_s = rules.hang_s
    elif settled and quiet:
        # The job may also be ending.
        enough_s = max(_EARLY_S, rules.hang_s)
    early = settled and not (quiet or waits) and enough_s > _EARLY_S and not _copied(case, start)
    cpus = _cpus(case, tail)
    early = early and (cpus is None or cpus <= _RESTS)
    enough_s = _EARLY_S if early else enough_s
    enough_s = max(enough_s, _PAUSE_FACTOR * longest_s, 2 * series.width_s if series.width_s > 10 else 0.0)
    if not case.running:
        waited = case.cut_short and waits and not writes
        enough_s = max(enough_s, rules.unsure_hang_s if waited else rules.over_hang_s)
    if stalled_s < enough_s:
        return None
    # If one worker does not spin, the workers that spin wait for it.
    rows = idle if waits and idle.any() else _first_to_stop(case, start)
    activity = float(np.nanmean(case.phases.activity[start:]))
    evidence = [
        Evidence(
            text=f"nothing computed for {stalled_s:.0f} s; the longest pause before was {longest_s:.0f} s",
            metric="activity",
            value=activity,
            expected=1.0,
        )
    ]
    if waits:
        workers = counted(int(spinning.sum()), "worker")
        text = f"{workers} at full utilisation without progress, waiting for others"
        evidence.append(Evidence(text=text, metric="util", value=float(np.nanmax(now)), expected=1.0))
    if rows.any():
        names, who = case.named(rows)
        verb = "is" if len(names) == 1 else "are"
        text = f"{who} stopped first, or {verb} idle while the others wait"
        evidence.append(Evidence(text=text, metric="util", value=0.0, expected=1.0, workers=names))
    verdict = case.verdict(
        Cause.HANG,
        CLEAR_HANG if sure else 0.8 if quiet else 0.7,
        kind="waits for others" if waits else "stalled",
        culprits=case.workers(rows) if rows.sum() <= 0.5 * case.judged.sum() else (),
        since_s=series.start_s + start * series.width_s,
        evidence=tuple(evidence),
    )
    if early and stalled_s < rules.unsure_hang_s:
        same = "at first, loading and writing have the same symptoms as a hang"
        if cpus is None:
            unclear = f"{evidence[0].text}, and no host reports whether the job loads or writes data; {same}"
            return case.verdict(
                Cause.INCONCLUSIVE,
                0.0,
                kind=TOO_EARLY,
                since_s=verdict.since_s,
                evidence=verdict.evidence,
                why_not=(unclear,),
            )
        unknown = f"the job may be loading or writing data although its CPUs are idle; {same}"
        return verdict.limited(unknown, most=SUSPICION)
    if sure or stalled_s >= _LONG_S or (why := _maybe_on_cpus(case, tail, writes=bool(writes))) is None:
        return verdict
    return verdict.limited(why, most=SUSPICION)


def _tail(case: Case) -> int:
    return case.series.n_bins - max(1, round(_TAIL_S / case.series.width_s))


def stalled_at_end(case: Case) -> str | None:
    """Describe the final stall of a job that was cut short; None if it was not stalled for long."""
    start = case.phases.stalled_from() if case.cut_short else None
    if start is None:
        return None
    stalled_s, width_s = _stalled_s(case, start), case.series.width_s
    if _most_work(case, start, max(start, _tail(case))):
        return None
    if stalled_s < max(case.rules.unsure_hang_s, _PAUSE_FACTOR * _longest_pause_s(case), 2 * width_s):
        return None
    return f"nothing computed for the last {stalled_s:.0f} s: the job hung or had nothing more to compute"


def _longest_pause_s(case: Case, *, quiet: bool = False, waits: bool = False) -> float:
    """Return the longest previous pause that may have the same reason as the current one.

    `quiet` states whether hosts report no traffic, and `waits` whether most workers spin.
    """
    width_s = case.series.width_s
    pauses = [
        (a, b)
        for a, b in case.phases.pauses()
        if not (quiet and _had_host_traffic(case, a, b)) and not (waits and _all_idle(case, a, b))
    ]
    return max(((b - a) * width_s for a, b in pauses), default=0.0)


def _had_host_traffic(case: Case, first: int, stop: int) -> bool:
    """Return whether a host wrote or read data during a pause."""
    for metric in _TRAFFIC:
        matrix = case.series.get(metric)
        if matrix is None or metric not in HOST_METRICS or not case.phases.active.any():
            continue
        usual = middle(median(matrix[:, case.phases.active].T))
        most = quantile(matrix[:, first:stop], 0.5)
        if (most[np.isfinite(most)] > max(usual, BACKGROUND)).any():
            return True
    return False


def _all_idle(case: Case, first: int, stop: int) -> bool:
    util = case.series.get(Metric.UTIL)
    if util is None:
        return False
    levels = median(util[:, first:stop])
    return bool((levels[np.isfinite(levels)] <= _IDLE).all()) and bool(np.isfinite(levels).any())


def _copied(case: Case, start: int) -> bool:
    """Return whether, when all workers stopped, a GPU sent more over PCIe than computation requires.

    Such a copy precedes a long write. The result is True if the traffic is unknown.
    """
    pcie = case.series.get(Metric.PCIE)
    if pcie is None or not case.phases.active.any():
        return True
    refresh_bins = max(1, round(refresh_interval_s(case.series) / case.series.width_s))
    usual = median(pcie[:, case.phases.active])[:, None]
    here = slice(max(0, start - refresh_bins), start + 2 * refresh_bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = pcie[:, here] / usual - case.phases.of[:, here]
    return bool((excess[np.isfinite(excess)] >= _COPIED).any())


def _maybe_on_cpus(case: Case, tail: int, *, writes: bool) -> str | None:
    """Return why CPUs may be working while GPUs wait, as in an evaluation; None if nothing suggests this."""
    share = _cpus(case, tail)
    if share is None and writes:
        return (
            "only the first worker is not waiting, and no host reports whether that worker computes on CPUs "
            "for all workers"
        )
    if share is not None and share >= _COMPUTE_INSTEAD:
        return f"CPUs are at {share:.0%} of their earlier load: they may compute or load data for the GPUs"
    return None


def _last_utilisation(util: Matrix, start: int, tail: int) -> tuple[Matrix, Matrix]:
    """Return each worker's utilisation at the end of the data, and from the start of the stall until then.

    Both are NaN if unknown. If samples are ten seconds apart, they are momentary values, and the second
    result is their minimum.
    """
    coarse = util.shape[1] - tail <= 1
    return median(_end(util, tail)), quantile(util[:, start:tail], 0.0 if coarse else 0.5)


def _came_back(util: Matrix | None, before: Matrix) -> bool:
    """Return whether a worker that had nothing to run is busy in each of the last samples."""
    if util is None:
        return False
    last = util[:, -_BACK:]
    with np.errstate(invalid="ignore"):
        return bool(((last > _IDLE).all(axis=1) & (before <= _IDLE)).any())


def _end(rows: Matrix, tail: int) -> Matrix:
    """Return the columns from `tail` on. If there is only one, fill its NaN from the previous column."""
    last = rows[:, tail:]
    if last.shape[1] > 1 or tail == 0:
        return last
    return np.where(np.isfinite(last), last, rows[:, tail - 1 : tail])


def _any_works(case: Case, tail: int) -> bool:
    """Return whether a worker computes while the others wait, for example in an evaluation."""
    least = {Metric.TENSOR: _TENSOR_WORKS, Metric.SM_ACTIVE: _WORKS}.get(case.phases.metric or Metric.UTIL)
    levels = median(case.phases.of[:, tail:])
    if least is not None and (levels[np.isfinite(levels)] >= least).any():
        return True
    power = case.series.get(Metric.POWER)
    if power is None or not case.phases.active.any():
        return False
    share = _relative_to_usual(case, power, tail)
    with np.errstate(invalid="ignore"):
        return bool((share >= max(_POWER_WORKS, middle(share) + _POWER_APART)).any())


def _most_work(case: Case, start: int, tail: int) -> bool:
    """Return whether most workers compute without tensor cores or traffic, as in an evaluation."""
    for metric, least in _AT_WORK.items():
        matrix = case.series.get(metric)
        if matrix is None or not case.phases.active.any():
            continue
        # If too few workers have data at the end, use their activity since the stall began.
        for since in (tail, start):
            share = _relative_to_usual(case, matrix, since)
            known = share[np.isfinite(share)]
            if 2 * known.size >= case.judged.sum():
                return bool(2 * (known >= least).sum() >= known.size)
    return False


def _relative_to_usual(case: Case, matrix: Matrix, tail: int) -> Matrix:
    """Return each worker's activity at the end, relative to its usual activity; NaN if that is 0."""
    usual = median(matrix[:, case.phases.active])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(usual > 0, median(_end(matrix, tail)) / usual, np.nan)


def _hosts_rest(case: Case, tail: int) -> bool:
    """Return whether CPUs are too idle, compared with training, to compile, load or write anything."""
    share = _cpus(case, tail)
    return share is not None and share <= _RESTS


def _cpus(case: Case, tail: int) -> float | None:
    """Return the CPU use of the busiest host at the end, relative to that in training; None if unknown."""
    cpu = case.series.get(Metric.CPU)
    if cpu is None or not case.phases.active.any():
        return None
    usual, now = middle(median(cpu[:, case.phases.active].T)), _greatest(_end(cpu, tail))
    return now / usual if usual > 0 and np.isfinite(now) else None


def _stalled_s(case: Case, start: int) -> float:
    """Return the duration of the stall, including its part within the last samples before the job stopped.

    For example, a ten-second mean of 60 % means six seconds of work and four seconds of stall.
    """
    width_s = case.series.width_s
    first = max(0, start - max(1, round(refresh_interval_s(case.series) / width_s)))
    before = case.phases.activity[first:start]
    whole = np.flatnonzero(~(before < _WHOLE))
    lacking = 1.0 - np.clip(before[whole[-1] + 1 if whole.size else 0 :], 0.0, 1.0)
    return float(width_s * (case.series.n_bins - start + lacking.sum()))


def _traffic(case: Case, tail: int) -> tuple[bool, bool]:
    """Return whether any host network has little traffic, and whether any link still has much traffic."""
    quiet = loud = False
    for metric in _TRAFFIC:
        matrix = case.series.get(metric)
        if matrix is None:
            continue
        usual = middle(median(matrix[:, case.phases.active].T)) if case.phases.active.any() else np.nan
        most = _greatest(_end(matrix, tail))
        is_host_metric = metric in HOST_METRICS
        if not np.isfinite(most) or not (usual >= 0 if is_host_metric else usual > 0):
            continue
        loud |= most > max(_QUIET * usual, BACKGROUND if is_host_metric else 0.0)
        quiet |= is_host_metric and usual >= BACKGROUND and most <= _QUIET * usual
    return quiet, loud


def _greatest(rows: Matrix) -> float:
    """Return the highest of the workers' upper quartiles, since one worker that writes is enough."""
    levels = quantile(rows, 0.75)
    known = levels[np.isfinite(levels)]
    return float(known.max()) if known.size else float("nan")


def _first_to_stop(case: Case, start: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark workers that stopped before the others by more than the difference between clocks can explain."""
    of = case.phases.of[:, :start]
    rows = np.zeros(case.n, dtype=bool)
    with np.errstate(invalid="ignore"):
        busy = of >= 0.4
    there = busy.any(axis=1)
    if there.sum() < 3:
        return rows
    last = np.where(there, of.shape[1] - 1 - np.argmax(busy[:, ::-1], axis=1), -1)
    ahead_s = (np.median(last[there]) - last) * case.series.width_s
    # One node may have read its counters just before the stop, another almost a refresh interval earlier.
    rows[there] = ahead_s[there] > max(
        _APART_S + 2 * refresh_interval_s(case.series), 2 * case.series.width_s
    )
    return rows
