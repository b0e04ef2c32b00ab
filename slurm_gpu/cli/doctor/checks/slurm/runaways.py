"""Check for runaway jobs, which have no end in Slurm's accounting because slurmctld lost them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, ok, warn
from slurm_gpu.client.database_client import Run
from slurm_gpu.text.units import counted, few

_OPEN = ("PENDING", "RUNNING", "SUSPENDED")
_NAMED = 5
# Maximum number of runs in one answer (docs/api.md).
_PAGE = 1000


def ended(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurmctld still has every job that has no end in Slurm's accounting.

    A killed slurmctld resumes from its last saved state, and reuses the job IDs that it assigned after saving
    it. slurmdbd has already recorded the first jobs with these IDs, and never receives their ends.
    """
    with at.site.database() as database:
        open_runs = list(database.all_runs(states=_OPEN, limit=_PAGE))
    # In this order, a job that ends between the two queries is not mistaken for a lost job.
    known = {job.job_id: job.submit_s for job in at.site.slurm.jobs()}
    lost = {
        (run.job_id, run.submit_s): run
        for run in open_runs
        if run.cluster == at.settings.cluster and _is_lost(run, known)
    }
    if lost:  # a job may have ended since slurm-gpudbd last read the accounting
        rows = at.site.slurm.accounting(0, job_ids=sorted({job_id for job_id, _ in lost}))
        still = {(row.job_id, row.submit_s) for row in rows if row.end_s is None}
        lost = {key: run for key, run in lost.items() if key in still}
    if not lost:
        yield ok("slurmctld has all running jobs of Slurm's accounting")
        return
    yield warn(
        f"{_shown(list(lost.values()))} active in Slurm's accounting, but not in slurmctld: reports count "
        "their GPUs as still allocated",
        "run sacctmgr show runawayjobs, which lists these jobs and ends them if you confirm",
    )


def _is_lost(run: Run, known: Mapping[int, int | None]) -> bool:
    """Return whether slurmctld lacks the job, or has a later job with the same ID."""
    submit_s = known.get(run.job_id)
    return run.job_id not in known or (submit_s is not None and submit_s > run.submit_s)


def _shown(runs: list[Run]) -> str:
    verb = "is" if len(runs) == 1 else "are"
    return f"{counted(len(runs), 'job')} ({few((run.id for run in runs), _NAMED)}) {verb}"
