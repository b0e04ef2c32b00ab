"""Which jobs that a node holds open are over, as far as Slurm says so: an epilog may never have run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from slurm_gpu.database.schema import run
from slurm_gpu.database.slurmview import Queue
from slurm_gpu.slurm.client import QueuedJob

MARGIN_S = 120
"""Epilogs take their time, and clocks differ."""
_QUEUE_FRESH_S = 60.0
_ENDED_STATES = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)

RunEnds = Mapping[int, Sequence[int | None]]
"""By job: when each of its runs ended, None of one that goes on."""


@dataclass(frozen=True, slots=True)
class Ended:
    """All runs up to `restart` (None: all that there were) are over, the last of them since `end_s`."""

    restart: int | None
    end_s: int

    def to_json(self) -> dict[str, int | None]:
        """A dict that json.dumps takes."""
        return {"restart": self.restart, "end_s": self.end_s}


def ended(
    open_jobs: Iterable[int], queue: Queue | None, now_s: float, ask: Callable[[Sequence[int]], RunEnds]
) -> dict[int, Ended]:
    """Those of `open_jobs` that have been over for MARGIN_S; `ask` reads the accounting of some of them.

    Doubt leaves a job open: nothing is said while slurmctld does not answer, since only it knows of a run
    that has just begun.
    """
    if queue is None or now_s - queue.as_of_s > _QUEUE_FRESH_S:
        return {}
    found: dict[int, Ended] = {}
    in_accounting: list[int] = []
    for job_id in open_jobs:
        job = queue.by_id.get(job_id)
        if job is not None and job.state in _ENDED_STATES and job.end_s is not None:
            found[job_id] = Ended(job.restarts, job.end_s)
        elif job is None or job.restarts > 0:
            in_accounting.append(job_id)
    ends = ask(in_accounting) if in_accounting else {}
    for job_id in in_accounting:
        over = _by_accounting(queue.by_id.get(job_id), ends.get(job_id, ()))
        if over is not None:
            found[job_id] = over
    return {job_id: over for job_id, over in found.items() if now_s - over.end_s > MARGIN_S}


def _by_accounting(job: QueuedJob | None, ends: Sequence[int | None]) -> Ended | None:
    past = [end_s for end_s in ends if end_s is not None]
    if job is None:
        # slurmctld has forgotten it: over, unless accounting has a run that goes on.
        return Ended(None, max(past)) if past and len(past) == len(ends) else None
    before = [end_s for end_s in past if job.start_s is None or end_s <= job.start_s]
    return Ended(job.restarts - 1, max(before)) if before else None


def run_ends(connection: Connection, cluster: str, job_ids: Sequence[int]) -> RunEnds:
    """When the runs of these jobs ended, by accounting."""
    query = select(run.c.job_id, run.c.end_s).where(run.c.cluster == cluster, run.c.job_id.in_(job_ids))
    ends: dict[int, list[int | None]] = {}
    for job_id, end_s in connection.execute(query):
        ends.setdefault(job_id, []).append(end_s)
    return ends
