"""`slurm-gpu explain -- sbatch …` (or srun, salloc), and `slurm-gpu explain JOBID`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict

import click

from slurm_gpu.cli.output import print_table
from slurm_gpu.cli.policy.explain_job import explain_submitted
from slurm_gpu.cli.policy.judgement import judge_by_policy
from slurm_gpu.cli.policy.slurm_refusal import read_cluster
from slurm_gpu.cli.policy.usage import read_active
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.cli.users import uid_and_name
from slurm_gpu.errors import UsageError
from slurm_gpu.policy.explain.placement_text import zones_in_words
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.explain.slurm_refusals import refusals_of_slurm, waits_of_slurm
from slurm_gpu.policy.lua.script import Considered
from slurm_gpu.slurm.gpu_count import known_gpu_types
from slurm_gpu.slurm.submission import read_partitions, read_user_defaults
from slurm_gpu.text.units import parse_whole


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--user", "--as", "user", metavar="NAME", help="Check as this user. [default: you]")
@click.option("--rules", "show_rules", is_flag=True, help="Also print each limit that was checked.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("command", metavar="JOB | -- sbatch …", nargs=-1, required=True, type=click.UNPROCESSED)
@with_site
def explain(
    site: CommandSite, user: str | None, show_rules: bool, as_json: bool, command: tuple[str, ...]
) -> None:
    """Check a job against the policy without submitting it.

    Pass the command that would submit the job: explain -- sbatch --gpus=2 job.sh

    To print the decision about a submitted job, pass its ID: explain 1234

    The command may be sbatch, srun or salloc; the messages that it would print are shown. The exit code is 0
    if the job would be accepted, and 1 if it would be refused. The check covers the policy, and whether Slurm
    has the requested resources and names. Slurm may refuse the job for other reasons.
    """
    if len(command) == 1 and command[0].isdigit():
        try:
            job_id = parse_whole(command[0], 1)
        except ValueError as error:
            raise UsageError(f"JOBID: {error}") from None
        explain_submitted(site, job_id, as_json=as_json)
        return
    words = [word for index, word in enumerate(command) if index or word != "--"]
    stdin = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin
    request = parse_command(words, os.environ, stdin)
    uid, name = uid_and_name(user, "--as (--user)")
    active = read_active(site)
    nodes, partitions = site.slurm.nodes(), read_partitions(site.run)
    defaults = read_user_defaults(name, request.options.get("account"), site.run)
    result = judge_by_policy(site, active, request, (uid, name), defaults, partitions, nodes)
    verdict = result.verdict
    request = result.request
    cluster = read_cluster(
        site, active.settings, nodes, partitions, request, name, defaults, verdict.desc.get("qos")
    )
    description = request.description(uid, name, known_gpu_types(nodes))
    refusals = refusals_of_slurm(request, description, cluster)
    accepted = verdict.accepted and not refusals
    notes = list(result.notes)
    for reason in waits_of_slurm(request, description, cluster) if accepted else ():
        notes.append(
            f"Slurm itself would accept the job, but would currently let it wait indefinitely: {reason}"
        )
    observed = [change for change in verdict.changes if change.mode == "observe"]
    notes += [f"{change}" for change in observed]
    notes += _observed(verdict.considered, {change.rule for change in observed})
    if as_json:
        answer = {
            "accepted": accepted,
            "user": name,
            "messages": list(verdict.messages),
            "slurm": refusals,
            "notes": notes,
            "considered": [asdict(limit) for limit in verdict.considered],
            "changes": [asdict(change) for change in verdict.changes],
            "placed": None if verdict.placed is None else asdict(verdict.placed),
        }
        click.echo(json.dumps(answer, indent=2))
    else:
        if show_rules:
            _print_limits(verdict.considered)
        prefix = request.command if verdict.accepted else f"{request.command}: error"
        for line in verdict.messages:
            click.echo(f"{prefix}: {line}")
        for reason in refusals:
            click.echo(f"{request.command}: error: Slurm itself would refuse the job: {reason}")
        for note in notes:
            click.echo(f"note: {note}", err=True)
        if verdict.placed is not None and accepted:
            click.echo(f"note: {zones_in_words(verdict.placed)}", err=True)
        click.echo("accepted" if accepted else "refused")
    raise click.exceptions.Exit(0 if accepted else 1)


def _observed(considered: Sequence[Considered], changing: Collection[str]) -> Iterator[str]:
    """Yield a note for each limit that the job violates in mode observe, in which no message is printed.

    The rules `changing` would change the job instead of refusing it.
    """
    for limit in considered:
        if limit.fits or limit.mode != "observe" or limit.rule in changing:
            continue
        most = f"limit {limit.limit}" if limit.limit[:1].isdigit() else limit.limit
        amounts = [most, f"requested {limit.requested}"]
        if limit.used is not None:
            amounts.insert(0, f"used {limit.used}")
        yield (f"rule {limit.rule} (mode: observe) would refuse the job: {limit.label}: {', '.join(amounts)}")


def _print_limits(considered: Sequence[Considered]) -> None:
    """Print one line for each limit, in the order of the checks."""
    rows = [
        (
            limit.rule,
            limit.label,
            "" if limit.used is None else limit.used,
            limit.limit,
            limit.requested,
            "fits" if limit.fits else f"violates ({limit.mode})",
        )
        for limit in considered
    ]
    if rows:
        columns = ("rule", "limit of", "used", "limit", "requested", "verdict")
        print_table(
            columns, rows, right=columns[2:5], whole=("rule",), spare=("used", "requested", "limit of")
        )
    else:
        click.echo("no limit applies to this job")
