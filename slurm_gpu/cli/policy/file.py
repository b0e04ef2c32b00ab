"""Define the argument FILE of `slurm-gpu policy`, and find the time zone of the site."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import InputError
from slurm_gpu.policy.language.check import FILE_NAME

PATH = click.Path(path_type=Path, readable=False)  # open() reports better errors than click


def file_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument FILE, which defaults to $SLURM_GPU_POLICY."""
    return click.argument("file", type=PATH, required=False, envvar="SLURM_GPU_POLICY")(command)


def policy_path(site: CommandSite, file: Path | None) -> Path:
    """Return FILE, or policy.yaml next to the site file."""
    return file if file is not None else site.config_path.parent / FILE_NAME


def existing_policy(site: CommandSite, file: Path | None) -> Path:
    """Return the path of the policy; raise InputError with advice if FILE is not given and there is none."""
    path = policy_path(site, file)
    if file is None and not os.path.lexists(path):
        raise InputError(
            str(path), 0, 0, "does not exist: write a policy (examples: docs/cookbook.md), or pass FILE"
        )
    return path


def apply_command(file: Path | None) -> str:
    """Return the command that applies FILE."""
    return "slurm-gpu policy apply" + ("" if file is None else f" {file}")


def timezone(site: CommandSite) -> str:
    """Return the time zone for the policy's days and hours: the site's, or UTC without a site file."""
    return site.config.timezone if site.config_path.exists() else "UTC"
