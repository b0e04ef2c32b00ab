"""End jobs that still do not use a GPU after all warnings; record each end on disk before ending the job."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping

from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.errors import SlurmError
from slurm_gpu.notices.finding import WARNING, NoticedRun
from slurm_gpu.notices.idle_rule import IdleJobStage
from slurm_gpu.notices.ledger import End, EndState, Ledger, Notice
from slurm_gpu.policy.lua.installed import CancelIdleInForce
from slurm_gpu.slurm.job_changes import JobTerminationClient

log = logging.getLogger("slurm-gpuctld")

WARNED, CANCELLED, HELD = "idle job warned", "idle job cancelled", "idle job held"
_AGAIN_AFTER_S = 600.0
_MOST_ATTEMPTS = 3


class Cancellations:
    """Ends idle jobs; `save` writes the ledger to disk and raises OutsideError on failure."""

    def __init__(
        self, cluster: str, control: JobTerminationClient, acts: AuditReporter, wall: Callable[[], float]
    ) -> None:
        self._cluster, self._control, self._acts, self._wall = cluster, control, acts, wall

    def settle(self, ledger: Ledger, running: Collection[NoticedRun]) -> None:
        """Resolve terminations that an earlier process left unfinished; running jobs are judged again."""
        left = []
        for end in ledger.ended:
            if end.state is EndState.ENDING:
                if end.run in running:
                    continue
                end.state, end.why = EndState.ENDED, "the job ended while slurm-gpuctld was ending it"
            left.append(end)
        ledger.ended = left

    def may_try(self, ledger: Ledger, run: NoticedRun, now_s: float) -> bool:
        """Return whether an attempt to end a job is due, given the number and times of failed attempts."""
        failed = [one for one in ledger.ended if one.run == run]
        return len(failed) < _MOST_ATTEMPTS and all(abs(now_s - one.at_s) >= _AGAIN_AFTER_S for one in failed)

    def end(
        self, ledger: Ledger, standing: IdleJobStage, rule: CancelIdleInForce, save: Callable[[], None]
    ) -> None:
        """End the job and record the result."""
        job = standing.finding.job
        end = End(
            run=job.run,
            id=job.id,
            user=job.user,
            name=job.name,
            n_gpus=job.n_gpus,
            at_s=self._wall(),
            how=rule.action,
            since_s=standing.finding.since_s,
        )
        ledger.ended.append(end)
        try:
            save()
        except BaseException:
            ledger.ended.remove(end)
            raise
        try:
            if rule.action == "hold":
                self._control.hold(job.id)
            else:
                self._control.cancel(job.id)
        except SlurmError as error:
            end.state, end.why = EndState.FAILED, str(error)[:300]
            log.warning("idle job %s could not be ended: %s", job.id, error)
        else:
            end.state = EndState.ENDED
        save()

    def audit(self, ledger: Ledger, rule: CancelIdleInForce | None, ids: Mapping[NoticedRun, str]) -> bool:
        """Record new warnings and ended jobs in the audit log; return whether anything was recorded.

        `ids` contains the job IDs that are shown to users.
        """
        found = False
        why = "" if rule is None else rule.why
        for notice in ledger.notices:
            if notice.kind == WARNING and notice.sent_s is not None and not notice.audited:
                self._audit_warning(notice, why, ids)
                notice.audited = found = True
        for end in ledger.ended:
            if end.state is EndState.ENDED and not end.audited:
                self._audit_end(ledger, end, why)
                end.audited = found = True
        return found

    def _audit_warning(self, notice: Notice, why: str, ids: Mapping[NoticedRun, str]) -> None:
        jobs = ", ".join(ids.get(run, str(run.job_id)) for run in notice.runs)
        self._acts.add(
            WARNED,
            f"job {jobs} of {notice.user}",
            why,
            old="",
            new=f"warning {notice.stage + 1}",
            evidence={
                "jobs": [run.job_id for run in notice.runs],
                "user": notice.user,
                "sent_s": notice.sent_s,
                "idle_since_s": list(notice.runs.values()),
            },
            act_id=notice.id,
        )

    def _audit_end(self, ledger: Ledger, end: End, why: str) -> None:
        warned = [
            one.sent_s for one in ledger.notices if one.kind == WARNING and end.run in one.runs and one.sent_s
        ]
        words = f"{self._cluster} {end.run.job_id} {end.run.start_s} {end.how}"
        self._acts.add(
            HELD if end.how == "hold" else CANCELLED,
            f"job {end.id} of {end.user}",
            why,
            old="running",
            new="held in the queue" if end.how == "hold" else "cancelled",
            evidence={
                "job_id": end.run.job_id,
                "user": end.user,
                "start_s": end.run.start_s,
                "gpus": end.n_gpus,
                "idle_since_s": end.since_s,
                "warned_s": warned,
                "ended_s": end.at_s,
            },
            act_id=hashlib.blake2b(words.encode(), digest_size=16).hexdigest(),
        )
