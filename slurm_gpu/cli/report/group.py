"""`slurm-gpu report`: reports and recommendations from accounting and records."""

from __future__ import annotations

import click

from slurm_gpu.cli.report.build import build
from slurm_gpu.cli.report.recommend import recommend


@click.group()
def report() -> None:
    """Report on GPU use, and recommend limits."""


report.add_command(build)
report.add_command(recommend)
