"""Define options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.text.units import parse_duration

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON (keys: docs/commands.md).")
since_option = click.option(
    "--since",
    metavar="TIME",
    default="30d",
    show_default=True,
    help="Only jobs submitted since TIME, such as 2026-11-01, or 30d for 30 days ago.",
)
database_option = click.option(
    "--database-config",
    # The command reports an unreadable file itself, and names the users who may read it.
    type=click.Path(path_type=Path, dir_okay=False, readable=False),
    metavar="FILE",
    envvar="SLURM_GPU_DATABASE_CONFIG",
    help="File with the database URL. [default: /etc/slurm-gpu/slurm-gpudbd.yaml]",
)


def duration_value(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    """Convert the duration of an option to seconds; this is a click callback."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    except OverflowError:
        raise click.BadParameter("it is too long") from None


def run_directory_option(what: str) -> Decorator:
    """Return the option --run-dir; `what` is its help text."""
    return click.option(
        "--run-dir",
        type=click.Path(path_type=Path, file_okay=False, readable=False),
        metavar="DIR",
        default=RUN_DIRECTORY,
        show_default=True,
        envvar="SLURM_GPU_RUN_DIR",
        help=what,
    )
