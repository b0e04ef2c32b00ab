"""`slurm-gpu notices undo JOB`: restore a job that slurm-gpuctld ended for idle GPUs."""

from __future__ import annotations

import os
import uuid

import click

from slurm_gpu.cli.output import remark
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.controller.notices.reconciler import ledger_path
from slurm_gpu.errors import OutsideError, SlurmError, UsageError
from slurm_gpu.notices import ledger as ledgers
from slurm_gpu.notices.ledger import End, EndState, Ledger
from slurm_gpu.policy.lua.peers import this_host
from slurm_gpu.slurm.job_changes import JobTerminationClient
from slurm_gpu.wire.answers.runs import AuditEvent

ACT = "idle job brought back"
# A job in these states is already restored: a requeue would end it again.
_IS_BACK = frozenset({"PENDING", "RUNNING", "SUSPENDED"})


@click.command(short_help="Restore a job that was ended for idle GPUs.")
@click.argument("job", metavar="JOB")
@click.option("--dry-run", is_flag=True, help="Print the action without taking it.")
@with_site
def undo(site: CommandSite, job: str, dry_run: bool) -> None:
    """Restore JOB, which slurm-gpuctld ended because the job never used a GPU.

    A cancelled job is requeued, which Slurm permits for batch jobs until MinJobAge (300 s by default) after
    their end. A held job is released. The job starts again, with the usual warnings. Run this command as root
    or SlurmUser on slurmctld's host; the audit log records the action.
    """
    settings = site.slurm.settings()
    if os.geteuid() not in (0, settings.slurm_user_uid):
        raise UsageError(
            f"notices undo requires root or {settings.slurm_user} (SlurmUser); the owner of the job may run "
            f"scontrol requeue {job} (after a cancellation) or scontrol release {job} (if it is held)"
        )
    end = _find(ledgers.read(ledger_path(settings)), job)
    held = end.how == "hold"
    what = "released" if held else "requeued"
    jobs = site.slurm.jobs([end.run.job_id])
    state = next((one.state for one in jobs if one.job_id == end.run.job_id), None)
    if state in (_IS_BACK - {"PENDING"} if held else _IS_BACK):
        raise UsageError(f"job {end.id} is already {state}: nothing to undo")
    if dry_run:
        click.echo(f"Job {end.id} of {end.user} would be {what}")
        return
    control = JobTerminationClient(site.run)
    try:
        if held:
            control.release(end.id)
        else:
            control.requeue(end.id)
    except SlurmError as error:
        age = settings.raw.get("MinJobAge", "MinJobAge")
        raise OutsideError(
            f"Slurm did not restore job {end.id}: {error}\n"
            f"Slurm can requeue batch jobs that permit it, until {age} after their end. After that, the "
            f"owner, {end.user}, must submit the job again; sacct --batch-script -j {end.id} prints the "
            "script if the site stores scripts."
        ) from error
    click.echo(f"Job {end.id} of {end.user} was {what}: it starts again, with new warnings")
    _record(site, end, what)


def _find(ledger: Ledger, job: str) -> End:
    ours = [one for one in ledger.ended if job in (one.id, str(one.run.job_id))]
    if not ours:
        raise UsageError(f"nothing to undo: slurm-gpuctld has not ended job {job} within the last week")
    last = ours[-1]
    if last.state is EndState.FAILED:
        raise UsageError(f"nothing to undo: slurm-gpuctld could not end job {job} ({last.why})")
    return last


def _record(site: CommandSite, end: End, what: str) -> None:
    act = AuditEvent(
        id=uuid.uuid4().hex,
        at_s=int(site.wall()),
        host=this_host(),
        action=ACT,
        subject=f"job {end.id} of {end.user}",
        why="requested with slurm-gpu notices undo",
        old="held in the queue" if end.how == "hold" else "cancelled",
        new=what,
        evidence={"job_id": end.run.job_id, "user": end.user, "ended_s": end.at_s},
    )
    try:
        with site.database() as database:
            database.send_audit_events([act])
    except OutsideError as error:
        remark(f"the action could not be recorded in the audit log: {error}")
        raise
