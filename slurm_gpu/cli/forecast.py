"""`slurm-gpu forecast ID`, or `-- sbatch …`: how long a job will wait, and what that is known from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu.cli.cells import span
from slurm_gpu.cli.output import print_json, remark
from slurm_gpu.cli.site import Site, with_site
from slurm_gpu.cli.users import uid_and_name
from slurm_gpu.database.client import Run
from slurm_gpu.errors import UsageError
from slurm_gpu.policy.gpuforms import asked_in_all
from slurm_gpu.policy.sbatch import COMMANDS, parse_command
from slurm_gpu.policy.script import INFINITE, NO_VAL
from slurm_gpu.slurm.submission import read_partitions, read_user_defaults
from slurm_gpu.units import counted

if TYPE_CHECKING:  # numpy is not everywhere where the command is
    from slurm_gpu.forecast.forecaster import Correction, Forecasts
    from slurm_gpu.forecast.queue import Runs

_HISTORY_S = 30 * 86400
_MOST_RUNS = 20_000
"""Of the newest: older ones are not asked for, so that the answer comes within seconds."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("words", metavar="ID | -- sbatch …", nargs=-1, required=True, type=click.UNPROCESSED)
@with_site
def forecast(site: Site, as_json: bool, words: tuple[str, ...]) -> None:
    """Say how long job ID will wait, or one that is not submitted yet: forecast -- sbatch --gpus=2 job.sh

    The interval is to hold four of five such jobs. It comes from how long jobs waited that were alike in
    partition, size, account and how long they had waited by then; how near such forecasts were in the last
    weeks is told beside it. Who was let in first by priority, slurm-gpu does not know.
    """
    from slurm_gpu.forecast.model import make_model

    now_s = site.wall()
    with site.database() as database:
        if words[0] in COMMANDS:
            what, wanted = "this job", _submitted(site, words, now_s)
        elif len(words) == 1:
            what, wanted = f"job {words[0]}", [_pending(database.run(words[0]), words[0])]
        else:
            raise UsageError(
                f"{' '.join(words)!r}: write the id of one job, or -- and sbatch, srun or salloc"
            )
        found = list(islice(database.all_runs(since_s=int(now_s - _HISTORY_S)), _MOST_RUNS))
    runs, jobs = _columns(found), _columns(wanted)
    if len(found) == _MOST_RUNS:
        remark(f"of the last 30 days, the newest {_MOST_RUNS} runs alone were looked at")
    model = make_model(runs, now_s)
    if not model.n_looks:
        click.echo("no forecast: no job that waited is on record yet")
        raise click.exceptions.Exit(1)
    said, correction = model.forecast(runs, jobs, now_s), model.correction(jobs)
    drivers = model.drivers(runs, jobs, now_s)
    if as_json:
        print_json(
            {
                "low_s": float(said.low_s[0]),
                "middle_s": float(said.middle_s[0]),
                "high_s": float(said.high_s[0]),
                "from": str(said.source[0]),
                "drivers": [{"what": driver.what, "factor": driver.factor} for driver in drivers],
                "accuracy": None if correction is None else _accuracy(correction),
            }
        )
        return
    _print_interval(what, said)
    for driver in drivers:
        click.echo(f"  {_factor(driver.factor)} for {driver.what}")
    _print_accuracy(correction, with_gpus=bool(jobs.gpus[0] > 0))


def _pending(runs: Sequence[Run], job: str) -> Run:
    """The run that waits; raises UsageError where none does."""
    waiting = [run for run in runs if run.start_s is None and run.end_s is None]
    if waiting:
        return waiting[0]
    if not runs:
        raise UsageError(
            f"no job {job} in Slurm's accounting yet; squeue -j {job} shows whether it is queued"
        )
    newest = runs[0]
    waited = "" if newest.wait_h is None else f"; it waited {span(newest.wait_h * 3600)}"
    raise UsageError(f"job {job} does not wait: it is {newest.state}{waited}")


def _submitted(site: Site, words: Sequence[str], now_s: float) -> list[Run]:
    """The run that a command would become."""
    stdin = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin
    request = parse_command(list(words), os.environ, stdin)
    uid, name = uid_and_name(None)
    description = request.description(uid, name)
    partitions = read_partitions()
    default = next((item.name for item in partitions if item.is_default), "")
    partition = str(description.get("partition") or default)
    account = read_user_defaults(name, request.options.get("account")).account
    minutes, nodes = _said(description.get("time_limit")), _said(description.get("min_nodes"))
    limits = {item.name: item.default_time_s or item.max_time_s for item in partitions}
    limit_s = minutes * 60 if minutes is not None else limits.get(partition.split(",")[0])
    return [
        Run(
            id="",
            full=False,
            cluster="",
            job_id=0,
            array_job_id=None,
            array_task=None,
            het_job_id=None,
            het_offset=None,
            user=name,
            account=account or "",
            qos="",
            partition=partition,
            state="PENDING",
            submit_s=int(now_s),
            eligible_s=int(now_s),
            start_s=None,
            end_s=None,
            elapsed_s=None,
            suspended_s=0,
            time_limit_s=limit_s,
            nodes="",
            gpu_type=None,
            n_nodes=1 if nodes is None else nodes,
            n_gpus=None,
            n_gpus_requested=float(asked_in_all(description)),
            wait_h=None,
            submit_wait_h=None,
            run_h=None,
        )
    ]


def _said(value: object) -> int | None:
    return value if isinstance(value, int) and value not in (NO_VAL, INFINITE) else None


def _columns(runs: Iterable[Run]) -> Runs:
    """As arrays; cores and memory of others' jobs are not shown, so nobody's are looked at."""
    import numpy as np

    from slurm_gpu.forecast.queue import Runs

    listed = list(runs)

    def numbers(values: Iterable[Any]) -> Any:
        return np.array([np.nan if value is None else value for value in values], dtype=float)

    def gpus(run: Run) -> float:
        asked = run.n_gpus_requested if run.n_gpus_requested is not None else run.n_gpus
        return 0.0 if asked is None else asked

    nothing = np.zeros(len(listed))
    return Runs(
        eligible_s=numbers(run.submit_s if run.eligible_s is None else run.eligible_s for run in listed),
        start_s=numbers(run.start_s for run in listed),
        end_s=numbers(run.end_s for run in listed),
        cores=nothing,
        memory_mib=nothing,
        gpus=numbers(gpus(run) for run in listed),
        nodes=numbers(run.n_nodes for run in listed),
        limit_s=numbers(run.time_limit_s for run in listed),
        account=np.array([run.account for run in listed], dtype=str),
        partition=np.array([run.partition.split(",")[0] for run in listed], dtype=str),
    )


def _print_interval(what: str, said: Forecasts) -> None:
    low, middle, high = (span(values[0]) for values in (said.low_s, said.middle_s, said.high_s))
    click.echo(f"{what} starts in {low} to {high}, likeliest in about {middle}")


def _print_accuracy(correction: Correction | None, *, with_gpus: bool) -> None:
    kind = "with" if with_gpus else "without"
    if correction is None:
        click.echo(
            f"too few jobs {kind} GPUs have waited here lately to say how near that is: take it as a guess"
        )
        return
    twice, thrice = correction.within[correction.source]
    click.echo(
        f"of the last forecasts for jobs {kind} GPUs ({counted(correction.judged, 'kind')} of job), "
        f"{twice:.0%} were within twice the truth and {thrice:.0%} within three times"
    )


def _accuracy(correction: Correction) -> dict[str, object]:
    twice, thrice = correction.within[correction.source]
    return {"judged": correction.judged, "within_2x": twice, "within_3x": thrice}


def _factor(factor: float) -> str:
    return f"{factor:.1f} times as long" if factor >= 1 else f"{1 / factor:.1f} times shorter"
