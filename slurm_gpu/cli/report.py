"""`slurm-gpu report`: what a period's accounting and records tell."""

from __future__ import annotations

import click

from slurm_gpu.cli.recommend import recommend
from slurm_gpu.cli.reportbuild import build


@click.group()
def report() -> None:
    """Reports on what GPUs were used for."""


report.add_command(build)
report.add_command(recommend)
