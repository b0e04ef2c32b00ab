"""Poll slurm-gpudbd for running jobs, and derive alerts and findings."""

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
# Alerts that concern all GPUs of a job, and therefore require values of each GPU.
_OF_ALL_GPUS = frozenset({AlertKind.NEVER_USED, AlertKind.USED_THEN_IDLE})
_SECONDARY = frozenset({AlertKind.MEMORY_IDLE, AlertKind.UNHEALTHY})
# Maximum age of a value that shows the current use of a device.
_NOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPoll:
    """The responses of slurm-gpudbd to one poll."""

    at_s: float
    """Wall-clock time just before the requests."""
    cluster: ClusterState
    live: Mapping[str, Live]
    running: Running
    verdicts: Verdicts | None = None
    """Diagnosed faults of training jobs; None if slurm-gpudbd is too old to report faults."""
    reports: Sequence[NodeReport] = ()
    """The nodes' reports, which contain the indices of GPUs; empty unless verdicts name devices."""

    @property
    def jobs(self) -> Sequence[ClusterJob]:
        """Running and suspended jobs with at least one whole GPU."""
        return [job for job in self.cluster.jobs if job.state in _RUNS and (job.n_gpus or 0) >= 1]

    @property
    def suspended(self) -> Collection[NoticedRun]:
        """Suspended runs, which are not expected to use their GPUs."""
        jobs = [job for job in self.jobs if job.state == "SUSPENDED" and job.start_s is not None]
        return {NoticedRun(job.job_id, job.start_s or 0) for job in jobs}


def poll_database(database: DatabaseClient, wall: Callable[[], float]) -> ClusterPoll:
    """Poll once; raise SlurmGpuError on failure."""
    at_s = wall()
    cluster = database.cluster()
    live, running = live_of_slurm(cluster, database.live("jobs")), database.running()
    try:
        verdicts = database.verdicts()
    except NotFoundError:  # an older slurm-gpudbd does not provide verdicts
        verdicts = None
    named = verdicts is not None and any(item.devices for item in verdicts.verdicts)
    reports = database.nodes() if named else ()
    return ClusterPoll(
        at_s=at_s, cluster=cluster, live=live, running=running, verdicts=verdicts, reports=reports
    )


def rules_of(config: SiteConfig) -> AlertThresholds:
    """Return the alert thresholds, with min_coverage from the site file if it is set."""
    usual = AlertThresholds()
    least = config.sampling.min_coverage
    return AlertThresholds(min_coverage=least) if least > 0 else usual


def watch(rules: Watch, poll: ClusterPoll) -> list[Alert]:
    """Update the watch from a poll, and return all current alerts."""
    rules.take_in(poll.at_s, poll.jobs, poll.running, poll.live)
    return [*rules.alerts(poll.at_s), *diagnosed(poll, rules.rules)]


def diagnosed(poll: ClusterPoll, rules: AlertThresholds) -> list[Alert]:
    """Return the alerts for slurm-gpudbd's verdicts that have enough coverage."""
    runs = {(job.job_id, job.start_s) for job in poll.jobs}
    found = unhealthy(poll.verdicts, runs, poll.reports, poll.live)
    return [alert for alert in found if alert.coverage >= rules.min_coverage]


def findings_of(
    poll: ClusterPoll, alerts: Sequence[Alert], settings: Settings, ruled: Callable[[ClusterJob], bool]
) -> tuple[list[JobFinding], list[IdleJob]]:
    """Return the findings to report, and the candidates for the idle rule.

    `ruled` returns whether the idle rule applies to a job. An alert about all GPUs of a job is ignored if any
    of these GPUs has no values. If all GPUs of a job are idle, the job is not also reported for idle GPUs
    with full memory or for a diagnosis.
    """
    jobs = {job.job_id: job for job in poll.jobs}
    uses, now_seen = _uses(poll), _seen_now(poll)
    idle = {alert.job_id for alert in alerts if alert.kind in _OF_ALL_GPUS}
    findings: list[JobFinding] = []
    candidates: list[IdleJob] = []
    for alert in alerts:
        job = jobs.get(alert.job_id)
        if job is None or job.start_s is None:
            continue
        if alert.kind in _OF_ALL_GPUS and len(alert.devices) != job.n_gpus:
            continue
        if alert.kind in _SECONDARY and job.job_id in idle:
            continue
        if alert.kind is AlertKind.NEVER_USED and ruled(job) and not _noticed(job).is_component:
            use = uses.get(job.job_id)
            is_whole = now_seen.issuperset(alert.devices) and alert.coverage >= COVERAGE
            if use is not None and use.used is False and use.coverage >= COVERAGE and is_whole:
                candidates.append(
                    IdleJob(
                        job=_noticed(job),
                        since_s=alert.since_s,
                        coverage=min(use.coverage, alert.coverage),
                        n_devices=len(alert.devices),
                    )
                )
            continue
        if alert.kind in settings.alerts:
            findings.append(_finding(job, alert, settings, _found_s(poll, alert)))
    return findings, candidates


def _finding(job: ClusterJob, alert: Alert, settings: Settings, found_s: float) -> JobFinding:
    at_once = alert.kind is AlertKind.XID
    return JobFinding(
        job=_noticed(job),
        kind=str(alert.kind),
        since_s=alert.since_s,
        coverage=alert.coverage,
        n_devices=len(alert.devices),
        due_s=found_s + (0 if at_once else settings.after_s),
        diagnosis=alert.diagnosis,
    )


def _found_s(poll: ClusterPoll, alert: Alert) -> float:
    """Return when the minimum duration begins: when the diagnosis was reported or when the alert began."""
    if alert.diagnosis is None or poll.verdicts is None:
        return alert.since_s
    of = (alert.job_id, alert.diagnosis.cause)
    return max(float(one.reported_at_s) for one in poll.verdicts.verdicts if (one.job_id, one.cause) == of)


def _noticed(job: ClusterJob) -> NoticedJob:
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


def _seen_now(poll: ClusterPoll) -> frozenset[str]:
    """Return the devices whose current use is known."""
    return frozenset(
        uuid
        for node in poll.live.values()
        if poll.at_s - node.at_s <= _NOW_S
        for uuid, value in node.devices.items()
        if value.util_pct is not None
    )


def _uses(poll: ClusterPoll) -> Mapping[int, RunningUse]:
    """Return the GPU use of running jobs, by job ID."""
    return poll.running.uses_of({job.job_id: job.start_s for job in poll.jobs})
