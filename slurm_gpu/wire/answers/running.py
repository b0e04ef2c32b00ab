"""The answer to GET /v1/running; docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The maximum difference between Slurm's and slurm-gpudbd's times of the same start.
_SAME_START_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningUse:
    """A running job's use of its GPUs since its start. None means not measured."""

    job_id: int
    start_s: int
    coverage: float
    """Sampled seconds divided by the allocated seconds of its devices, up to their newest records."""
    used: bool | None
    """Whether any of its GPUs has ever computed."""
    util_p25: float | None
    util_p95: float | None
    mem_p25: float | None
    mem_p95: float | None
    unused_devices: Sequence[str] = ()
    """UUIDs of devices with sufficient coverage that never computed although other devices of the job did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentXid:
    """An XID error of a GPU that was allocated to a job."""

    job_id: int
    device: str
    at_s: int
    code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The GPU use and the recent XID errors of all running jobs."""

    as_of_s: float
    jobs: Sequence[RunningUse]
    xids: Sequence[RecentXid]

    def uses_of(self, starts: Mapping[int, float | None]) -> dict[int, RunningUse]:
        """Return the use of the runs that started at `starts`, by job ID.

        Earlier runs of requeued jobs are excluded.
        """
        return {
            use.job_id: use
            for use in self.jobs
            if (start_s := starts.get(use.job_id)) is not None and abs(use.start_s - start_s) <= _SAME_START_S
        }
