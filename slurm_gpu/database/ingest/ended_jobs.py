"""Find jobs that a node considers open although, according to Slurm, they have ended on that node.

A job remains open if its epilog did not run, or if it left the node after a resize or a node failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.database.storage.schema import run
from slurm_gpu.slurm.client import QueuedJob

# The margin allows for the duration of epilogs and for differences between clocks.
MARGIN_S = 120
_QUEUE_FRESH_S = 60.0
_ENDED_STATES = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)

_HOLDING = frozenset({"RUNNING", "SUSPENDED"})


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end, nodes and start in one row of accounting; the end is None while the run continues."""

    end_s: int | None
    nodes: frozenset[str]
    began_s: int | None = None


# All rows of accounting by job. A resized run has one row per size.
RunEnds = Mapping[int, Sequence[RunEnd]]


@dataclass(frozen=True, slots=True)
class RunsEnded:
    """The time at which a job's runs up to `restart` ended on a node; `restart` is None for all runs."""

    restart: int | None
    end_s: int

    def to_json(self) -> dict[str, int | None]:
        """Return the fields as a JSON object."""
        return {"restart": self.restart, "end_s": self.end_s}


def ended(
    node: str,
    open_jobs: Iterable[int],
    queue: QueueState | None,
    now_s: float,
    ask: Callable[[Sequence[int]], RunEnds],
) -> dict[int, RunsEnded]:
    """Return the jobs among `open_jobs` that ended on `node` more than MARGIN_S ago.

    `ask` reads the accounting of the given jobs. In case of doubt, a job stays open. The result is empty
    while slurmctld does not answer, since accounting may lack a run that has just started.
    """
    if queue is None or now_s - queue.as_of_s > _QUEUE_FRESH_S:
        return {}
    found: dict[int, RunsEnded] = {}
    in_accounting: list[int] = []
    for job_id in open_jobs:
        job = queue.by_id.get(job_id)
        if job is None or job.restarts > 0 or _has_left(node, job):
            in_accounting.append(job_id)
        over = None if job is None else _by_slurmctld(node, job)
        if over is not None:
            found[job_id] = over
    in_accounting = [job_id for job_id in in_accounting if job_id not in found]
    ends = ask(in_accounting) if in_accounting else {}
    for job_id in in_accounting:
        over = _by_accounting(node, queue.by_id.get(job_id), ends.get(job_id, ()))
        if over is not None:
            found[job_id] = over
    return {job_id: over for job_id, over in found.items() if now_s - over.end_s > MARGIN_S}


def _has_left(node: str, job: QueuedJob) -> bool:
    """Return whether the job has left the node in a resize; only accounting contains the resize time."""
    has_other_nodes = job.state in _HOLDING or job.state in _ENDED_STATES
    return has_other_nodes and job.resized_s is not None and bool(job.nodes) and node not in job.nodes


def _by_slurmctld(node: str, job: QueuedJob) -> RunsEnded | None:
    if job.state not in _ENDED_STATES or job.end_s is None or _has_left(node, job):
        return None
    return RunsEnded(job.restarts, job.end_s)


def _by_accounting(node: str, job: QueuedJob | None, runs: Sequence[RunEnd]) -> RunsEnded | None:
    past = [one.end_s for one in runs if one.end_s is not None]
    here = [one.end_s for one in runs if node in one.nodes]
    here_s = max((end_s for end_s in here if end_s is not None), default=None)
    if job is None:
        # slurmctld no longer lists the job, so the job has ended unless accounting has a run without an end.
        if not past or len(past) < len(runs):
            return None
        return RunsEnded(None, max(past) if here_s is None else here_s)
    if _has_left(node, job) and here_s is not None and None not in here and here_s > _began_s(job):
        return RunsEnded(job.restarts, here_s)
    if any(_is_unfinished_earlier(one, job) for one in runs):
        return None  # accounting does not have the end yet
    before = [end_s for end_s in past if job.start_s is None or end_s <= job.start_s]
    return RunsEnded(job.restarts - 1, max(before)) if before and job.restarts > 0 else None


def _is_unfinished_earlier(one: RunEnd, job: QueuedJob) -> bool:
    """Return whether a row without an end belongs to an earlier run, which must have ended by now."""
    if one.end_s is not None or one.began_s is None:
        return False
    return job.start_s is None or one.began_s < job.start_s


def _began_s(job: QueuedJob) -> float:
    return -math.inf if job.start_s is None else job.start_s


def run_ends(connection: Connection, cluster: str, job_ids: Sequence[int]) -> RunEnds:
    """Read all accounting rows of these jobs."""
    columns = run.c.job_id, run.c.end_s, run.c.nodes, run.c.start_s
    query = select(*columns).where(run.c.cluster == cluster, run.c.job_id.in_(job_ids))
    ends: dict[int, list[RunEnd]] = {}
    for job_id, end_s, nodes, began_s in connection.execute(query):
        ends.setdefault(job_id, []).append(RunEnd(end_s, node_set(nodes), began_s))
    return ends
