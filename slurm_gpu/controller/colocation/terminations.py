"""Separate jobs when sharing fails; record an audit event, and a decision that the jobs' owners can read."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_gpu.controller.colocation.agreed import Agreed
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.errors import OutsideError, SlurmError
from slurm_gpu.policy.lua.decisions import write_ending
from slurm_gpu.slurm.job_changes import SharedJobClient

log = logging.getLogger("slurm-gpuctld")

_MOST_STAY = 100
_TOKEN = re.compile(r"slurm-gpu/1 t=(\w+)")


class Terminations:
    """Requeues jobs; a requeued job gets a GPU of its own."""

    def __init__(
        self, control: SharedJobClient, acts: AuditReporter, run_directory: Path, wall: Callable[[], float]
    ) -> None:
        self._control, self._acts = control, acts
        self._run_directory, self._wall = run_directory, wall
        self._stay: deque[int] = deque(maxlen=_MOST_STAY)
        """Jobs that could not be requeued; each is logged once."""

    def send_back(
        self,
        one: Agreed,
        others: Sequence[Agreed],
        why: str,
        public_why: str,
        evidence: Mapping[str, Any],
    ) -> bool:
        """Requeue a job; return whether that succeeded.

        `others` are the former co-runners of the job, which keep running. `public_why` is the reason shown to
        the owners of all these jobs.
        """
        job_id = one.job.job_id
        try:
            self._control.requeue(job_id)
        except SlurmError as error:  # for example, the job is not requeueable, or has just ended
            if job_id not in self._stay:
                log.warning("job %d keeps sharing its GPU although %s: %s", job_id, why, error)
                self._stay.append(job_id)
            return False
        try:
            self._control.unpin(job_id, f"{one.gres}{one.of}")
        except SlurmError as error:
            log.warning("job %d still requests its previous GPU: %s", job_id, error)
        co_runners = [other.job.job_id for other in others]
        self._acts.add(
            "colocation ended",
            f"job {job_id}",
            why,
            old=f"{one.shards} of {one.of} shards",
            new="alone",
            evidence={
                "job": job_id,
                "key": one.key,
                "user": one.job.user,
                "co_runners": co_runners,
                **evidence,
            },
        )
        for who in (one, *others):
            self._notify(
                who, one, [two for two in (job_id, *co_runners) if two != who.job.job_id], public_why
            )
        return True

    def _notify(self, who: Agreed, gone: Agreed, co_runners: Sequence[int], public_why: str) -> None:
        token = _TOKEN.match(who.job.admin_comment)
        fields = {
            "uid": str(who.job.uid),
            "job": str(who.job.job_id),
            "co_runners": ",".join(map(str, co_runners)) or "-",
            "gone": str(gone.job.job_id),
            "why": public_why,
        }
        if token is not None:
            try:
                write_ending(self._run_directory, self._wall(), token[1], fields)
            except OutsideError as error:
                log.warning("the end of sharing was not recorded for slurm-gpu explain: %s", error)
