"""`slurm-gpu explain JOBID`: print the decision about an accepted job, and its current state."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.output import remark
from slurm_gpu.cli.runs.pending_job import PendingJob
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.controller.colocation.status import FILE_NAME as SHARING_FILE
from slurm_gpu.controller.colocation.status import Sharing, sharing_of
from slurm_gpu.controller.placement.zone_wait import written_zones
from slurm_gpu.errors import OutsideError, SlurmGpuError, UsageError
from slurm_gpu.placement.zone_constraint import taken_apart
from slurm_gpu.policy.explain.placement_text import zones_in_words
from slurm_gpu.policy.lua.colocation import in_words
from slurm_gpu.policy.lua.decisions import find_decision, find_endings
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import read_policy_in_force
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.policy.lua.script import Change, ZoneDecision
from slurm_gpu.text.cells import moment, text

_COMMENT = re.compile(r"slurm-gpu/1 t=(?P<token>\w+)(?: \w=\S+)*")
_UTC = ZoneInfo("UTC")
_FIELD = re.compile(r" (\w)=(\S+)")


@dataclass(frozen=True, slots=True)
class ExplainedJob:
    """The properties of a submitted job that explain the decision about it."""

    job_id: int
    state: str
    admin_comment: str
    features: str | None
    """The constraint of the job; None if slurmctld no longer has the job."""
    n_nodes: int
    """The number of nodes; while the job waits, the maximum number."""


@dataclass(frozen=True, slots=True)
class SharingEnd:
    """The end of a job's GPU sharing, as logged by slurm-gpuctld."""

    at_s: int
    co_runners: str
    """Co-runners, joined by commas; "-" if unknown."""
    gone: int
    """The requeued job: this one or a co-runner."""
    why: str

    @classmethod
    def of(cls, at_s: int, fields: Mapping[str, str]) -> SharingEnd | None:
        """Parse logged fields, including `beside` of version 0.2; return None if the line is incomplete."""
        try:
            return cls(at_s, fields.get("co_runners") or fields["beside"], int(fields["gone"]), fields["why"])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class JobDecision:
    """The decision about a job; None means that a fact is unknown."""

    job_id: int
    state: str
    token: str | None
    nearest_rule: str | None
    """The rule whose limit the job came closest to."""
    placed: ZoneDecision | None
    constraint: str | None
    """The current constraint; None if slurmctld no longer has the job."""
    own_constraint: str | None
    """The part of the constraint that the user requested."""
    urgent: str | None = None
    """The reason given for an urgent job; None if the job is not urgent or the reason is unknown."""
    share: str | None = None
    """The decision on sharing a GPU as logged; None if the job did not agree to share."""
    sharing: Sharing | None = None
    """The current sharing of a GPU, as recorded by slurm-gpuctld on this host."""
    endings: tuple[SharingEnd, ...] = ()
    """The times at which the job stopped sharing GPUs, in order."""
    changes: tuple[Change, ...] = ()
    """The options that rules set, or would have set, at submission."""


def explain_submitted(site: CommandSite, job_id: int, *, as_json: bool) -> None:
    """Print the decision about a submitted job; raise UsageError if the job is not found."""
    job = _job_of(site, job_id)
    token = token_of(job.admin_comment)
    directory = _log_directory(site)
    fields, endings = (
        (None, ()) if token is None else recorded_decision(site, directory, token, job.admin_comment)
    )
    now = sharing_of(directory / SHARING_FILE, job_id, time.time())
    decision = replace(decision_of(job, fields), sharing=now, endings=endings)
    pending = _pending(site, job_id) if job.state == "PENDING" else None
    if as_json:
        wait = None if pending is None else pending.to_json()
        click.echo(json.dumps({**asdict(decision), "wait": wait}, indent=2))
        return
    zone = ZoneInfo(site.config.timezone) if endings else _UTC
    for line in lines(decision, job.n_nodes, is_logged=fields is not None, zone=zone):
        click.echo(line)
    for line in () if pending is None else pending.lines(ZoneInfo(site.config.timezone)):
        click.echo(line)


def _pending(site: CommandSite, job_id: int) -> PendingJob | None:
    """Return the pending job and its wait; None if it has started or slurm-gpudbd does not answer."""
    try:
        with site.database() as database:
            return PendingJob.read(database, str(job_id))
    except SlurmGpuError as error:
        remark(f"why the job waits is unknown: {error}")
        return None


def token_of(admin_comment: str) -> str | None:
    """Return the token that identifies the logged decision; None if job_submit.lua did not accept the job."""
    match = _COMMENT.match(admin_comment)
    return match["token"] if match else None


def decision_of(job: ExplainedJob, logged: Mapping[str, str] | None) -> JobDecision:
    """Return the decision from the AdminComment of the job and its logged fields, if any."""
    match = _COMMENT.match(job.admin_comment)
    fields = dict(_FIELD.findall(match[0])) if match else {}
    placed = None
    if "z" in fields:
        placed = ZoneDecision.read(f"enforce:{fields['z']}")
    elif zone := (logged or {}).get("zone"):
        placed = ZoneDecision.read(zone)
    own = job.features
    if job.features is not None:
        written = taken_apart(job.features)
        is_ours = written is not None and frozenset(written.zones) == written_zones(job.admin_comment)
        own = written.own if written is not None and is_ours else job.features
    token = token_of(job.admin_comment)
    urgent = (logged or {}).get("urgent")
    share = f"enforce:{fields['c']}" if "c" in fields else None
    return JobDecision(
        job.job_id,
        job.state,
        token,
        unquote(fields["r"]) if "r" in fields else None,
        placed,
        job.features,
        own,
        urgent,
        share=(logged or {}).get("share", share),
        changes=Change.read_all((logged or {}).get("changes", "")),
    )


def _job_of(site: CommandSite, job_id: int) -> ExplainedJob:
    """Return the job from slurmctld, or from the database; raise UsageError if it is in neither."""
    jobs = site.slurm.jobs([job_id])
    if jobs:
        return ExplainedJob(job_id, jobs[0].state, jobs[0].admin_comment, jobs[0].features, jobs[0].n_nodes)
    unknown = f"slurmctld has no job {job_id}"
    try:
        with site.database() as database:
            runs = database.run(str(job_id))
    except SlurmGpuError as error:
        raise UsageError(f"{unknown}, and the database cannot be queried: {error}") from None
    if not runs:
        raise UsageError(f"{unknown}, and the database has no record of it")
    if not runs[0].full:
        raise UsageError(f"{unknown}, and only the job's owner and operators may see the recorded decision")
    return ExplainedJob(job_id, runs[0].state, runs[0].admin_comment or "", None, runs[0].n_nodes)


def recorded_decision(
    site: CommandSite, directory: Path, token: str, admin_comment: str
) -> tuple[Mapping[str, str] | None, tuple[SharingEnd, ...]]:
    """Return the decision at submission and the ends of sharing, from decisions.log or the database."""
    fields = find_decision(directory, token)
    ended = [(line.at_s, line.fields) for line in find_endings(directory, token)]
    if fields is None or (not ended and " c=" in admin_comment):
        try:
            with site.database() as database:
                found = database.decisions(token)
        except SlurmGpuError:
            found = ()
        decided = [one for one in found if one.operation != "share"]
        if fields is None and decided:
            fields = {**decided[0].job, **({"zone": decided[0].scores} if decided[0].scores else {})}
        ended = ended or [(one.at_s, one.job) for one in found if one.operation == "share"]
    return fields, tuple(whole for at_s, line in ended if (whole := SharingEnd.of(at_s, line)) is not None)


def lines(decision: JobDecision, n_nodes: int, *, is_logged: bool, zone: ZoneInfo = _UTC) -> Iterator[str]:
    """Format the explanation of a job on `n_nodes` nodes as text, with times in `zone`.

    `is_logged` is true if decisions.log or the database has the decision. Otherwise, the text may name the
    users who can see more.
    """
    yield f"Job {decision.job_id}  {decision.state}"
    if decision.token is None:
        yield "  It was accepted without slurm-gpu's job_submit.lua."
        return
    found = [*_decided(decision, zone), *_zones(decision, n_nodes, is_logged=is_logged)]
    yield from found or ["  The policy accepted it without changes."]


def _decided(decision: JobDecision, zone: ZoneInfo) -> Iterator[str]:
    if decision.nearest_rule is not None:
        yield f"  Nearest limit when it was submitted: rule {decision.nearest_rule}"
    for change in decision.changes:
        yield f"  At submission, {text(str(change))}"
    if decision.urgent is not None:
        yield f"  It is urgent: {text(decision.urgent)}"
    if decision.share is not None:
        yield f"  Sharing: {text(in_words(decision.share))}"
    if (now := decision.sharing) is not None:
        whom = f"with job{'s' if len(now.co_runners) > 1 else ''} {', '.join(map(str, now.co_runners))}"
        how = (
            f"{whom}; predicted speed: {now.speed:.2f} of its speed alone"
            + ("; this is a trial, because their speeds together are unmeasured" if now.is_trial else "")
            if now.co_runners
            else "currently alone on the GPU"
        )
        yield f"  It has {now.shards} of {now.of} shards of GPU {now.position} on {now.node}, {how}"
    for ending in decision.endings:
        yield f"  Sharing ended {moment(ending.at_s, zone)}: {text(ending.why)};"
        yield f"    {_went_back(decision.job_id, ending.gone)}"


def _zones(decision: JobDecision, n_nodes: int, *, is_logged: bool) -> Iterator[str]:
    """Yield lines about how the nodes of the job are kept close together, if it has several nodes."""
    if decision.placed is None:
        if n_nodes > 1:
            none = "No zone was needed to keep its nodes close together."
            yield f"  {none if is_logged else 'Its record in Slurm names no zones.'}"
        if not is_logged:
            yield "  Its owner, operators, and root on slurmctld's host may see more."
        return
    yield f"  {zones_in_words(decision.placed)}"
    if decision.placed.mode == "enforce" and decision.placed.zones and decision.constraint is not None:
        own = decision.own_constraint or "none"
        if decision.own_constraint == decision.constraint:
            yield (
                "  The zone no longer applies: the wait ended, or the owner changed the constraint. "
                f"Constraint: {own}."
            )
        else:
            yield f"  Its constraint is {decision.constraint}; its owner requested {own}."


def _went_back(job_id: int, gone: int) -> str:
    if gone == job_id:
        return "this job was requeued and will have a GPU to itself"
    return f"job {gone} was requeued, and this one kept running"


def _log_directory(site: CommandSite) -> Path:
    """Return the directory in which the installed script writes its log."""
    try:
        policy = read_policy_in_force(Path(site.slurm.settings().conf_path).parent / SCRIPT_NAME)
    except OutsideError:
        policy = None
    return RUN_DIRECTORY if policy is None or policy.snapshot is None else policy.snapshot.parent
