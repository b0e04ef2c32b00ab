"""Find the jobs that agreed to share a GPU by reading the AdminComments that job_submit.lua wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from slurm_gpu.slurm.queue import CountedJob, JobPhase

_AGREED = re.compile(r"slurm-gpu/1 t=\w+(?: [a-z]=\S*)*? c=(?:(\d+)/(\d+)|-):(\S+)")
_SHARDS = re.compile(r"gres[:/]shard[:=](\d+)")


class Agreed(NamedTuple):
    """A job that agreed to share a GPU."""

    job: CountedJob
    key: str
    """The key of the job's application."""
    shards: int | None
    """Number of shards that the job requests now; None if it gets a whole GPU because its needs were unknown.
    """
    of: int | None
    """Number of shards per GPU when the job was submitted; None if `shards` is None."""

    @property
    def gres(self) -> str:
        """The part of the job's shard request that precedes the number, such as `gres:shard:`."""
        return f"gres{'/' if self.job.per_node.startswith('gres/') else ':'}shard:"

    @property
    def is_alone(self) -> bool:
        """Whether no other job can share the job's GPU."""
        return self.shards is None or self.of is None or self.shards >= self.of

    def waits_for_its_place(self, now_s: float) -> bool:
        """Return whether the job can share a GPU, is pending, and has a begin time in the future."""
        job = self.job
        return (
            job.phase is JobPhase.PENDING
            and not self.is_alone
            and job.start_s is not None
            and job.start_s > now_s
        )


def agreed_among(jobs: Iterable[CountedJob]) -> dict[int, Agreed]:
    """Return, by job ID, the jobs in the queue that agreed to share a GPU."""
    found = {}
    for job in jobs:
        match = _AGREED.match(job.admin_comment) if " c=" in job.admin_comment else None
        if match is not None:
            asked = _SHARDS.search(job.per_node)
            shares = match[2] is not None and asked is not None
            found[job.job_id] = Agreed(
                job, match[3], int(asked[1]) if shares and asked else None, int(match[2]) if shares else None
            )
    return found
