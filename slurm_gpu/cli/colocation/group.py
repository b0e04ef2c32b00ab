"""`slurm-gpu colocation`: train, compare and try planners of shared GPUs; profile applications."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def colocation() -> None:
    """Train and compare planners for shared GPUs, plan jobs, and profile applications.

    Planners use a table of measured speeds of applications that share a GPU, in CSV, JSON or Gavel's format
    (docs/colocation.md). These commands change nothing in Slurm.
    """


class _TableFile(click.Path):
    """A path argument; the error message for a missing argument describes the required file."""

    def get_missing_message(self, *_: Any, **__: Any) -> str:
        return "TABLE is a file of measured speeds, such as the one in docs/colocation.md under Tables."


class _JobsFile(click.File):
    """A file argument; the error message for a missing argument describes the required file."""

    def get_missing_message(self, *_: Any, **__: Any) -> str:
        return "JOBS is a CSV file with the columns application,seconds, or - for standard input."


def _of_table(command: Command) -> Command:
    """Add the argument and the options of a table of speeds."""
    for option in (
        click.option(
            "--cap",
            type=click.FloatRange(min=1, min_open=True),
            metavar="FACTOR",
            help="Maximum slowdown of a job, such as 1.10.",
        ),
        click.option(
            "--together",
            type=click.IntRange(1, 3),
            default=2,
            show_default=True,
            metavar="N",
            help="Maximum jobs per GPU.",
        ),
        click.option(
            "--predict",
            is_flag=True,
            help="Predict the speeds of pairs that the table lacks.",
        ),
        click.option(
            "--gpu-model", metavar="NAME", help="GPU model of the table, if the file has several tables."
        ),
        click.argument("table", type=_TableFile(path_type=Path, dir_okay=False)),
    ):
        command = option(command)
    return command


def _cap(cap: float | None) -> float:
    if cap is not None and math.isnan(cap):
        raise UsageError(f"--cap {cap}: it must be a number above 1")
    return math.inf if cap is None else cap


@colocation.command(short_help="Train a planner on a table of speeds.")
@_of_table
@click.option(
    "--planner",
    type=click.Choice(LEARNED_PLANNERS),
    default="dqngpu",
    show_default=True,
    help="Planner to train.",
)
@click.option(
    "--out", type=_FILE, metavar="FILE", default="model.npz", show_default=True, help="Output file."
)
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Random seed."
)
@click.option("--start", type=_FILE, metavar="FILE", help="Model to continue from.")
@click.option(
    "--checkpoint",
    type=_FILE,
    metavar="FILE",
    help="File to write after each epoch; if it exists, training continues from it.",
)
@click.option(
    "--if-better",
    is_flag=True,
    help="Keep an existing model that was trained on the same table and is at least as good.",
)
@click.option(
    "--sbatch",
    "n_seeds",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Print a script for sbatch: a job array that trains with N seeds and keeps the best model.",
)
@click.option(
    "--device", metavar="NAME", default="cpu", show_default=True, help="Device for torch, such as `cuda`."
)
@with_site
def train(
    site: CommandSite,
    table: Path,
    gpu_model: str | None,
    together: int,
    cap: float | None,
    planner: str,
    out: Path,
    seed: int,
    start: Path | None,
    checkpoint: Path | None,
    n_seeds: int | None,
    device: str,
    *,
    predict: bool,
    if_better: bool,
) -> None:
    """Train a planner on a table of speeds, and write the model to a small file.

    Training ends early if the planner stops improving. With --checkpoint, interrupted training can be
    continued, with the same result as without the interruption. Training on the CPU needs only numpy; any
    other --device needs torch (extra `train`).
    """
    # Set this before numpy is imported: threads slow down computations on small arrays.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from slurm_gpu.cli.colocation import train as run

    known = run.SpeedTable(table, gpu_model, together, _cap(cap), predict)
    if n_seeds is not None:
        if seed or checkpoint is not None or if_better:
            raise UsageError("--sbatch sets --seed, --checkpoint and --if-better for each task, so omit them")
        run.print_script(known, planner, out, start, device, n_seeds)
        return
    run.train_planner(
        known, planner, out, seed, start, checkpoint, device, if_better=if_better, now_s=site.wall()
    )


@colocation.command(short_help="Compare planners on jobs drawn from a table.")
@_of_table
@click.option(
    "--model",
    "models",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Model written by `train`; repeatable.",
)
@click.option(
    "--planners",
    metavar="NAMES",
    help="Planners, separated by commas. [default: all that need no model or have one]",
)
@click.option(
    "--lists", type=click.IntRange(1, 1000), metavar="N", default=20, show_default=True, help="Lists of jobs."
)
@click.option(
    "--jobs", type=click.IntRange(1, 500), metavar="N", default=30, show_default=True, help="Jobs per list."
)
@click.option("--gpus", type=click.IntRange(1, 64), metavar="N", default=1, show_default=True, help="GPUs.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Random seed of the first list.",
)
@json_option
def evaluate(
    table: Path,
    gpu_model: str | None,
    together: int,
    cap: float | None,
    models: tuple[Path, ...],
    planners: str | None,
    lists: int,
    jobs: int,
    gpus: int,
    seed: int,
    *,
    predict: bool,
    as_json: bool,
) -> None:
    """Simulate planners on the same jobs, and compare them with SJF and with the optimum.

    Each list contains jobs that take one to ten minutes, and whose applications are drawn at random from the
    table. All planners use the speeds in the table.
    """
    from slurm_gpu.cli.colocation import evaluate as run
    from slurm_gpu.cli.colocation.train import SpeedTable

    known = SpeedTable(table, gpu_model, together, _cap(cap), predict)
    names = None if planners is None else tuple(name.strip() for name in planners.split(","))
    run.evaluate_planners(known, models, names, range(seed, seed + lists), jobs, gpus, as_json=as_json)


@colocation.command(short_help="Plan which jobs share a GPU, and estimate the savings.")
@_of_table
@click.argument("jobs", type=_JobsFile(encoding="utf-8-sig"))
@click.option(
    "--planner", metavar="NAME", help="Planner to use. [default: annealing, or the planner of --model]"
)
@click.option("--model", type=_FILE, metavar="FILE", help="Model written by `train`.")
@click.option("--gpus", type=click.IntRange(1, 64), metavar="N", default=1, show_default=True, help="GPUs.")
@click.option(
    "--prices",
    type=_FILE,
    metavar="FILE",
    help="Prices of GPUs and their parts. [default: /etc/slurm-gpu/prices.yaml, or the package's file]",
)
@json_option
def plan(
    table: Path,
    gpu_model: str | None,
    together: int,
    cap: float | None,
    jobs: Any,
    planner: str | None,
    model: Path | None,
    gpus: int,
    prices: Path | None,
    *,
    predict: bool,
    as_json: bool,
) -> None:
    """Plan which jobs share a GPU, and print their order, expected speeds and savings.

    JOBS is a CSV file with the columns application, seconds (the run time without sharing) and optionally
    submit_s; - reads standard input. The plan is only as accurate as the table. No job is submitted.
    """
    from slurm_gpu.cli.colocation import plan as run
    from slurm_gpu.cli.colocation.train import SpeedTable

    known = SpeedTable(table, gpu_model, together, _cap(cap), predict)
    run.plan_jobs(known, jobs, planner, model, gpus, prices, as_json=as_json)


@colocation.command(short_help="Write profiles of applications from recorded runs.")
@click.argument("out", type=_FILE)
@click.argument("files", type=_FILE, nargs=-1)
@click.option(
    "--since",
    metavar="TIME",
    default="30d",
    show_default=True,
    help="Only runs that ended since TIME, such as 2026-11-01, or 7d for a week ago.",
)
@click.option("--files-only", is_flag=True, help="Read only FILES, not slurm-gpudbd.")
@with_site
def profiles(site: CommandSite, out: Path, files: tuple[Path, ...], since: str, *, files_only: bool) -> None:
    """Write profiles of applications, phase by phase, from runs that had a whole GPU.

    The suffix of OUT, .csv or .json, determines the format. The profiles in FILES are combined with those of
    the finished single-GPU runs that you may see.
    """
    from slurm_gpu.cli.colocation import profiles as run

    run.write_profiles(site, out, files, since, files_only=files_only)


@colocation.command(short_help="Show the profile nearest to a job.")
@click.argument("profiles", type=_FILE)
@click.argument("application")
@click.option("--gpu-model", metavar="NAME", required=True, help="GPU model that the job runs on.")
@click.option("--kind", metavar="NAME", default="", help="Kind of work, such as training.")
@click.option(
    "--input-size",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Input size in the unit of the application, such as the batch size.",
)
@click.option(
    "--parameter",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another parameter; repeatable.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Shards per GPU (gres/shard), to print how many the job needs. Requires --gpu-memory.",
)
@click.option("--gpu-memory", metavar="SIZE", help="Memory of the GPU, such as 80G.")
@json_option
def nearest(
    profiles: Path,
    application: str,
    gpu_model: str,
    kind: str,
    input_size: float | None,
    parameters: tuple[str, ...],
    shards: int | None,
    gpu_memory: str | None,
    *,
    as_json: bool,
) -> None:
    """Show the profile in PROFILES, a file that `profiles` wrote, nearest to a job of APPLICATION."""
    from slurm_gpu.cli.colocation import profiles as run

    named = dict(one.split("=", 1) for one in parameters if "=" in one)
    if len(named) < len(parameters):
        raise UsageError(f"--parameter {', '.join(parameters)}: write NAME=VALUE, and each name only once")
    if input_size is not None and not math.isfinite(input_size):
        raise UsageError(f"--input-size {input_size}: it must be a number")
    parted = run.parted(shards, gpu_memory)
    run.show_nearest(profiles, application, gpu_model, kind, input_size, named, parted, as_data=as_json)


@colocation.command(short_help="Write a table of the measured speeds of jobs that share GPUs.")
@click.argument("out", type=_FILE)
@click.option(
    "--gpu-model", metavar="NAME", default="any", show_default=True, help="GPU model to write into the table."
)
@with_site
def learned(site: CommandSite, out: Path, gpu_model: str) -> None:
    """Write a table of the speeds that slurm-gpuctld measured for jobs that share GPUs.

    The suffix of OUT, .csv or .json, determines the format; `train`, `evaluate` and `plan` read the file. Run
    this command on slurmctld's host, as root or SlurmUser.
    """
    from slurm_gpu.cli.colocation import learned as run

    run.write_learned(site, out, gpu_model)
