"""Find the jobs that agreed to share, by the AdminComment that job_submit.lua wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from slurm_gpu.slurm.queue import CountedJob, JobPhase

_AGREED = re.compile(r"slurm-gpu/1 t=\w+(?: [a-z]=\S*)*? c=(?:(\d+)/(\d+)|-):(\S+)")
_SHARDS = re.compile(r"gres[:/]shard[:=](\d+)")


class Agreed(NamedTuple):
    """A job that agreed to share."""

    job: CountedJob
    key: str
    """The key of its application."""
    shards: int | None
    """Shards that the job requests now; None if it has its own GPU because its needs were unknown."""
    of: int | None
    """Shards per GPU when the job was submitted; None in the same case as `shards`."""

    @property
    def gres(self) -> str:
        """The part of a shard request in Slurm's syntax that precedes the number."""
        return f"gres{'/' if self.job.per_node.startswith('gres/') else ':'}shard:"

    @property
    def is_alone(self) -> bool:
        """Whether no job can share its GPU."""
        return self.shards is None or self.of is None or self.shards >= self.of

    def waits_for_its_place(self, now_s: float) -> bool:
        """Whether the job is pending and its begin time is in the future."""
        job = self.job
        return (
            job.phase is JobPhase.PENDING
            and not self.is_alone
            and job.start_s is not None
            and job.start_s > now_s
        )


def agreed_among(jobs: Iterable[CountedJob]) -> dict[int, Agreed]:
    """Return the jobs in the queue that agreed to share, by job ID."""
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
