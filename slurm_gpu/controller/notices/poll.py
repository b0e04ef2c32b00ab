"""What slurm-gpudbd tells of the jobs that run, and what is to be thought of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_gpu.alerts.alert import Alert, AlertKind, AlertThresholds
from slurm_gpu.alerts.verdicts import unhealthy
from slurm_gpu.alerts.watch import Watch
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import NotFoundError
from slurm_gpu.notices.finding import JobFinding, NoticedJob, NoticedRun
from slurm_gpu.notices.idle_rule import COVERAGE, IdleJob
from slurm_gpu.notices.settings import Settings
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.cluster import ClusterJob, ClusterState, live_of_slurm
from slurm_gpu.wire.answers.running import Running, RunningUse
from slurm_gpu.wire.answers.runs import NodeReport
from slurm_gpu.wire.answers.verdicts import Verdicts

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient

_RUNS = frozenset({"RUNNING", "SUSPENDED"})
_OF_ALL_GPUS = frozenset({AlertKind.HELD_IDLE, AlertKind.USED_THEN_IDLE})
"""Concerns that say something of every GPU of a job: all of them must have been seen."""
_BESIDES = frozenset({AlertKind.MEMORY_IDLE, AlertKind.UNHEALTHY})
_NOW_S = 60.0
"""A value that is older says nothing of what a device does now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPoll:
    """The answers of one moment."""

    at_s: float
    """Wall clock, just before they were asked for."""
    cluster: ClusterState
    live: Mapping[str, Live]
    running: Running
    verdicts: Verdicts | None = None
    """Trouble of trainings; None of an older slurm-gpudbd."""
    reports: Sequence[NodeReport] = ()
    """How nodes number their GPUs, where verdicts name any."""

    @property
    def jobs(self) -> Sequence[ClusterJob]:
        """Those that hold GPUs, and not a part of one."""
        return [job for job in self.cluster.jobs if job.state in _RUNS and _has_whole_gpus(job)]

    @property
    def suspended(self) -> Collection[NoticedRun]:
        """Of those that stand still nobody expects that they compute."""
        jobs = [job for job in self.jobs if job.state == "SUSPENDED" and job.start_s is not None]
        return {NoticedRun(job.job_id, job.start_s or 0) for job in jobs}


def look_at(database: DatabaseClient, wall: Callable[[], float]) -> ClusterPoll:
    """Ask once; raises SlurmGpuError."""
    at_s = wall()
    cluster = database.cluster()
    live, running = live_of_slurm(cluster, database.live("jobs")), database.running()
    try:
        verdicts = database.verdicts()
    except NotFoundError:  # the rest is told all the same
        verdicts = None
    named = verdicts is not None and any(item.devices for item in verdicts.verdicts)
    reports = database.nodes() if named else ()
    return ClusterPoll(
        at_s=at_s, cluster=cluster, live=live, running=running, verdicts=verdicts, reports=reports
    )


def rules_of(config: SiteConfig) -> AlertThresholds:
    """The site's own min_coverage: below it nothing is judged."""
    usual = AlertThresholds()
    least = config.sampling.min_coverage
    return AlertThresholds(min_coverage=least) if least > 0 else usual


def watch(rules: Watch, look: ClusterPoll) -> list[Alert]:
    """Take in a look; returns all concerns that the watch has now."""
    rules.take_in(look.at_s, look.jobs, look.running, look.live)
    return [*rules.alerts(look.at_s), *diagnosed(look, rules.rules)]


def diagnosed(look: ClusterPoll, rules: AlertThresholds) -> list[Alert]:
    """What slurm-gpudbd's watch found, of which enough was seen."""
    runs = {(job.job_id, job.start_s) for job in look.jobs}
    found = unhealthy(look.verdicts, runs, look.reports, look.live)
    return [flag for flag in found if flag.coverage >= rules.min_coverage]


def findings_of(
    look: ClusterPoll, flags: Sequence[Alert], settings: Settings, ruled: Callable[[ClusterJob], bool]
) -> tuple[list[JobFinding], list[IdleJob]]:
    """What is to be told, and the jobs for which the rule on idle jobs is (`ruled`): never of both.

    Nothing is said of GPUs that nobody saw. Of a job that computes nothing at all its full memory is not
    told besides, nor a diagnosis.
    """
    jobs = {job.job_id: job for job in look.jobs}
    uses, now_seen = _uses(look), _seen_now(look)
    idle = {flag.job_id for flag in flags if flag.kind in _OF_ALL_GPUS}
    findings: list[JobFinding] = []
    candidates: list[IdleJob] = []
    for flag in flags:
        job = jobs.get(flag.job_id)
        if job is None or job.start_s is None:
            continue
        if flag.kind in _OF_ALL_GPUS and len(flag.devices) != job.n_gpus:
            continue
        if flag.kind in _BESIDES and job.job_id in idle:
            continue
        if flag.kind is AlertKind.HELD_IDLE and ruled(job) and not _told(job).is_component:
            use = uses.get(job.job_id)
            is_whole = now_seen.issuperset(flag.devices) and flag.coverage >= COVERAGE
            if use is not None and use.used is False and use.coverage >= COVERAGE and is_whole:
                candidates.append(
                    IdleJob(
                        job=_told(job),
                        since_s=flag.since_s,
                        coverage=min(use.coverage, flag.coverage),
                        n_devices=len(flag.devices),
                    )
                )
            continue
        if flag.kind in settings.concerns:
            findings.append(_finding(job, flag, settings, _found_s(look, flag)))
    return findings, candidates


def _finding(job: ClusterJob, flag: Alert, settings: Settings, found_s: float) -> JobFinding:
    at_once = flag.kind is AlertKind.XID
    return JobFinding(
        job=_told(job),
        kind=str(flag.kind),
        since_s=flag.since_s,
        coverage=flag.coverage,
        n_devices=len(flag.devices),
        due_s=found_s + (0 if at_once else settings.after_s),
        diagnosis=flag.diagnosis,
    )


def _found_s(look: ClusterPoll, flag: Alert) -> float:
    """From when it has to last: a diagnosis from when it was made, however long ago the trouble began."""
    if flag.diagnosis is None or look.verdicts is None:
        return flag.since_s
    of = (flag.job_id, flag.diagnosis.cause)
    return max(float(one.reported_at_s) for one in look.verdicts.verdicts if (one.job_id, one.cause) == of)


def _has_whole_gpus(job: ClusterJob) -> bool:
    """Return whether it has at least one; False if Slurm does not report how many."""
    return job.n_gpus is not None and job.n_gpus >= 1


def _told(job: ClusterJob) -> NoticedJob:
    assert job.start_s is not None
    assert job.n_gpus is not None
    return NoticedJob(
        run=NoticedRun(job.job_id, job.start_s),
        id=job.id,
        user=job.user,
        name=job.name or "",
        account=job.account,
        qos=job.qos,
        partition=job.partition,
        n_gpus=job.n_gpus,
    )


def _seen_now(look: ClusterPoll) -> frozenset[str]:
    """Devices of which it is known what they do at this moment, not only what they did before."""
    return frozenset(
        uuid
        for node in look.live.values()
        if look.at_s - node.at_s <= _NOW_S
        for uuid, value in node.devices.items()
        if value.util_pct is not None
    )


def _uses(look: ClusterPoll) -> Mapping[int, RunningUse]:
    """How the runs that go on have used their GPUs."""
    return look.running.uses_of({job.job_id: job.start_s for job in look.jobs})
