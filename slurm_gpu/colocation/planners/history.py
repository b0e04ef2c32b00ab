"""Record when jobs started, and how many of the recently ended jobs were slowed down."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_gpu.colocation.planner import Member, PlannerView

# A job is slowed down if its whole run takes longer than this, relative to running alone.
NOTICED = 1.02
# Maximum number of ended jobs in the history.
_REMEMBERED = 128


@dataclass(frozen=True, slots=True)
class _PlannedRun:
    began_s: float
    alone_s: float


class StartHistory:
    """A history of starts. It must receive every view before a decision, and every start."""

    def __init__(self) -> None:
        self._runs: dict[int, _PlannedRun] = {}
        self._ended: deque[bool] = deque(maxlen=_REMEMBERED)
        """Whether each ended job was slowed down."""
        self._sees_ends = False

    @property
    def ended(self) -> int:
        """Return the number of ended jobs."""
        return len(self._ended)

    @property
    def slowed(self) -> int:
        """Return the number of ended jobs that were slowed down."""
        return sum(self._ended)

    def update(self, view: PlannerView) -> None:
        """Record the end of jobs that no longer appear.

        If no job was waiting, the time of an end is unknown, and the slowdown of the job is not recorded. A
        job that was to start but still waits has not started: on a real cluster, starts can be delayed.
        """
        running = {member.job: member for gpu in view.gpus for member in gpu.running}
        waiting = {member.job for member in view.waiting}
        if self._sees_ends:
            self._ended.extend(
                view.now_s - run.began_s > NOTICED * run.alone_s
                for job, run in self._runs.items()
                if job not in running and job not in waiting
            )
        self._runs = {
            job: self._runs.get(job) or _PlannedRun(view.now_s - member.done_s, member.done_s + member.left_s)
            for job, member in running.items()
        }
        self._sees_ends = bool(view.waiting)

    def start(self, now_s: float, members: Iterable[Member], still_wait: bool) -> None:
        """Record that these jobs start; `still_wait` indicates whether other jobs continue to wait."""
        self._runs.update(
            (member.job, _PlannedRun(now_s, member.done_s + member.left_s)) for member in members
        )
        self._sees_ends = still_wait

    def elapsed_s(self, view: PlannerView) -> list[list[float]]:
        """Return how long each job has run; a job with an unknown start is assumed to have run alone."""
        return [[view.now_s - self._runs[member.job].began_s for member in gpu.running] for gpu in view.gpus]
