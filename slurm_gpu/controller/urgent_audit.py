"""Record an audit event when an urgent job starts: owner, reason, overtaken jobs and requeued jobs.

Starts are read from Slurm's accounting. The ID of an event is derived from the job and its start time, so no
state needs to be stored. After an outage, slurm-gpuctld reports the starts that it missed, and repeated
reports result in one event. Overtaken jobs can be observed only in the queue when the urgent job starts;
otherwise, the overtaken jobs are unknown.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_gpu.client.connector import DatabaseConnector
from slurm_gpu.clock import Clock
from slurm_gpu.controller.background import Background
from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.policy.lua.peers import this_host
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.slurm.commands import RunSubsetClient
from slurm_gpu.slurm.queue import CountedJob, JobPhase
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import counted, few
from slurm_gpu.wire.answers.runs import AuditEvent

log = logging.getLogger("slurm-gpuctld")

ACT = "urgent job started"
# Delay of a report after a start; by then, slurmdbd has the preempted jobs and slurm-gpudbd has the reason.
SETTLES_S = 15.0
_EVERY_S = 600.0
_RETRY_S = 60.0
_BACK_S = 7 * 86400
_REASON_WITHIN_S = 300.0
# Maximum time between the end of a preempted job and the start of the urgent job.
_GAVE_WAY_WITHIN_S = 300
# Maximum number of overtaken jobs that are listed; the event also contains the total.
_NAMED = 50
_AT_ONCE = 100
_MAX_KNOWN = 1000
_TOKEN = re.compile(r"slurm-gpu/1 t=([0-9a-zA-Z]+)")

# A job ID and a start time; a requeued job has several start times.
_Start = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Jobs that were submitted earlier to the same partition and were still waiting."""

    n: int
    job_ids: tuple[int, ...]
    """The IDs of the first of these jobs."""


class UrgentAudit(Duty):
    """Tracks running urgent jobs in each view of the queue; reports their starts in the background."""

    def __init__(
        self,
        cluster: str,
        accounting: RunSubsetClient,
        connect: DatabaseConnector,
        clock: Clock,
        background: Background | None = None,
    ) -> None:
        super().__init__(
            clock,
            "urgent jobs are missing from the audit: %s; retrying",
            "all urgent jobs are in the audit again",
            every_s=_RETRY_S,
            background=background,
        )
        self._cluster, self._accounting, self._connect = cluster, accounting, connect
        self._waited: frozenset[int] = frozenset()
        """Urgent jobs that were pending in the last view."""
        self._overtook: dict[_Start, Overtaken] = {}
        self._tokens: dict[int, str] = {}
        self._reported: set[_Start] = set()
        self._seen: set[_Start] = set()
        """Observed starts that are not reported yet, including starts of jobs that have already ended."""
        self._hurried: set[_Start] = set()
        """Starts for which accounting was queried early."""

    def prepare(self, view: QueueView) -> bool:
        """Track running urgent jobs and the jobs that they overtook; return whether reports may be due."""
        qos, jobs = view.policy.urgent_qos, view.jobs
        if qos is None or not view.in_charge:
            return False
        urgent = [job for job in jobs if job.qos == qos]
        # Accounting has the comment only after a job's end; slurmctld has it only while it stores the job.
        found = ((job.job_id, _TOKEN.match(job.admin_comment)) for job in urgent)
        self._tokens = {job_id: match[1] for job_id, match in found if match}
        now_s = self._clock.wall()
        started = {
            (job.job_id, job.start_s): job
            for job in urgent
            if job.phase is JobPhase.RUNNING and job.start_s is not None
        }
        for key, job in started.items():
            if key not in self._reported and job.job_id in self._waited and key not in self._overtook:
                self._overtook[key] = overtaken_by(job, jobs)
        self._waited = frozenset(job.job_id for job in urgent if job.phase is JobPhase.PENDING)
        self._seen = {
            key
            for key in self._seen | started.keys()
            if key not in self._reported and (key in started or key not in self._hurried)
        }
        settled = {key for key in self._seen if now_s - key[1] >= SETTLES_S}
        if settled - self._hurried and not self._outage.lasts:
            self._hurried = settled  # if a reason is unknown, query sacct once, not every second
            self._due_s = min(self._due_s, self._clock.monotonic())
        return True

    def work(self, view: QueueView) -> None:
        """Report all starts of the last week that were not reported yet."""
        assert view.policy.urgent_qos is not None
        if self._report(view.policy.urgent_qos):
            self._due_s = self._clock.monotonic() + _EVERY_S

    def _report(self, qos: str) -> bool:
        """Report starts; return False if some starts must be reported later."""
        now_s = int(self._clock.wall())
        runs = sorted(
            (run for run in self._accounting.of_qos(qos, now_s - _BACK_S) if run.start_s is not None),
            key=lambda run: (run.start_s or 0, run.job_id),
        )
        keys: list[_Start] = [(run.job_id, run.start_s or 0) for run in runs]
        self._reported.intersection_update(keys)
        if keys and not self._reported:  # most likely, an earlier process reported starts
            known = {act.id for act in self._connect(lambda database: database.acts(_MAX_KNOWN))}
            self._reported.update(key for key in keys if self._id_of(key) in known)
        if self._reported.issuperset(keys):
            return True
        since_s = min(run.start_s or now_s for run in runs) - _GAVE_WAY_WITHIN_S
        gave_way = gave_way_to(runs, self._accounting.preempted(since_s, now_s), qos)
        acts: dict[_Start, AuditEvent] = {}
        complete = True
        for key, run in zip(keys, runs, strict=True):
            if key in self._reported:
                continue
            reason = self._reason(run)
            if now_s - key[1] < SETTLES_S or (reason is None and now_s - key[1] < _REASON_WITHIN_S):
                complete = False
                continue
            acts[key] = self._act(run, key, reason, gave_way[key])
        for first in range(0, len(acts), _AT_ONCE):
            some = list(acts)[first : first + _AT_ONCE]
            self._send([acts[key] for key in some])
            self._reported.update(some)
            for key in some:
                log.info("%s: %s (%s)", ACT, acts[key].subject, acts[key].why)
                self._overtook.pop(key, None)
        return complete

    def _send(self, acts: Sequence[AuditEvent]) -> None:
        self._connect(lambda database: database.send_audit_events(acts))

    def _reason(self, run: AccountingRun) -> str | None:
        match = _TOKEN.match(run.admin_comment)
        token = match[1] if match else self._tokens.get(run.job_id)
        if token is None:
            return None
        found = self._connect(lambda database: database.decisions(token))
        return found[0].job.get("urgent") if found else None

    def _id_of(self, key: _Start) -> str:
        words = f"{ACT} {self._cluster} {key[0]} {key[1]}"
        return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()

    def _act(
        self, run: AccountingRun, key: _Start, reason: str | None, gave_way: Sequence[AccountingRun]
    ) -> AuditEvent:
        overtook = self._overtook.get(key)
        evidence: dict[str, Any] = {
            "job_id": run.job_id,
            "user": run.user,
            "account": run.account,
            "qos": run.qos,
            "nodes": run.nodes,
            "submit_s": run.submit_s,
            "eligible_s": run.eligible_s,
            "start_s": run.start_s,
            "overtook": None if overtook is None else {"jobs": overtook.n, "job_ids": overtook.job_ids},
            "preempted": [{"job_id": one.job_id, "user": one.user, "end_s": one.end_s} for one in gave_way],
        }
        return AuditEvent(
            id=self._id_of(key),
            at_s=key[1],
            host=this_host(),
            action=ACT,
            subject=f"job {run.job_id} of {run.user}",
            why="no reason is known" if reason is None else reason,
            new=_in_words(overtook, gave_way),
            evidence=evidence,
        )


def overtaken_by(job: CountedJob, jobs: Iterable[CountedJob]) -> Overtaken:
    """Return the pending jobs in the same partition, with another QOS, that were submitted earlier."""
    earlier = sorted(
        other.job_id
        for other in jobs
        if other.phase is JobPhase.PENDING
        and other.qos != job.qos
        and job.partition in other.partition.split(",")
        and other.submit_s is not None
        and job.submit_s is not None
        and other.submit_s < job.submit_s
    )
    return Overtaken(len(earlier), tuple(earlier[:_NAMED]))


def gave_way_to(
    urgent: Sequence[AccountingRun], preempted: Iterable[AccountingRun], qos: str
) -> Mapping[_Start, Sequence[AccountingRun]]:
    """Return the runs that were requeued for each urgent run; each requeued run counts once.

    `urgent` must be sorted by start. Slurm does not record the job for which it preempted a run, but that job
    is the next to start on the run's nodes.
    """
    found: dict[_Start, list[AccountingRun]] = {(run.job_id, run.start_s or 0): [] for run in urgent}
    nodes = {(run.job_id, run.start_s or 0): _nodes(run) for run in urgent}
    for one in sorted(preempted, key=lambda run: (run.end_s or 0, run.job_id)):
        if one.qos == qos or one.end_s is None:
            continue
        of = _nodes(one)
        for run in urgent:
            start_s = run.start_s or 0
            key = (run.job_id, start_s)
            is_next = one.end_s <= start_s <= one.end_s + _GAVE_WAY_WITHIN_S and run.submit_s <= one.end_s
            if is_next and not of.isdisjoint(nodes[key]):
                found[key].append(one)
                break
    return found


def _nodes(run: AccountingRun) -> frozenset[str]:
    try:
        return frozenset(expand(run.nodes))
    except ValueError:  # the nodes field of accounting may not be a hostlist
        return frozenset()


def _in_words(overtook: Overtaken | None, gave_way: Sequence[AccountingRun]) -> str:
    before = (
        "overtook an unknown number of jobs" if overtook is None else f"overtook {counted(overtook.n, 'job')}"
    )
    names = few((one.job_id for one in gave_way), _NAMED)
    return f"{before}; requeued for it: {names or 'none'}"
