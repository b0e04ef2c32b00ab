"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from slurm_gpu.policy.lua.bundle import RUN_DIRECTORY
from slurm_gpu.text.units import parse_duration

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; docs/commands.md has its keys."
)
database_option = click.option(
    "--database-config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the database is, if not /etc/slurm-gpu/slurm-gpudbd.yaml.",
)


def duration_value(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    """Return the seconds of an option that is a duration: its callback."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    except OverflowError:
        raise click.BadParameter("it is longer than any number tells") from None


def run_directory_option(what: str) -> Decorator:
    """Return --run-dir; `what` says what is there."""
    return click.option(
        "--run-dir",
        type=click.Path(path_type=Path, file_okay=False, readable=False),
        default=RUN_DIRECTORY,
        show_default=True,
        envvar="SLURM_GPU_RUN_DIR",
        help=what,
    )


def since_option(what: str) -> Decorator:
    """Return --since, a month by default; `what` begins its help."""
    return click.option(
        "--since",
        metavar="WHEN",
        default="30d",
        show_default=True,
        help=f"{what}: 2026-11-01, or 30d for a month ago.",
    )
