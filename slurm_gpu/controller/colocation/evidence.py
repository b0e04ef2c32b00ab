"""Query slurm-gpudbd for the results of ended runs, and for the utilisation of jobs that share GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from slurm_gpu.client.connector import DatabaseConnector
from slurm_gpu.controller.colocation.idlest import idlest

if TYPE_CHECKING:
    from slurm_gpu.client.database_client import DatabaseClient, Run, RunTimeline


class EndedCorun(NamedTuple):
    """The results of one ended run, from the final records of its node."""

    memory_frac: float
    """The maximum fraction of GPU memory that the job used."""
    util_frac: float | None
    """The mean GPU utilisation by the job itself; None if it was not measured."""
    allocated_s: float
    """The run time in seconds, as measured by the node; more precise than Slurm's times."""
    idlest: tuple[float, ...] = ()
    """The result of `idlest.idlest`; () if the run's timeline is unknown."""


@dataclass(frozen=True, slots=True)
class DatabaseEvidence:
    """Queries slurm-gpudbd; the methods can block for a long time, and raise SlurmGpuError on failure."""

    connect: DatabaseConnector

    def ran(self, job_id: int, start_s: int) -> EndedCorun | None:
        """Return the results of the run that began at `start_s`; None before its final records arrive."""
        runs, courses = self.connect(lambda database: _runs_of(database, str(job_id)))
        for run in runs:
            records = [one for one in run.devices or () if one.final and one.mem_used_frac is not None]
            if run.start_s is None or abs(run.start_s - start_s) > 2 or not records:
                continue
            pct_ms = sum(pct * ms for one in records for pct, ms in (one.util_hist_ms or {}).items())
            ms = sum(sum((one.util_hist_ms or {}).values()) for one in records)
            most = max(one.mem_used_frac.max for one in records if one.mem_used_frac is not None)
            allocated_s = max(one.allocated_s for one in records)
            return EndedCorun(most, pct_ms / ms / 100 if ms else None, allocated_s, _idlest(run, courses))
        return None

    def utilisation(self, job_id: int, since_s: float) -> tuple[float, float] | None:
        """Return a job's mean utilisation since `since_s`, and the seconds covered; None if unknown."""
        windows = self.connect(lambda database: database.windows(str(job_id)))
        total, seconds = 0.0, 0.0
        for window in windows:
            for index, value in enumerate(window.values("util_pct")):
                if value is not None and window.start_s + index * window.width_s >= since_s:
                    total += value * window.width_s
                    seconds += window.width_s
        return (total / seconds / 100, seconds) if seconds else None


def _runs_of(database: DatabaseClient, job: str) -> tuple[Sequence[Run], Sequence[RunTimeline]]:
    runs = database.run(job)
    return runs, database.timelines(job) if runs else ()


def _idlest(run: Run, courses: Sequence[RunTimeline]) -> tuple[float, ...]:
    """Return the result of `idlest` for the run's timeline; () unless exactly one GPU has a timeline."""
    course = next((one for one in courses if one.submit_s == run.submit_s), None)
    found = [one.timeline for one in (course.devices if course else None) or () if one.timeline is not None]
    return idlest(found[0].fractions("util"), found[0].width_s) if len(found) == 1 else ()
