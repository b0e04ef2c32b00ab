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


@click.command(short_help="Learn how long jobs wait, for `slurm-gpu forecast`.")
@database_option
@with_site
def train(site: CommandSite, database_config: Path | None) -> None:
    """Learn from the accounting of the last weeks how long jobs wait, for `slurm-gpu forecast`.

    Tables of what jobs waited take numpy alone. With scikit-learn (extra `learn`) a model is learned beside
    them, both are tried on what came later, and whichever was nearer is used. A sample of the jobs that wait
    now is forecast, so that what comes of forecasts is known where few ask.
    """
    from slurm_gpu.database.forecasts.training import foretell_waiting, installed_learner, train_from_database

    database, learner = open_current(database_url(database_config)), installed_learner()
    if learner is None:
        remark("scikit-learn is not installed here (extra learn): tables alone")
    done = train_from_database(database, site.config.cluster, int(site.wall()), learner)
    if not done.looks:
        click.echo("no job that waited is on record yet: there is nothing to forecast from")
        return
    click.echo(
        f"learned from {counted(done.looks, 'observation')} of waiting jobs, in {counted(done.runs, 'run')}; "
        f"stored {max(1, done.bytes // 1024)} KiB"
    )
    for kind, words in (("gpu", "with GPUs"), ("cpu", "without GPUs")):
        click.echo(f"  jobs {words}: {_judged(done.corrections.get(kind))}")
    try:
        kept = foretell_waiting(database, site.config.cluster, site.slurm.jobs(), int(site.wall()))
    except OutsideError as error:
        remark(f"no job that waits now was forecast, to see later what comes of it: {error}")
    else:
        click.echo(f"forecast {counted(kept, 'job')} of those that wait now, to see what comes of it")


def _judged(found: Correction | None) -> str:
    if found is None:
        return "tables; too few have waited to try them"
    names = {"tables": "tables", "learned": "learned model"}
    shares = (
        f"{names[source]} {twice:.0%} within twice and {thrice:.0%} within three times the true wait"
        for source, (twice, thrice) in sorted(found.within.items(), key=lambda item: item[0] != found.source)
    )
    return "; ".join(shares)
