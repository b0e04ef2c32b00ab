"""Each idle job among many generated ones is reported within five minutes; no other job is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import pytest

from slurm_gpu.alerts.alert import AlertKind
from slurm_gpu.alerts.watch import RunningJob, Watch
from slurm_gpu.wire import LiveDevice
from tests.alerts.generated import SECONDS, SHAPES, Job, Truth, jobs

_N_JOBS = 240
_LOOKS_S = 10
_WITHIN_S = 300
# Shorter idle times are normal, for example while a job writes a checkpoint or loads data.
_LEAST_S = 220
# Coverage above which an idle job must be reported, and coverage below which it must not be.
_SEEN, _UNSEEN = 0.9, 0.75
# Circumstances in which the start of idleness is unknown.
_BLIND = ("seldom reported", "an outage", "unread")
_START = 1_780_000_000
_NEVER, _ENDED, _PARTLY = AlertKind.NEVER_USED, AlertKind.USED_THEN_IDLE, AlertKind.PARTLY_UNUSED

# Alert kinds by second and job.
Reported = dict[int, dict[int, set[AlertKind]]]


Values = tuple[float, LiveDevice]


def _values(job: Job) -> Iterator[tuple[str, list[int], list[Values]]]:
    """Yield, for each GPU, all values during the job and the seconds in which its node reports them."""
    holders = (job.number, -job.number) if job.shared else (job.number,)
    for place, gpu in enumerate(job.gpus):
        reported = [second for second in gpu.reported if second >= job.start_s]
        values = []
        for second in reported:
            util = gpu.value(second)
            idle_s = None if job.bare or util is None else gpu.idle_s(second)
            value = LiveDevice(util_pct=util, idle_s=idle_s, mem_used_frac=0.2, jobs=holders)
            values.append((float(_START + second), value))
        yield f"GPU-{job.number}-{place}", reported, values


def _running(all_jobs: list[Job], second: int) -> Iterator[RunningJob]:
    for job in all_jobs:
        pending = job.requeued_s is not None and job.requeued_s - 40 <= second < job.requeued_s
        if second < job.known_s or pending:
            continue
        for number in (job.number, -job.number) if job.shared else (job.number,):
            yield RunningJob(
                job_id=number,
                start_s=_START + job.begin_s(second),
                suspended=second in job.suspended,
                used_before=job.recorded_use(second),
            )


def watched(all_jobs: list[Job], watch_s: int) -> Reported:
    """Watch all jobs, polling every ten seconds; a new watch starts at `watch_s`."""
    watch, reported = Watch(), {}
    every = [each for job in all_jobs for each in _values(job)]
    for second in range(0, SECONDS, _LOOKS_S):
        if second == watch_s:
            watch = Watch()
        last = {
            uuid: values[so_far - 1] for uuid, when, values in every if (so_far := bisect_right(when, second))
        }
        watch.update(_START + second, _running(all_jobs, second), last)
        here: dict[int, set[AlertKind]] = {}
        for alert in watch.alerts(_START + second):
            here.setdefault(abs(alert.job_id), set()).add(alert.kind)
        reported[second] = here
    return reported


class Judged:
    """The alerts of one job compared with the truth."""

    def __init__(self, job: Job, watch_s: int, reported: Reported) -> None:
        self.job, self.truth = job, Truth(job, watch_s)
        self.missed: list[int] = []
        self.false: list[tuple[int, AlertKind]] = []
        self.took_s: list[int] = []
        """Delay of the alert in each idle period of the job."""
        waited = flagged = False
        musts = self.truth.idle_for(_WITHIN_S, _SEEN)
        first_s = max(watch_s, job.known_s, self.truth.begin_s)
        for second in range(-(-first_s // _LOOKS_S) * _LOOKS_S, SECONDS, _LOOKS_S):
            alerts = reported[second].get(job.number, set())
            may = self._may(second, alerts)
            must = musts[second] and not job.shared and second not in job.suspended
            self.false += [(second, concern) for concern in alerts - may]
            if must and waited and not alerts & {_NEVER, _ENDED}:
                self.missed.append(second)
            waited = must
            is_flagged = bool(alerts & {_NEVER, _ENDED})
            if is_flagged and not flagged and job.circumstance not in _BLIND:
                began_s = max(second - int(self.truth.quiet_s[:, second].min()), self.truth.since_s)
                self.took_s.append(second - began_s)
            flagged = is_flagged

    def _may(self, second: int, alerts: set[AlertKind]) -> set[AlertKind]:
        """Return the true alerts among `alerts`."""
        job, truth = self.job, self.truth
        if job.shared or second in job.suspended or not alerts:
            return set()
        used, quiet_s = truth.used[:, second], truth.quiet_s[:, second]
        whole = [truth.coverage(gpu, truth.since_s, second) >= _UNSEEN for gpu in range(len(job.gpus))]
        latest = [truth.latest_coverage(gpu, second, _LEAST_S) >= _UNSEEN for gpu in range(len(job.gpus))]
        idle = [
            quiet >= _LEAST_S and (known if gpu_used or not self._is_use_known(second) else all_known)
            for quiet, gpu_used, known, all_known in zip(quiet_s, used, latest, whole, strict=True)
        ]
        may = set()
        if all(idle):
            may.add(_ENDED if used.any() else _NEVER)
            if not self._is_use_known(second):
                may |= {_ENDED, _NEVER}
        if used.any() and any(
            not gpu_used and gpu_idle for gpu_used, gpu_idle in zip(used, idle, strict=True)
        ):
            may.add(_PARTLY)
        return may

    def _is_use_known(self, second: int) -> bool:
        """Return whether the use of the job's GPUs before the watch can be known."""
        truth = self.truth
        return truth.since_s <= truth.begin_s or self.job.recorded_use(second) == truth.used[:, second].any()


@pytest.mark.parametrize(("seed", "watch_s"), [(0, 0), (1, 1200)], ids=["", "slurm-gpuweb restarted"])
def test_idle_jobs_are_reported_within_five_minutes_and_no_others(seed: int, watch_s: int) -> None:
    """Start a new watch at `watch_s`, as after a restart of slurm-gpuweb."""
    all_jobs = jobs(seed, _N_JOBS)
    reported = watched(all_jobs, watch_s)
    judged = [Judged(job, watch_s, reported) for job in all_jobs]

    assert len(judged) >= 200
    assert {(job.shape, job.circumstance) for job in all_jobs} >= {
        (shape, one) for shape in SHAPES for one in ("plain", "values lost", "an outage")
    }
    names = {one.job.number: (one.job.shape, one.job.circumstance) for one in judged}
    assert {names[one.job.number]: one.missed[:3] for one in judged if one.missed} == {}
    assert {names[one.job.number]: one.false[:3] for one in judged if one.false} == {}
    took_s = [second for one in judged for second in one.took_s]
    assert max(took_s) <= _WITHIN_S
    idle = sum(bool(one.took_s) for one in judged)
    assert 40 <= idle <= len(judged) - 100, "too few jobs are idle, or too few are not"
