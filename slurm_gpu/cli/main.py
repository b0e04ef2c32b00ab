"""The `slurm-gpu` command line: its commands, and what becomes of errors."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from slurm_gpu import __version__
from slurm_gpu.cli.encoding import spell_out
from slurm_gpu.cli.examples import shown
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import OutsideError, SlurmGpuError, SlurmRefusalError
from slurm_gpu.text.cells import text

DEBUG_VARIABLE = "SLURM_GPU_DEBUG"

# Each is imported when it is called, so that one command's libraries do not slow the others down.
COMMANDS = {
    "job": ("slurm_gpu.cli.runs.job", "One job: its runs, and what each of its GPUs did."),
    "jobs": ("slurm_gpu.cli.runs.jobs", "A table of runs: waiting, running, GPU use."),
    "nodes": ("slurm_gpu.cli.cluster.nodes", "What is free, who uses which GPU, and until when."),
    "top": (
        "slurm_gpu.cli.cluster.top",
        "The cluster on one screen: who uses which GPU, what waits and why.",
    ),
    "web": ("slurm_gpu.cli.cluster.web", "A link to the page of the cluster, where slurm-gpuweb runs."),
    "explain": ("slurm_gpu.cli.policy.explain", "What the policy says about a job, before it is submitted."),
    "forecast": ("slurm_gpu.cli.forecast.group", "How long a job will wait, also before it is submitted."),
    "diagnose": ("slurm_gpu.cli.runs.diagnose", "Why a distributed job is slow, and who is behind."),
    "quota": ("slurm_gpu.cli.policy.quota", "Your use against each limit of the policy."),
    "policy": ("slurm_gpu.cli.policy.group", "Check, apply and show policy.yaml."),
    "placement": ("slurm_gpu.cli.placement.group", "Where jobs are made to go, so that nodes stay whole."),
    "colocation": (
        "slurm_gpu.cli.colocation.group",
        "Jobs that share a GPU: planners, and profiles of what jobs do.",
    ),
    "reserve": ("slurm_gpu.cli.reserve.group", "Whole nodes for a training, at a promised time."),
    "audit": ("slurm_gpu.cli.audit", "What was done to the cluster, by whom and why."),
    "notices": (
        "slurm_gpu.cli.notices.group",
        "Who is told what of their jobs, and which were ended for it.",
    ),
    "report": ("slurm_gpu.cli.report.group", "Reports on a period: a page, its tables and figures."),
    "db": ("slurm_gpu.cli.db", "Look after slurm-gpudbd's database."),
    "doctor": ("slurm_gpu.cli.doctor.group", "Check the whole installation, and say what to mend."),
}
# What not every host has: the package that carries it, and the extra of an installation by hand.
CARRIED_BY = {
    **dict.fromkeys(("alembic", "numpy", "pymysql", "sqlalchemy"), ("slurm-gpu-db", "db")),
    **dict.fromkeys(("click", "httpx", "lupa", "msgspec", "psutil", "rich"), ("slurm-gpu-client", "client")),
    **dict.fromkeys(("matplotlib", "pyarrow"), ("slurm-gpu-report", "report")),
    **dict.fromkeys(("scipy", "sklearn"), ("slurm-gpu-learn", "learn")),
}
_IN_NO_PACKAGE = {"networkx": ("no package", "colocation")}
_JUDGES_OF_SITE_FILE = ("doctor",)
"""Commands that say themselves what is wrong with the site file."""
SUMMARIES = {name: summary for name, (_, summary) in COMMANDS.items()}


class _ReaderGoneError(Exception):
    """A broken pipe; Click itself would make exit code 1 of it, which means that a problem was found."""


class _LazyGroup(click.Group):
    """Knows its commands' names and summaries, and imports a command when it is called.

    The module of a command holds a click command of the command's own name. In `commands` stand-ins have the
    names, of which click proposes the nearest where one is mistyped.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        command.epilog = shown(cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What a shell offers, without importing all commands for their names."""
        commands = [
            CompletionItem(name, help=summary)
            for name, summary in SUMMARIES.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


@click.group(
    cls=_LazyGroup,
    commands=[click.Command(name, short_help=summary) for name, summary in SUMMARIES.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`slurm-gpu COMMAND --help` shows examples.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The site file, if not $SLURM_GPU_CONF or /etc/slurm-gpu/slurm-gpu.yaml.",
)
@click.version_option(__version__, prog_name="slurm-gpu", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """GPUs of a Slurm cluster: who uses them, how well, and what the rules are.

    Exit codes: 0 done, 1 found the problem it was asked to look for, 2 wrong usage, 3 Slurm, the database
    or another thing outside failed.
    """
    site = ctx.ensure_object(CommandSite)
    if config is None:
        return
    site.config_path = config
    # Also for commands that need nothing of it: whoever names a file means it to count.
    if ctx.invoked_subcommand not in _JUDGES_OF_SITE_FILE:
        _ = site.config


def main(argv: Sequence[str] | None = None, site: CommandSite | None = None) -> int:
    """Run the command line and return its exit code; errors raised on purpose become one message."""
    spell_out(sys.stdout, sys.stderr)
    try:
        code = cli.main(
            None if argv is None else list(argv), prog_name="slurm-gpu", obj=site, standalone_mode=False
        )
        sys.stdout.flush()
    except SlurmGpuError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        said = "\n".join(map(text, str(error).split("\n")))  # it may quote what somebody wrote
        click.echo(f"slurm-gpu: {said}", err=True)
        refused = isinstance(error, SlurmRefusalError)
        trouble = _down(error) if isinstance(error, OutsideError) and not refused else None
        if trouble is not None and "slurm-gpu doctor" not in str(error):
            click.echo(f"{trouble}: `slurm-gpu doctor` says what to start", err=True)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        message = error.format_message()
        click.echo(f"slurm-gpu: {message[:1].lower()}{message[1:]}", err=True)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"Try `{error.ctx.command_path} --help`.", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("slurm-gpu: interrupted", err=True)
        return 130
    except (BrokenPipeError, _ReaderGoneError):
        # The reader, such as `head`, has seen enough; the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        part = (CARRIED_BY | _IN_NO_PACKAGE).get((error.name or "").partition(".")[0])
        remedy = (
            "install the package again"
            if part is None
            else f"{part[0]} has it (by hand, the extra {part[1]})"
        )
        click.echo(
            f"slurm-gpu: this command needs the Python module {error.name}, which is not installed here: "
            f"{remedy}",
            err=True,
        )
        return 3
    except Exception as error:
        # Our own mistake must not pass for "found the problem it was asked to look for", which is 1.
        if os.environ.get(DEBUG_VARIABLE):
            raise
        click.echo(f"slurm-gpu: {type(error).__name__}: {error} ({DEBUG_VARIABLE}=1 shows where)", err=True)
        return 3
    return code if isinstance(code, int) else 0


def _down(error: OutsideError) -> str | None:
    # Only now: with the checks comes half of the policy.
    from slurm_gpu.cli.doctor.checks.daemons.outages import daemon_that_is_down

    return daemon_that_is_down(str(error))


if __name__ == "__main__":
    sys.exit(main())
