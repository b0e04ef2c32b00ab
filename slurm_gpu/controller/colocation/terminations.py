"""End the sharing of jobs that goes wrong; record an audit event and a decision for the owners."""

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
    """Sends a job back into the queue, where it gets a GPU for itself."""

    def __init__(
        self, control: SharedJobClient, acts: AuditReporter, run_directory: Path, wall: Callable[[], float]
    ) -> None:
        self._control, self._acts = control, acts
        self._run_directory, self._wall = run_directory, wall
        self._stay: deque[int] = deque(maxlen=_MOST_STAY)
        """Who were to go, and could not: each is told of once."""

    def send_back(
        self,
        one: Agreed,
        others: Sequence[Agreed],
        why: str,
        told: str,
        evidence: Mapping[str, Any],
    ) -> bool:
        """`others` were beside it, and stay. `told` is why in words that each of their owners may read.

        Whether it has gone.
        """
        job_id = one.job.job_id
        try:
            self._control.requeue(job_id)
        except SlurmError as error:  # such as one that may not be requeued, or has ended just now
            if job_id not in self._stay:
                log.warning("job %d stays where it is, though %s: %s", job_id, why, error)
                self._stay.append(job_id)
            return False
        try:
            self._control.unpin(job_id, f"{one.gres}{one.of}")
        except SlurmError as error:
            log.warning("job %d waits for the GPU that it was on: %s", job_id, error)
        beside = [other.job.job_id for other in others]
        self._acts.add(
            "colocation ended",
            f"job {job_id}",
            why,
            old=f"{one.shards} of {one.of} shards",
            new="alone",
            evidence={"job": job_id, "key": one.key, "user": one.job.user, "beside": beside, **evidence},
        )
        for who in (one, *others):
            self._tell(who, one, [two for two in (job_id, *beside) if two != who.job.job_id], told)
        return True

    def _tell(self, who: Agreed, gone: Agreed, beside: Sequence[int], told: str) -> None:
        token = _TOKEN.match(who.job.admin_comment)
        said = {
            "uid": str(who.job.uid),
            "job": str(who.job.job_id),
            "beside": ",".join(map(str, beside)) or "-",
            "gone": str(gone.job.job_id),
            "why": told,
        }
        if token is not None:
            try:
                write_ending(self._run_directory, self._wall(), token[1], said)
            except OutsideError as error:
                log.warning("%s; slurm-gpu explain does not tell why sharing ended", error)
