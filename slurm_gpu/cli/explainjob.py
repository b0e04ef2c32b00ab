"""`slurm-gpu explain JOBID`: what was decided about a job that was let in, and what holds of it now."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from slurm_gpu.cli.site import Site
from slurm_gpu.controller.zonewait import written_zones
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.placement.zoneconstraint import taken_apart
from slurm_gpu.policy.bundle import RUN_DIRECTORY
from slurm_gpu.policy.decisions import find_decision
from slurm_gpu.policy.install import SCRIPT_NAME
from slurm_gpu.policy.installed import read_policy_in_force
from slurm_gpu.policy.placed import zones_in_words
from slurm_gpu.policy.script import Placed
from slurm_gpu.slurm.client import QueuedJob

_COMMENT = re.compile(r"slurm-gpu/1 t=(?P<token>\w+)(?: \w=\S+)*")
_FIELD = re.compile(r" (\w)=(\S+)")


@dataclass(frozen=True, slots=True)
class JobDecision:
    """Of one job; None where it is not known, or was not decided."""

    job_id: int
    state: str
    token: str | None
    nearest_rule: str | None
    """The rule whose limit was nearest."""
    placed: Placed | None
    constraint: str
    """As it is now."""
    own_constraint: str
    """The user's own part of it."""


def explain_submitted(site: Site, job_id: int, *, as_json: bool) -> None:
    """Print it; raises UsageError where slurmctld does not know the job."""
    jobs = site.slurm.jobs([job_id])
    if not jobs:
        recorded = f"`slurm-gpu job {job_id}` shows what was recorded"
        raise UsageError(f"slurmctld does not know job {job_id}; {recorded}")
    log_directory = _log_directory(site)
    decision = decision_of(jobs[0], log_directory)
    if as_json:
        click.echo(json.dumps(asdict(decision), indent=2))
        return
    is_logged = decision.token is not None and find_decision(log_directory, decision.token) is not None
    for line in lines(decision, is_logged=is_logged):
        click.echo(line)


def decision_of(job: QueuedJob, run_directory: Path) -> JobDecision:
    """From the job's AdminComment, and where that says nothing from decisions.log, if it may be read."""
    match = _COMMENT.match(job.admin_comment)
    fields = dict(_FIELD.findall(match[0])) if match else {}
    token = match["token"] if match else None
    placed = None
    if "z" in fields:
        placed = Placed.read(f"enforce:{fields['z']}")
    elif token is not None and (text := (find_decision(run_directory, token) or {}).get("zone")):
        placed = Placed.read(text)
    written = taken_apart(job.features)
    is_ours = written is not None and frozenset(written.zones) == written_zones(job.admin_comment)
    own = written.own if written is not None and is_ours else job.features
    return JobDecision(job.job_id, job.state, token, fields.get("r"), placed, job.features, own)


def lines(decision: JobDecision, *, is_logged: bool) -> Iterator[str]:
    """For people; `is_logged` where decisions.log was read and has the job: then nobody knows more."""
    yield f"Job {decision.job_id}  {decision.state}"
    if decision.token is None:
        yield "  It was let in without slurm-gpu's job_submit.lua."
        return
    if decision.nearest_rule is not None:
        yield f"  Nearest limit when it was submitted: rule {decision.nearest_rule}"
    if decision.placed is None:
        no_zones = "  Zones: none were looked for, as it fits one node or there are none"
        yield no_zones if is_logged else f"{no_zones}; root on the host of slurmctld may know more."
        return
    yield f"  Zones: {zones_in_words(decision.placed)}"
    if decision.placed.mode == "enforce" and decision.placed.zones:
        own = decision.own_constraint or "none"
        if decision.own_constraint == decision.constraint:
            yield f"  It is no longer: its wait ran out, or its owner changed it. Its constraint is {own}."
        else:
            yield f"  Its constraint is {decision.constraint}, its owner's own {own}."


def _log_directory(site: Site) -> Path:
    """Where the installed script writes its log."""
    try:
        policy = read_policy_in_force(Path(site.slurm.settings().conf_path).parent / SCRIPT_NAME)
    except OutsideError:
        policy = None
    return RUN_DIRECTORY if policy is None or policy.snapshot is None else policy.snapshot.parent
