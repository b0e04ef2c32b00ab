"""`slurm-gpu doctor`: check the installation end to end."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.text import Text

from slurm_gpu.cli.doctor.checks.every import run_checks
from slurm_gpu.cli.doctor.checks.finding import DoctorContext, Level, Result, skipped
from slurm_gpu.cli.doctor.time_bound import bounded
from slurm_gpu.cli.doctor.uninstall import uninstall_steps
from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.output import console, print_json
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.policy.lua.install import STATE_DIRECTORY
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.text import cells
from slurm_gpu.text.units import counted

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.SKIPPED: "dim"}
# On narrower terminals the message is printed below its check.
_ONE_COLUMN = 60
# Only root and SlurmUser may read some of these directories.
_PATH = click.Path(path_type=Path, file_okay=False, readable=False)


@click.group(invoke_without_command=True)
@click.option(
    "--node-run-dir",
    type=_PATH,
    default=Path("/run/slurm-gpu"),
    show_default=True,
    metavar="DIR",
    help="Directory that the hooks write to.",
)
@click.option(
    "--node-state-dir",
    type=_PATH,
    default=Path("/var/lib/slurm-gpu"),
    show_default=True,
    metavar="DIR",
    help="Directory of slurm-gpud's state.",
)
@click.option(
    "--policy-state-dir",
    type=_PATH,
    default=STATE_DIRECTORY,
    show_default=True,
    envvar="SLURM_GPU_POLICY_STATE",
    metavar="DIR",
    help="Directory of the journal of `policy apply`.",
)
@json_option
@with_site
@click.pass_context
def doctor(
    context: click.Context,
    site: CommandSite,
    node_run_dir: Path,
    node_state_dir: Path,
    policy_state_dir: Path,
    as_json: bool,
) -> int:
    """Check the installation end to end, and print a remedy for each problem.

    Nothing is changed. Checks of other hosts are skipped, so run this command as root on the controller, on
    the database host, and on nodes with and without GPUs. The exit code is 1 if a check failed.
    """
    at = DoctorContext(
        bounded(site),
        run_dir=node_run_dir,
        state_dir=node_state_dir,
        policy_state=policy_state_dir,
        controller_run=Path(os.environ.get("SLURM_GPU_RUN_DIR") or RUN_DIRECTORY),
    )
    if context.invoked_subcommand is not None:
        context.obj = at
        return 0
    results = []
    for result in run_checks(at):
        results.append(result)
        if not as_json and result.finding.level is not Level.SKIPPED:
            _print(result)
    levels = [result.finding.level for result in results]
    failed, warned = levels.count(Level.FAIL), levels.count(Level.WARN)
    if as_json:
        checks = [result.to_json() for result in results]
        print_json({"checks": checks, "failed": failed, "warned": warned})
    else:
        for result in _by_reason(results):
            _print(result)
        n_skipped = levels.count(Level.SKIPPED)
        more = f", {n_skipped} skipped" if n_skipped else ""
        click.echo(f"{failed} failed, {counted(warned, 'warning')}, {levels.count(Level.OK)} ok{more}")
    return 1 if failed else 0


@doctor.command(short_help="Print the steps that remove slurm-gpu from this host.")
@click.pass_obj
def uninstall(at: DoctorContext) -> None:
    """Print the steps that remove slurm-gpu from this host: first changes to slurm.conf, then commands.

    Nothing is changed. The steps depend on the slurm.conf, hooks and job_submit.lua of this host.
    """
    screen = console()
    for number, step in enumerate(uninstall_steps(at), 1):
        first, *more = _wrapped(step.what, screen.width - 4)
        screen.print(Text(f"{number:>2}  {first}"))
        for line in more:
            screen.print(Text(f"    {line}"))
        for line in step.lines:
            screen.print(Text(f"      {line}"), soft_wrap=True)  # one line, for copying


def _by_reason(results: Sequence[Result]) -> Iterator[Result]:
    """Yield one result for each reason why checks were skipped."""
    checks: dict[str, list[str]] = {}
    for result in results:
        if result.finding.level is Level.SKIPPED:
            checks.setdefault(result.finding.message, []).append(result.check)
    for reason, names in checks.items():
        several = f"{reason}; this concerns {', '.join(names)}"
        yield Result(names[0], skipped(reason)) if len(names) == 1 else Result("", skipped(several))


def _print(result: Result) -> None:
    """Print the level, the name of the check, and the message (on its own lines on a narrow terminal)."""
    finding, screen = result.finding, console()
    head = Text(f"{finding.level.value:<8}", _STYLES[finding.level]).append(f"{result.check:<14}", "default")
    text = [finding.message, *([] if finding.remedy is None else [f"→ {finding.remedy}"])]
    if screen.width < _ONE_COLUMN:
        screen.print(head)
        indent = 4
    else:
        first, *text = _wrapped(text[0], screen.width - len(head)) + text[1:]
        screen.print(head.copy().append(first, "default"))
        indent = len(head)
    for part in text:
        for line in _wrapped(part, screen.width - indent):
            screen.print(Text(" " * indent + line))


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap `text` at `width`, keep its line breaks, and escape the control characters in it."""
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return [
        line for whole in text.splitlines() if whole for line in wrap.wrap(cells.text(whole.expandtabs(1)))
    ]
