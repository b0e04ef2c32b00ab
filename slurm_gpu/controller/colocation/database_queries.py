"""Questions to slurm-gpudbd about jobs that share, asked beside the watcher, which never waits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_gpu.clock import SystemClock
from slurm_gpu.controller.background import Background, BackgroundTask
from slurm_gpu.controller.colocation.evidence import DatabaseEvidence, EndedCorun
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import SlurmGpuError

log = logging.getLogger("slurm-gpuctld")


class RunKey(NamedTuple):
    """One run of a job."""

    job_id: int
    start_s: int


@dataclass(slots=True)
class QueryResults:
    """Of one round of questions; what is not known is left out."""

    ran: dict[RunKey, EndedCorun] = field(default_factory=dict)
    utilisation: dict[RunKey, tuple[float, float]] = field(default_factory=dict)
    since_s: Mapping[RunKey, float] = field(default_factory=dict)
    """From when on each was asked for."""
    trouble: str | None = None


class DatabaseQueries:
    """One round of questions at a time."""

    def __init__(self, evidence: DatabaseEvidence, background: Background) -> None:
        self._evidence = evidence
        self._asking = BackgroundTask[QueryResults](background)
        self._outage = OutageLog(
            log,
            "nothing is learned of jobs that share for now: %s",
            SystemClock(),
            over="slurm-gpudbd reports jobs that share again",
        )

    @property
    def is_free(self) -> bool:
        """Whether another round can be asked."""
        return self._asking.is_free

    def ask(self, ended: set[RunKey], running: Mapping[RunKey, float]) -> None:
        """Ask how runs went that are over, and what those do that run, since when each."""

        def round_of_questions() -> QueryResults:
            answers = QueryResults(since_s=running)
            try:
                for key in ended:
                    if (ran := self._evidence.ran(key.job_id, key.start_s)) is not None:
                        answers.ran[key] = ran
            except SlurmGpuError as error:
                answers.trouble = str(error)
            for key, since_s in running.items():
                try:
                    if (used := self._evidence.utilisation(key.job_id, since_s)) is not None:
                        answers.utilisation[key] = used
                except SlurmGpuError as error:  # also where no window of a job was kept yet
                    log.debug("what job %d does is not known: %s", key.job_id, error)
            return answers

        if ended or running:
            self._asking.start(round_of_questions)

    def answers(self) -> QueryResults | None:
        """Those of the last round, once, as soon as they are there."""
        if not self._asking.is_done:
            return None
        answers = self._asking.take()
        if answers.trouble is None:
            self._outage.worked()
        else:
            self._outage.failed(answers.trouble)
        return answers
