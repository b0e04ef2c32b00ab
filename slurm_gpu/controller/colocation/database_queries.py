"""Query slurm-gpudbd in the background about jobs that share GPUs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_gpu.clock import SystemClock
from slurm_gpu.controller.background import Background, BackgroundTask
from slurm_gpu.controller.colocation.evidence import DatabaseEvidence, EndedCorun
from slurm_gpu.controller.colocation.job_history import RunKey
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import SlurmGpuError

log = logging.getLogger("slurm-gpuctld")


@dataclass(slots=True)
class QueryResults:
    """The results of one round of queries; unknown values are left out."""

    ran: dict[RunKey, EndedCorun] = field(default_factory=dict)
    utilisation: dict[RunKey, tuple[float, float]] = field(default_factory=dict)
    since_s: Mapping[RunKey, float] = field(default_factory=dict)
    """For each running job, the start of the period for which its utilisation was queried."""
    error: str | None = None


class DatabaseQueries:
    """Runs one round of queries at a time."""

    def __init__(self, evidence: DatabaseEvidence, background: Background) -> None:
        self._evidence = evidence
        self._asking = BackgroundTask[QueryResults](background)
        self._outage = OutageLog(
            log,
            "speeds of jobs that share GPUs could not be updated: %s",
            SystemClock(),
            over="speeds of jobs that share GPUs are updated again",
        )

    @property
    def is_free(self) -> bool:
        """Whether another round of queries can start."""
        return self._asking.is_free

    def ask(self, ended: set[RunKey], running: Mapping[RunKey, float]) -> None:
        """Query the results of ended runs, and the utilisation of running jobs since the given times."""

        def round_of_questions() -> QueryResults:
            answers = QueryResults(since_s=running)
            try:
                for key in ended:
                    if (ran := self._evidence.ran(key.job_id, key.start_s)) is not None:
                        answers.ran[key] = ran
            except SlurmGpuError as error:
                answers.error = str(error)
            for key, since_s in running.items():
                try:
                    if (used := self._evidence.utilisation(key.job_id, since_s)) is not None:
                        answers.utilisation[key] = used
                except SlurmGpuError as error:  # also raised until the first window of a job is stored
                    log.debug("utilisation of job %d is unknown: %s", key.job_id, error)
            return answers

        if ended or running:
            self._asking.start(round_of_questions)

    def answers(self) -> QueryResults | None:
        """Return the results of the last round; None if they are unavailable or were already returned."""
        if not self._asking.is_done:
            return None
        answers = self._asking.take()
        if answers.error is None:
            self._outage.worked()
        else:
            self._outage.failed(answers.error)
        return answers
