"""`slurm-gpu forecast ID`, or `-- sbatch …`: how long a job will wait, why, and how far to trust that."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Mapping, Sequence
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.cells import span
from slurm_gpu.cli.output import print_json, remark
from slurm_gpu.cli.site import Site, with_site
from slurm_gpu.cli.slurmsays import read_cluster
from slurm_gpu.cli.users import uid_and_name
from slurm_gpu.database.forecasts.answer import Forecast
from slurm_gpu.errors import UsageError
from slurm_gpu.policy.gpuforms import asked_in_all
from slurm_gpu.policy.sbatch import COMMANDS, SbatchRequest, parse_command
from slurm_gpu.policy.script import INFINITE, NO_VAL, NO_VAL16
from slurm_gpu.policy.slurmrefusals import refusals_of_slurm, waits_of_slurm
from slurm_gpu.slurm.submission import Partition, UserDefaults, read_partitions, read_user_defaults
from slurm_gpu.units import counted

_AT_ONCE_S = 60
_OLD_S = 3 * 86400
_FEW = 20
"""Of fewer forecasts a share says little."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/commands.md has its keys.")
@click.argument("words", metavar="ID | -- sbatch …", nargs=-1, required=True, type=click.UNPROCESSED)
@with_site
def forecast(site: Site, as_json: bool, words: tuple[str, ...]) -> None:
    """Say when job ID will start, or one that is not submitted yet: forecast -- sbatch --gpus=2 job.sh

    The interval is to hold four of five such jobs. It comes from how long jobs waited that were alike, and
    from what waits and runs now; how many earlier forecasts held is told beside it. When others' jobs will
    end nobody knows, nor what will come in with a higher priority. Exit status 1 where there is no forecast:
    nothing was learned yet, or Slurm would never start the job. What the policy says to it, `slurm-gpu
    explain` tells.
    """
    with site.database() as database:
        if words[0] in COMMANDS:
            what = "this job, submitted now,"
            asked = _asked(site, words)
            said = asked if isinstance(asked, str) else database.forecast_asked(**asked)
        elif len(words) == 1:
            what, said = f"job {words[0]}", database.forecast(words[0])
        else:
            raise UsageError(
                f"{' '.join(words)!r}: write the id of one job, or -- and sbatch, srun or salloc"
            )
    if isinstance(said, str):
        if as_json:
            print_json({"forecast": None, "why": said})
        else:
            click.echo(f"no forecast: {said}")
        raise click.exceptions.Exit(1)
    if as_json:
        print_json({"forecast": said.to_json()})
        return
    click.echo(f"{what} will probably start {_when(said, ZoneInfo(site.config.timezone))}")
    if said.reasons:
        click.echo("why")
    for reason in said.reasons:
        click.echo(f"  {_factor(reason.factor)} than usual because of {reason.what}")
    click.echo("how sure")
    for line in _trust(said):
        click.echo(f"  {line}")
    age_s = said.at_s - said.made_s
    if age_s > _OLD_S:
        remark(
            f"this stands on what was learned {span(age_s)} ago; where slurm-gpudbd runs, "
            "systemctl status slurm-gpu-forecast.timer tells whether that is still done"
        )


def _asked(site: Site, words: Sequence[str]) -> dict[str, str | float | None] | str:
    """What a command asks for, with what Slurm fills in, as the parameters of /v1/forecast.

    Of a job that would never start, why.
    """
    stdin = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin
    request = parse_command(list(words), os.environ, stdin)
    uid, name = uid_and_name(None)
    description = request.description(uid, name)
    partitions = read_partitions()
    default = next((item.name for item in partitions if item.is_default), "")
    partition = str(description.get("partition") or default).partition(",")[0]
    limits = {item.name: item.default_time_s or item.max_time_s for item in partitions}
    if partition not in limits:
        raise UsageError(f"there is no partition {partition!r}; there are {', '.join(sorted(limits))}")
    defaults = read_user_defaults(name, request.options.get("account"))
    if never := _never(site, request, (uid, name), defaults, partitions):
        return never
    minutes = _said(description, "time_limit")
    nodes, gpus = _said(description, "min_nodes") or 1, asked_in_all(description)
    cores = _cores(description, gpus)
    return {
        "partition": partition,
        "account": defaults.account,
        "gpus": gpus,
        "nodes": nodes,
        "cores": cores,
        "memory_mib": _memory_mib(description, nodes, cores, gpus),
        "time_limit_s": limits[partition] if minutes is None else minutes * 60,
    }


def _never(
    site: Site,
    request: SbatchRequest,
    who: tuple[int, str],
    defaults: UserDefaults,
    partitions: Sequence[Partition],
) -> str:
    """Why the job would never start, however long it waits; "" where nothing speaks against it."""
    nodes = site.slurm.nodes()
    cluster = read_cluster(site, site.slurm.settings(), nodes, partitions, request, who[1], defaults)
    description = request.description(*who, {kind.lower() for node in nodes for kind in node.gpus})
    if refusals := refusals_of_slurm(request, description, cluster):
        return f"Slurm would refuse this job: {'; '.join(refusals)}"
    if waits := waits_of_slurm(request, description, cluster):
        return f"Slurm would let this job wait for ever, as things are: {'; '.join(waits)}"
    return ""


def _said(description: Mapping[str, object], name: str) -> int | None:
    value = description.get(name)
    return value if isinstance(value, int) and value not in (NO_VAL, NO_VAL16, INFINITE) else None


def _cores(description: Mapping[str, object], gpus: int) -> int:
    if per_gpu := _per_gpu(description.get("cpus_per_tres")):
        return per_gpu * max(gpus, 1)
    per_task, tasks = _said(description, "cpus_per_task"), _said(description, "num_tasks")
    cores = (1 if per_task is None else per_task) * (1 if tasks is None else tasks)
    return max(cores, _said(description, "min_cpus") or 1)


def _memory_mib(description: Mapping[str, object], nodes: int, cores: int, gpus: int) -> int | None:
    """None where it is left to Slurm."""
    if per_gpu := _per_gpu(description.get("mem_per_tres")):
        return per_gpu * max(gpus, 1)
    if (per_core := _said(description, "min_mem_per_cpu")) is not None:
        return per_core * cores
    per_node = _said(description, "min_mem_per_node")
    return None if per_node is None else per_node * nodes


def _per_gpu(value: object) -> int:
    """The 4 of "gres/gpu:4"; 0 where nothing is said."""
    return int(value.rpartition(":")[2]) if isinstance(value, str) else 0


def _when(said: Forecast, zone: ZoneInfo) -> str:
    now = dt.datetime.fromtimestamp(said.at_s, zone)
    low, middle, high = (
        _clock(now, now + dt.timedelta(seconds=seconds))
        for seconds in (said.low_s, said.middle_s, said.high_s)
    )
    if said.high_s < _AT_ONCE_S:
        return "within a minute"
    if said.low_s < _AT_ONCE_S:
        return f"within {span(said.high_s)} (by {high}), most likely after {span(said.middle_s)}"
    return f"in {span(said.low_s)} to {span(said.high_s)} ({low} to {high}), most likely around {middle}"


def _clock(now: dt.datetime, then: dt.datetime) -> str:
    """A time as people say it: the day only where it is another one."""
    days = (then.date() - now.date()).days
    if days == 0:
        return f"{then:%H:%M}"
    return f"{then:%a %H:%M}" if days < 7 else f"{then:%Y-%m-%d}"


def _trust(said: Forecast) -> list[str]:
    """How near such forecasts were, and what this one stands on."""
    kind = f"jobs {'with' if said.with_gpus else 'without'} GPUs"
    past, judged = said.past, said.judged
    right = "right: the job started in the interval told"
    if past.n >= _FEW:
        lines = [f"of the last {past.n} forecasts made here, {past.held / past.n:.0%} were {right}"]
    elif past.n:
        lines = [
            f"right so far, as the job started in the interval: {past.held} of {counted(past.n, 'forecast')}"
        ]
    else:
        lines = ["no forecast made here is old enough to tell whether it was right"]
    if judged is None:
        lines.append(f"too few {kind} have waited here lately to try this on them: take it as a guess")
    else:
        lines.append(
            f"tried on {kind} of the last weeks, {judged.within_2x:.0%} of such forecasts were within twice "
            f"the true wait and {judged.within_3x:.0%} within three times"
        )
    how = "a model learned" if said.source == "learned" else "tables made"
    ago, n = span(max(0, said.at_s - said.made_s)), counted(said.looks, "observation")
    since = dt.datetime.fromtimestamp(said.since_s, dt.UTC)
    lines.append(f"from {how} {ago} ago, of {n} of waiting jobs since {since:%Y-%m-%d}")
    return lines


def _factor(factor: float) -> str:
    return f"{factor:.1f} times longer" if factor >= 1 else f"{1 / factor:.1f} times shorter"
