"""The `slurm-gpu` command line: commands, exit codes and error messages."""

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
from slurm_gpu.cli.encoding import replace_unencodable
from slurm_gpu.cli.examples import examples_epilog
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import OutsideError, SlurmGpuError, SlurmRefusalError
from slurm_gpu.text.cells import text

DEBUG_VARIABLE = "SLURM_GPU_DEBUG"

# Import the module of a command only when the command is called: the libraries of one command would slow
# down all commands.
COMMANDS = {
    "job": ("slurm_gpu.cli.runs.job", "Show the runs of a job, and the usage of each GPU."),
    "jobs": ("slurm_gpu.cli.runs.jobs", "List runs with state, waiting time and GPU use."),
    "nodes": ("slurm_gpu.cli.cluster.nodes", "Show the free GPUs and the jobs of each node."),
    "top": (
        "slurm_gpu.cli.cluster.top",
        "Watch the cluster on one screen: GPUs, running and pending jobs.",
    ),
    "web": ("slurm_gpu.cli.cluster.web", "Print a link that signs you in to slurm-gpuweb."),
    "explain": ("slurm_gpu.cli.policy.explain", "Check a job against the policy before you submit it."),
    "forecast": ("slurm_gpu.cli.forecast.group", "Predict when a job starts, even before you submit it."),
    "diagnose": ("slurm_gpu.cli.runs.diagnose", "Find out why a distributed job is slow."),
    "quota": ("slurm_gpu.cli.policy.quota", "Show your usage and limits."),
    "policy": ("slurm_gpu.cli.policy.group", "Check, apply and show policy.yaml."),
    "placement": ("slurm_gpu.cli.placement.group", "Show and compare how jobs are placed on nodes."),
    "colocation": (
        "slurm_gpu.cli.colocation.group",
        "Plan which jobs share a GPU; profile applications.",
    ),
    "reserve": ("slurm_gpu.cli.reserve.group", "Reserve whole nodes for a large training job."),
    "audit": ("slurm_gpu.cli.audit", "List the changes that slurm-gpu made to the cluster."),
    "notices": (
        "slurm_gpu.cli.notices.group",
        "List notices sent to users, and jobs ended because of idle GPUs.",
    ),
    "report": ("slurm_gpu.cli.report.group", "Write reports for a period."),
    "db": ("slurm_gpu.cli.db", "Upgrade, export and prune slurm-gpudbd's database."),
    "doctor": ("slurm_gpu.cli.doctor.group", "Check the installation and print remedies."),
}
# Maps each optional module to the RPM package that contains it, and to the extra for pip.
CARRIED_BY = {
    **dict.fromkeys(("alembic", "numpy", "pymysql", "sqlalchemy"), ("slurm-gpu-db", "db")),
    **dict.fromkeys(("click", "httpx", "lupa", "msgspec", "psutil", "rich"), ("slurm-gpu-client", "client")),
    **dict.fromkeys(("matplotlib", "pyarrow"), ("slurm-gpu-report", "report")),
    **dict.fromkeys(("scipy", "sklearn"), ("slurm-gpu-learn", "learn")),
}
_IN_NO_PACKAGE = {"networkx": ("", "colocation")}
# Commands that report errors of the site file themselves.
_CHECKS_SITE_FILE = ("doctor",)
SUMMARIES = {name: summary for name, (_, summary) in COMMANDS.items()}


class _ReaderGoneError(Exception):
    """Raised instead of BrokenPipeError: click would then exit with 1, the code for a found problem."""


class _LazyGroup(click.Group):
    """List commands from SUMMARIES, and import the module of a command when it is called.

    The module defines a click command of the same name. `commands` has placeholders, from which click
    suggests the nearest name for a mistyped command.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        command.epilog = examples_epilog(cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing their modules."""
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
    help="Site file. [default: $SLURM_GPU_CONF or /etc/slurm-gpu/slurm-gpu.yaml]",
)
@click.version_option(__version__, prog_name="slurm-gpu", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """Monitor the GPUs of a Slurm cluster, and apply the rules for their use.

    Exit codes: 0 for success; 1 if the command found a problem that it checks for; 2 for wrong usage; 3 if
    Slurm, the database or another external part failed.
    """
    site = ctx.ensure_object(CommandSite)
    if config is None:
        return
    site.config_path = config
    # Report errors in an explicit file even for commands that do not need it.
    if ctx.invoked_subcommand not in _CHECKS_SITE_FILE:
        _ = site.config


def main(argv: Sequence[str] | None = None, site: CommandSite | None = None) -> int:
    """Run the command line, print an expected error as one message, and return the exit code."""
    replace_unencodable(sys.stdout, sys.stderr)
    try:
        code = cli.main(
            None if argv is None else list(argv), prog_name="slurm-gpu", obj=site, standalone_mode=False
        )
        sys.stdout.flush()
    except SlurmGpuError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        # Escape control characters: the message may quote user input.
        message = "\n".join(map(text, str(error).split("\n")))
        click.echo(f"slurm-gpu: {message}", err=True)
        refused = isinstance(error, SlurmRefusalError)
        down = _down(error) if isinstance(error, OutsideError) and not refused else None
        if down is not None and "slurm-gpu doctor" not in str(error):
            click.echo(f"{down}: run `slurm-gpu doctor` to see what to start", err=True)
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
        # The reader, such as `head`, has exited; keep the interpreter from flushing into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        part = (CARRIED_BY | _IN_NO_PACKAGE).get((error.name or "").partition(".")[0])
        remedy = (
            "reinstall slurm-gpu"
            if part is None
            else f"install {part[0]}{', or ' if part[0] else ''}slurm-gpu[{part[1]}] with pip"
        )
        click.echo(
            f"slurm-gpu: the Python module {error.name} is not installed: {remedy}",
            err=True,
        )
        return 3
    except Exception as error:
        # Exit with 3, not Python's 1: 1 means that the command found a problem.
        if os.environ.get(DEBUG_VARIABLE):
            raise
        click.echo(
            f"slurm-gpu: {type(error).__name__}: {error} ({DEBUG_VARIABLE}=1 prints a traceback)", err=True
        )
        return 3
    return code if isinstance(code, int) else 0


def _down(error: OutsideError) -> str | None:
    # The checks import much of the policy: load them only after an error.
    from slurm_gpu.cli.doctor.checks.daemons.outages import daemon_that_is_down

    return daemon_that_is_down(str(error))


if __name__ == "__main__":
    sys.exit(main())
