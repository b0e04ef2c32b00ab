"""`slurm-gpu forecast JOB`, or `-- sbatch …`: predict when a job starts, with reasons and reliability."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.forecast.question import ForecastQuestion, asked
from slurm_gpu.cli.forecast.train import train
from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.output import print_json, remark
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.client.forecast_text import accuracy_in_words
from slurm_gpu.errors import UsageError
from slurm_gpu.policy.explain.sbatch import COMMANDS
from slurm_gpu.text.cells import span
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.forecast import Forecast

_JOB = "job"
_AT_ONCE_S = 60
_OLD_S = 3 * 86400


class _ForecastGroup(click.Group):
    """Forecast a job unless the first word is the name of a command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else [_JOB, *args])


@click.group(
    cls=_ForecastGroup, invoke_without_command=True, subcommand_metavar="JOB | -- sbatch … | train [OPTIONS]"
)
@json_option
@click.pass_context
def forecast(context: click.Context, as_json: bool) -> None:
    """Predict when a pending JOB, or a job that is not submitted yet, will start.

    To forecast a job that is not submitted yet, pass its command: forecast -- sbatch --gpus=2 job.sh

    For four out of five jobs, the predicted interval is meant to contain the start. It is estimated from
    the waits of similar jobs and from the current queue. The output includes the share of earlier forecasts
    that were right. Later jobs with a higher priority, and jobs that end early, cannot be predicted.

    The exit code is 1 if there is no forecast because the model is not trained yet, or because the policy or
    Slurm would refuse the job or never start it.
    """
    if context.invoked_subcommand is None:
        raise UsageError("specify the ID of a job, or -- followed by an sbatch, srun or salloc command")


forecast.add_command(train)


@forecast.command(
    _JOB, hidden=True, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
@with_site
def _job(site: CommandSite, context: click.Context, words: tuple[str, ...]) -> None:
    assert context.parent is not None
    as_json: bool = context.parent.params["as_json"]
    wanted = asked(site, words) if words[0] in COMMANDS else None
    if wanted is None and len(words) != 1:
        raise UsageError(
            f"{' '.join(words)!r}: specify the ID of one job, or -- followed by an sbatch, srun or salloc "
            "command"
        )
    what = f"job {words[0]}" if wanted is None else "this job, submitted now,"
    policy = {} if wanted is None else {"policy": wanted.policy_json(), "notes": wanted.notes}
    forecast: Forecast | str
    if wanted is not None and wanted.never:
        forecast = wanted.never
    else:
        with site.database() as database:
            forecast = (
                database.forecast(words[0])
                if wanted is None
                else database.forecast_asked(**wanted.parameters)
            )
    if isinstance(forecast, str):
        if as_json:
            print_json({"forecast": None, "why": forecast, **policy})
        else:
            click.echo(f"no forecast: {forecast}")
            _print_messages(wanted)
            _print_notes(wanted)
        raise click.exceptions.Exit(1)
    if as_json:
        print_json({"forecast": to_json(forecast), **policy})
        return
    _print_policy(wanted)
    click.echo(f"{what} will probably start {_when(forecast, ZoneInfo(site.config.timezone))}")
    # If there are too few waits to validate the model, the factors are arbitrary.
    reasons = forecast.reasons if forecast.judged is not None else ()
    if reasons:
        click.echo("why")
    for reason in reasons:
        click.echo(f"  {_factor(reason.factor)} than usual because of {reason.what}")
    click.echo("how sure")
    for line in _trust(forecast):
        click.echo(f"  {line}")
    if forecast.remark is not None:
        remark(f"note: {forecast.remark}")
    age_s = forecast.at_s - forecast.created_s
    if age_s > _OLD_S:
        remark(f"note: the model is {span(age_s)} old, so the forecast may be inaccurate")


def _print_policy(wanted: ForecastQuestion | None) -> None:
    """Print the messages of the policy about a job that it would accept."""
    if wanted is None:
        return
    if wanted.policy is not None and wanted.policy.messages:
        click.echo("the policy accepts the job and prints")
        _print_messages(wanted)
    if wanted.used_up:
        click.echo("the policy would delay the job")
    for limit in wanted.used_up:
        click.echo(f"  {limit}")
    _print_notes(wanted)


def _print_messages(wanted: ForecastQuestion | None) -> None:
    for line in () if wanted is None or wanted.policy is None else wanted.policy.messages:
        click.echo(f"  {line}")


def _print_notes(wanted: ForecastQuestion | None) -> None:
    for note in () if wanted is None else wanted.notes:
        remark(f"note: {note}")


def _when(forecast: Forecast, zone: ZoneInfo) -> str:
    now = dt.datetime.fromtimestamp(forecast.at_s, zone)
    low, middle, high = (
        _clock(now, now + dt.timedelta(seconds=seconds))
        for seconds in (forecast.lower_s, forecast.median_s, forecast.upper_s)
    )
    if forecast.upper_s < _AT_ONCE_S:
        return "within a minute"
    if forecast.lower_s < _AT_ONCE_S:
        return f"within {span(forecast.upper_s)} (by {high}), most likely in about {span(forecast.median_s)}"
    return (
        f"in {span(forecast.lower_s)} to {span(forecast.upper_s)} ({low} to {high}), "
        f"most likely around {middle}"
    )


def _clock(now: dt.datetime, then: dt.datetime) -> str:
    """Format a time, with the day only if it is not today."""
    days = (then.date() - now.date()).days
    if days == 0:
        return f"{then:%H:%M}"
    return f"{then:%a %H:%M}" if days < 7 else f"{then:%Y-%m-%d}"


def _trust(forecast: Forecast) -> list[str]:
    """Return lines about the accuracy of earlier forecasts and the data behind this forecast."""
    how = "a model trained" if forecast.source == "learned" else "tables made"
    ago, n = span(max(0, forecast.at_s - forecast.created_s)), counted(forecast.samples, "observation")
    since = dt.datetime.fromtimestamp(forecast.since_s, dt.UTC)
    source = f"based on {how} {ago} ago from {n} of waiting jobs since {since:%Y-%m-%d}"
    return [*accuracy_in_words(forecast), source]


def _factor(factor: float) -> str:
    return f"{factor:.1f} times longer" if factor >= 1 else f"{1 / factor:.1f} times shorter"
