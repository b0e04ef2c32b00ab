"""`slurm-gpu report recommend`: simulate jobs under other limits, and propose a patch of policy.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.options import json_option, since_option
from slurm_gpu.cli.output import print_json, print_table, remark
from slurm_gpu.cli.policy.file import PATH, file_argument, timezone
from slurm_gpu.cli.progress import status_line
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import InputError, outside
from slurm_gpu.policy.language.limit_edit import edit_limit, unified_diff
from slurm_gpu.policy.language.limit_value import value_text
from slurm_gpu.text.cells import minute
from slurm_gpu.text.units import counted

if TYPE_CHECKING:  # numpy is installed only where reports are built
    from slurm_gpu.cli.policy.limit_search import Replayed
    from slurm_gpu.reports.recommend.search import Findings, LimitTrial, Trial

_REPRODUCED = ("group", "jobs", "recorded_h", "modelled_h", "within_2x")
_IDLE = ("group", "hours", "GPUs idle")
_PREDICTED = (
    "group",
    "jobs",
    "WAIT_h",
    "would_be",
    "median",
    "would_be",
    "typical user",
    "would_be",
    "by limits",
)
_TRIED = ("tried", "WAIT_h of all", "verdict")


@click.command(short_help="Propose limits that shorten waits, as a patch.")
@file_argument
@since_option
@click.option("--until", metavar="TIME", help="End of the period. [default: now]")
@click.option("--out", type=PATH, metavar="FILE", help="Write the patch to FILE instead of standard output.")
@json_option
@with_site
def recommend(
    site: CommandSite, file: Path | None, since: str, until: str | None, out: Path | None, as_json: bool
) -> None:
    """Simulate recorded jobs under other values of the limits in FILE, and propose better values as a patch.

    Each change moves one limit on running jobs by one step. A change is proposed if the mean wait of all jobs
    falls, and no group waits much longer. Nothing is changed. Only operators of slurm-gpudbd may run this
    command, on a host with Slurm's commands. If the model does not reproduce the recorded waits, nothing is
    proposed, and the exit code is 1.
    """
    from slurm_gpu.cli.policy.limit_search import findings_json, replayed

    with status_line() as report:
        found = replayed(site, file, since, until, report)
        findings = found.search.findings(progress=report)
    patch = _patch(found, findings)
    for text in found.remarks:
        remark(text)
    if as_json:
        print_json(findings_json(found, findings) | {"patch": patch})
    else:
        _print(found, findings, ZoneInfo(timezone(site)))
    if patch and out is not None:
        _write(out, patch)
        remark(f"the patch is in {out}; `patch {found.loaded.path} {out}` applies it to the file")
    elif patch and not as_json:
        click.echo()
        click.echo(patch, nl=False)
    raise click.exceptions.Exit(1 if findings.refused else 0)


def _patch(found: Replayed, findings: Findings) -> str:
    """Return a unified diff of the policy; "" if nothing changes."""
    path = found.loaded.path
    old = text = path.read_bytes().decode()  # decoded with unchanged line endings
    for change in findings.changes:
        try:
            text = edit_limit(text, str(path), change.limit.rule, change.limit.key, change.new)
        except InputError as error:  # for example, other parts of the file share this value
            remark(str(error))
    return unified_diff(old, text, str(path))


def _write(out: Path, patch: str) -> None:
    with outside(out):
        out.write_text(patch, encoding="utf-8")


def _print(found: Replayed, findings: Findings, zone: ZoneInfo) -> None:
    since, until = minute(found.since_s, zone), minute(found.until_s, zone)
    cluster = found.past.cluster
    click.echo(
        f"Replayed {counted(len(found.past.jobs), 'run')} from {since} to {until} on "
        f"{counted(len(cluster.nodes), 'node')} with {counted(cluster.total_gpus, 'GPU')}, and compared the "
        f"waits of {int(found.past.judged.sum())} of them"
    )
    click.echo("\nHow well the model reproduces the recorded waits (means, hours):")
    rows = [
        (name, str(one.jobs), _h(one.recorded_h), _h(one.modelled_h), f"{one.within_2x:.0%}")
        for name, one in findings.reproduction.items()
    ]
    print_table(_REPRODUCED, rows, right=_REPRODUCED[1:])
    idle = [
        (name, _h(one.waited_h), f"{one.gpus:.1f}") for name, one in findings.idle.items() if one.waited_h
    ]
    if idle:
        click.echo(
            f"\nMean number of free GPUs (of {cluster.total_gpus}) while a job of the group waited for GPUs, "
            "as recorded:"
        )
        print_table(_IDLE, idle, right=_IDLE[1:])
    for text in findings.refused:
        click.echo(f"Nothing is proposed for {text}")
    if findings.trials:
        click.echo("\nTried in the model:")
        print_table(_TRIED, [_trial_row(trial) for trial in findings.trials], right=_TRIED[1:2])
    if findings.changes:
        click.echo("\nProposed:")
        for change in findings.changes:
            click.echo(f"  {change_text(change)}")
        click.echo("\nModelled waits under the current and the proposed limits (hours):")
        print_table(_PREDICTED, list(_predicted_rows(findings)), right=_PREDICTED[1:])
    elif findings.trials:
        click.echo("\nNothing to propose: no step shortens waits enough without making a group wait longer")


def _trial_row(trial: Trial) -> tuple[str, str, str]:
    if trial.hurts:
        verdict = f"no: longer waits for {', '.join(trial.hurts)}"
    else:
        verdict = "shortens waits" if trial.worth_it else "no: makes too little difference"
    return change_text(trial.change), f"{-trial.gain_h:+.2f}", verdict


def change_text(change: LimitTrial) -> str:
    """Format a change, such as "gpus_running of grad-share: 16 → 20"."""
    key = change.limit.key
    return f"{key} of {change.limit.rule}: {value_text(key, change.old)} → {value_text(key, change.new)}"


def _predicted_rows(findings: Findings) -> Iterator[tuple[str, ...]]:
    for name, before in findings.before.items():
        after = findings.after[name]
        numbers = (before.mean_h, after.mean_h, before.median_h, after.median_h, before.user_h, after.user_h)
        yield (name, str(before.jobs), *map(_h, numbers), _h(before.by_limits_h))


def _h(hours: float) -> str:
    return f"{hours:.2f}"
