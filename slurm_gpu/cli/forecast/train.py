"""`slurm-gpu forecast train`: learn how long jobs wait, on slurm-gpudbd's host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_gpu.cli.local_database import database_url, open_current
from slurm_gpu.cli.options import database_option
from slurm_gpu.cli.output import remark
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.errors import OutsideError
from slurm_gpu.text.units import counted

if TYPE_CHECKING:  # numpy is installed only on slurm-gpudbd's host.
    from slurm_gpu.forecast.forecaster import Correction


@click.command(short_help="Train the model of waiting times.")
@database_option
@with_site
def train(site: CommandSite, database_config: Path | None) -> None:
    """Train the model of `slurm-gpu forecast` on the accounting of the last 60 days.

    Tables of past waits need only numpy. With scikit-learn (extra `learn`), a regression model is also
    trained; both are validated on later jobs, and tables are used only if they are clearly better. The
    command then forecasts a sample of pending jobs, to measure the accuracy even if few users request
    forecasts. Run this command on slurm-gpudbd's host, as root or SlurmUser.
    """
    from slurm_gpu.database.forecasts.training import forecast_waiting, installed_learner, train_from_database

    database, learner = open_current(database_url(database_config)), installed_learner()
    if learner is None:
        remark("scikit-learn is not installed (extra learn), so only tables are used")
    done = train_from_database(database, site.config.cluster, int(site.wall()), learner)
    if not done.samples:
        click.echo("no job that waited is recorded yet, so there is nothing to train on")
        return
    click.echo(
        f"trained on {counted(done.samples, 'observation')} of waiting jobs, in {counted(done.runs, 'run')}; "
        f"stored {max(1, done.bytes // 1024)} KiB"
    )
    for kind, words in (("gpu", "with GPUs"), ("cpu", "without GPUs")):
        click.echo(f"  jobs {words}: {_judged(done.sources[kind], done.corrections.get(kind))}")
    try:
        kept = forecast_waiting(database, site.config.cluster, site.slurm.jobs(), int(site.wall()))
    except OutsideError as error:
        remark(f"no pending job was forecast for later validation: {error}")
    else:
        click.echo(f"forecast {counted(kept, 'pending job')} for later validation")


def _judged(used: str, found: Correction | None) -> str:
    names = {"tables": "tables", "learned": "learned model"}
    if found is None or not found.is_validated:
        return f"{names[used]}, not validated: too few jobs have waited"
    shares = (
        f"{names[source]} {twice:.0%} within a factor of 2 of the actual wait, {thrice:.0%} within a "
        "factor of 3"
        for source, (twice, thrice) in sorted(found.within.items(), key=lambda item: item[0] != used)
    )
    return "; ".join(shares)
