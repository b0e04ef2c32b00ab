"""List the jobs that changed since the version that a viewer last received.

Each row is created only once, for all viewers.
"""

from __future__ import annotations

import json
import operator
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu.monitor.cluster.allocation import SquareAllocation, ranges
from slurm_gpu.monitor.viewer import Visibility
from slurm_gpu.wire.answers.cluster import ClusterJob

# The number of versions whose changes are kept: 12 minutes at one version per 3 s.
KEPT = 240


# The attributes of a job in its row. `priority` is omitted, because it changes every few minutes.
_SHOWN = (
    *("id", "job_id", "user", "account", "partition", "state", "reason", "n_gpus", "n_nodes", "n_tasks"),
    *("submit_s", "start_s", "end_s", "name"),
)
# Return the shown attributes, which are cheaper to compare than whole jobs.
_facts = operator.attrgetter(*_SHOWN)


@dataclass(frozen=True, slots=True)
class _Row:
    job: ClusterJob
    version: int
    """The version in which the row last changed."""
    full: bytes
    occupancy: bytes
    facts: tuple[Any, ...]
    """All values in the row; if none has changed, the row is reused."""

    def visible_part(self, visibility: Visibility) -> bytes:
        """Return the part of the row that a viewer may see."""
        return self.full if visibility.may_see(self.job.user, self.job.uid) else self.occupancy


@dataclass(frozen=True, slots=True)
class JobListing:
    """All jobs at one version, and recently ended jobs. The next listing is derived from this one."""

    version: int
    known_from: int
    """The oldest version since which every change is known."""
    rows: Mapping[int, _Row]
    gone: tuple[tuple[int, tuple[int, ...]], ...]
    """Pairs (version, jobs that ended in it), the oldest first."""

    @classmethod
    def empty(cls, version: int) -> JobListing:
        """Return the listing before the first state."""
        return cls(version, version, {}, ())

    def next(self, version: int, jobs: Iterable[ClusterJob], allocation: SquareAllocation) -> JobListing:
        """Return the listing at a later version; unchanged rows are reused."""
        rows: dict[int, _Row] = {}
        for job in jobs:
            whole = allocation.whole.get(job.job_id, ())
            shared = allocation.shared.get(job.job_id, ())
            facts = (_facts(job), tuple(whole), tuple(shared))
            before = self.rows.get(job.job_id)
            if before is not None and before.facts == facts:
                rows[job.job_id] = before
            else:
                rows[job.job_id] = _row(job, version, ranges(whole), ranges(shared), facts)
        lost = tuple(sorted(self.rows.keys() - rows.keys()))
        gone = deque(self.gone)
        if lost:
            gone.append((version, lost))
        known_from = max(self.known_from, version - KEPT)
        while gone and gone[0][0] <= known_from:
            gone.popleft()
        return JobListing(version, known_from, rows, tuple(gone))

    def knows(self, since: int) -> bool:
        """Return whether all changes since that version are known."""
        return self.known_from <= since <= self.version

    def answer(self, since: int | None, visibility: Visibility) -> bytes:
        """Return the body for GET /api/v1/jobs?since=, with all jobs if `since` is None or unknown."""
        delta = since is not None and self.knows(since)
        after = since if since is not None and delta else -1
        rows = [row for row in self.rows.values() if row.version > after]
        lost = {job for version, jobs in self.gone if delta and version > after for job in jobs}
        head = f'{{"version":{self.version},"all":{json.dumps(not delta)},"jobs":['.encode()
        body = b",".join(row.visible_part(visibility) for row in rows)
        gone = json.dumps(sorted(lost - self.rows.keys()), separators=(",", ":")).encode()
        return head + body + b'],"gone":' + gone + b"}"


def _row(
    job: ClusterJob,
    version: int,
    squares: tuple[tuple[int, int], ...],
    shared: tuple[tuple[int, int], ...],
    facts: tuple[Any, ...],
) -> _Row:
    named = dict(zip(_SHOWN, _facts(job), strict=True))
    shown = {**named, "full": True, "squares": squares, "shared_squares": shared}
    hidden = {**shown, "full": False, "name": None}
    return _Row(job, version, _dump(shown), _dump(hidden), facts)


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
