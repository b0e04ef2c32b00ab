"""Jobs that agreed to share, by what job_submit.lua noted of them in their AdminComment."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from slurm_gpu.slurm.queue import CountedJob, JobPhase

_AGREED = re.compile(r"slurm-gpu/1 t=\w+(?: [a-z]=\S*)*? c=(?:(\d+)/(\d+)|-):(\S+)")
_SHARDS = re.compile(r"gres[:/]shard[:=](\d+)")


class Agreed(NamedTuple):
    """One job that agreed."""

    job: CountedJob
    key: str
    """What it is known by."""
    shards: int | None
    """Those that it asks for now; None where it has a GPU for itself: nobody knew what it needs."""
    of: int | None
    """Shards of one GPU when it was submitted; None likewise."""

    @property
    def gres(self) -> str:
        """How Slurm spells shards here, up to their number."""
        return f"gres{'/' if self.job.per_node.startswith('gres/') else ':'}shard:"

    @property
    def is_alone(self) -> bool:
        """Whether nobody can be beside it."""
        return self.shards is None or self.of is None or self.shards >= self.of

    def waits_for_its_place(self, now_s: float) -> bool:
        """Whether it has its begin time still before it."""
        job = self.job
        return (
            job.phase is JobPhase.PENDING
            and not self.is_alone
            and job.start_s is not None
            and job.start_s > now_s
        )


def agreed_among(jobs: Iterable[CountedJob]) -> dict[int, Agreed]:
    """Those of the queue, by id."""
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
