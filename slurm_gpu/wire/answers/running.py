"""What GET /v1/running answers with, as the client hands it out: docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SAME_START_S = 2
"""Slurm's clock and slurm-gpudbd's tell of one start so much apart at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningUse:
    """How a job that runs has used its GPUs since it began; None: not measured."""

    job_id: int
    start_s: int
    coverage: float
    """Sampled seconds over those that its devices were held, up to their newest records."""
    used: bool | None
    """Whether any of its GPUs has ever computed."""
    util_p25: float | None
    util_p95: float | None
    mem_p25: float | None
    mem_p95: float | None
    unused_devices: Sequence[str] = ()
    """UUIDs of those that never computed, where others of the job did; none of which little was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentXid:
    """An error that a GPU reported while a job held it."""

    job_id: int
    device: str
    at_s: int
    code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Of all jobs that run."""

    as_of_s: float
    jobs: Sequence[RunningUse]
    xids: Sequence[RecentXid]

    def uses_of(self, starts: Mapping[int, float | None]) -> dict[int, RunningUse]:
        """By job, of the runs that began when `starts` says: nothing of a requeued job's earlier run."""
        return {
            use.job_id: use
            for use in self.jobs
            if (start_s := starts.get(use.job_id)) is not None and abs(use.start_s - start_s) <= _SAME_START_S
        }
