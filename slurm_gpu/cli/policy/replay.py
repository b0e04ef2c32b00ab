"""`slurm-gpu policy replay`: apply a policy to recorded jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.options import json_option, since_option
from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.policy.file import existing_policy, file_argument, timezone
from slurm_gpu.cli.runs.all_runs import all_users_runs
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.cli.times import parse_moment
from slurm_gpu.cli.users import PastUsers
from slurm_gpu.errors import InvalidFileError
from slurm_gpu.policy.explain.replay import (
    Judgement,
    PastJob,
    PolicyReplay,
    judge_past,
    merge_requeued,
    without_size,
    without_unknown,
)
from slurm_gpu.policy.language.check import load_policy
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, compile_policy
from slurm_gpu.policy.native.unenforced import unenforced_limits
from slurm_gpu.text.cells import count, hours, minute
from slurm_gpu.text.units import counted

if TYPE_CHECKING:  # httpx takes longer to import than `policy check` takes to run
    from slurm_gpu.client.database_client import Run

_SUMMARY = ("rule", "refused", "advised", "changed", "users", "GPU-hours")
_COLUMNS = ("job", "user", "account", "submitted", "tasks", "nGPU", "GPU-hours", "rule", "why")
_RIGHT = ("refused", "advised", "changed", "users", "tasks", "nGPU", "GPU-hours")


@click.command(short_help="List recorded jobs that FILE would refuse.")
@file_argument
@since_option
@click.option("--until", metavar="TIME", help="Only jobs submitted before TIME.")
@click.option(
    "--starts",
    is_flag=True,
    help="Also simulate when the jobs would have started under the limits of FILE.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=50,
    show_default=True,
    help="Print at most N refusals.",
)
@json_option
@with_site
def replay(
    site: CommandSite,
    file: Path | None,
    since: str,
    until: str | None,
    starts: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Check recorded jobs against FILE, and list the jobs that it would refuse. Change nothing.

    Each job is checked against the queue at its submission, without earlier jobs that FILE refuses. Jobs that
    were refused when they were submitted are not recorded. Only operators of slurm-gpudbd may run this
    command. The exit code is 1 if FILE refuses any job.
    """
    path = existing_policy(site, file)
    policy, source = load_policy(path)
    names = resolve_names(policy, source, site.directory())
    if names.unknown:
        raise InvalidFileError(names.unknown)
    zone, now_s = ZoneInfo(timezone(site)), site.wall()
    since_s = parse_moment("--since", since, zone, now_s) or 0
    until_s = parse_moment("--until", until, zone, now_s)
    runs = all_users_runs(site, since_s, until_s)
    jobs = _past_jobs(runs)
    nodes = site.slurm.nodes()
    facts = SiteFacts.of(site.slurm.settings(), nodes, Path("/nonexistent"), timezone(site))
    facts = replace(facts, year=dt.datetime.fromtimestamp(since_s, zone).year)
    compiled, remarks = without_unknown(compile_policy(policy, names, facts))
    jobs, unknown = without_size(jobs)
    remarks += unknown
    result = judge_past(compiled, jobs, since_s)
    starts_answer: dict[str, Any] = {}
    print_modelled: Callable[[], None] | None = None
    if starts:
        # Imported here: numpy is installed only where reports are built.
        from slurm_gpu.cli.policy.starts import model_starts, print_starts, starts_json
        from slurm_gpu.reports.recommend.rules import RuleLimit

        today = dt.datetime.fromtimestamp(now_s, zone).date()
        vain = [RuleLimit(rule.id, key) for rule, key, _ in unenforced_limits(policy, names, today)]
        modelled = model_starts(site, compiled, runs, result.judgements, vain, since_s, until_s)
        remarks += modelled.remarks
        starts_answer = {"starts": starts_json(modelled)}
        print_modelled = partial(print_starts, modelled)
    for text in (*remarks, *result.errors):
        remark(text)
    if as_json:
        print_json(_to_json(result, remarks) | starts_answer)
    else:
        _print(result, zone, limit)
        if print_modelled is not None:
            print_modelled()
    raise click.exceptions.Exit(1 if result.refused else 0)


def _past_jobs(runs: Iterable[Run]) -> list[PastJob]:
    users = PastUsers()
    return merge_requeued((_past_job(run, users), run.state) for run in runs)


def _past_job(run: Run, users: PastUsers) -> PastJob:
    tres = run.tres_requested or run.tres_allocated or {}
    return PastJob(
        job_id=run.job_id,
        label=run.id,
        array_job_id=run.array_job_id,
        user=run.user,
        uid=users.uid(run.user),
        account=run.account,
        qos=run.qos,
        partition=run.partition,
        submit_s=run.submit_s,
        start_s=run.start_s,
        end_s=run.end_s,
        time_limit_s=run.time_limit_s,
        n_nodes=run.n_nodes,
        tres=tres,
        n_gpus=run.n_gpus if run.has_started else run.n_gpus_requested,
    )


def _print(result: PolicyReplay, zone: ZoneInfo, limit: int) -> None:
    refused = result.refused
    click.echo(f"submissions: {len(result.judgements)}, refused: {len(refused)}")
    if result.loans:
        click.echo(
            f"on loan: {len(result.on_loan)} (they used {hours(_gpu_hours(result.on_loan))} GPU-hours)"
        )
    if changed := result.changed:
        click.echo(f"changed: {len(changed)}")
    if rules := list(_by_rule(result.judgements)):
        click.echo()
        print_table(_SUMMARY, rules, right=_RIGHT, whole=("rule",))
    if refused and limit:
        click.echo()
        print_table(_COLUMNS, (_row(judgement, zone) for judgement in refused[:limit]), right=_RIGHT)
    if len(refused) > limit:
        remark(f"only the first {limit} of {counted(len(refused), 'refusal')} are shown: see --limit")


def _by_rule(judgements: Iterable[Judgement]) -> Iterator[tuple[str, ...]]:
    rules: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        for rule in dict.fromkeys((*judgement.rules, *(change.rule for change in judgement.changes))):
            rules.setdefault(rule, []).append(judgement)
    for rule, found in rules.items():
        objected = [judgement for judgement in found if rule in judgement.rules]
        refused = [judgement for judgement in objected if not judgement.accepted]
        users = {judgement.first.user for judgement in found}
        counts = (len(refused), len(objected) - len(refused), len(found) - len(objected), len(users))
        numbers = tuple(map(str, counts))
        yield (rule, *numbers, hours(_gpu_hours(refused)))


def _gpu_hours(judgements: Iterable[Judgement]) -> float:
    """Return the GPU-hours that the jobs used."""
    return sum(job.gpu_hours for judgement in judgements for job in judgement.jobs)


def _row(judgement: Judgement, zone: ZoneInfo) -> tuple[str, ...]:
    job = judgement.first
    return (
        job.label,
        job.user,
        job.account,
        minute(job.submit_s, zone),
        str(len(judgement.jobs)),
        count(job.n_gpus),
        hours(sum(task.gpu_hours for task in judgement.jobs)),
        ", ".join(judgement.rules),
        _numbers(judgement),
    )


def _numbers(judgement: Judgement) -> str:
    """Return the first line with numbers, such as "GPUs running + pending: used 4, limit 6, requested 5."."""
    return next((line.strip() for line in judgement.messages if ": used " in line or ": limit " in line), "")


def _to_json(result: PolicyReplay, remarks: list[str]) -> dict[str, Any]:
    return {
        "submissions": len(result.judgements),
        "refused": [
            {
                "id": judgement.first.label,
                "user": judgement.first.user,
                "account": judgement.first.account,
                "submit_s": judgement.first.submit_s,
                "tasks": len(judgement.jobs),
                "nGPU": judgement.first.n_gpus,
                "gpu_hours": _gpu_hours([judgement]),
                "rules": list(judgement.rules),
                "messages": list(judgement.messages),
            }
            for judgement in result.refused
        ],
        "on_loan": [
            {
                "id": judgement.first.label,
                "user": judgement.first.user,
                "account": judgement.first.account,
                "tasks": len(judgement.jobs),
                "nGPU": judgement.first.n_gpus,
                "gpu_hours": _gpu_hours([judgement]),
                "qos": judgement.qos,
            }
            for judgement in result.on_loan
        ],
        "changed": [
            {
                "id": judgement.first.label,
                "user": judgement.first.user,
                "account": judgement.first.account,
                "tasks": len(judgement.jobs),
                "changes": [asdict(change) for change in judgement.changes],
            }
            for judgement in result.changed
        ],
        "advised": sum(1 for judgement in result.judgements if judgement.accepted and judgement.rules),
        "left_out": remarks,
        "errors": result.errors,
    }
