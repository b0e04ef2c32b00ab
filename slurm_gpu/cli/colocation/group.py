"""`slurm-gpu colocation`: train planners of shared GPUs, compare them, and see what they would do."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.colocation.learned import LEARNED
from slurm_gpu.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def colocation() -> None:
    """Jobs that share a GPU: train planners, compare them, and see what they would do.

    All by a table of speeds that applications had beside each other, as CSV, JSON or in Gavel's format
    (docs/colocation.md). Nothing here acts on Slurm.
    """


class _TableFile(click.Path):
    """A path of which it is told what it is where it lacks."""

    def get_missing_message(self, *_: Any, **__: Any) -> str:
        return "It is a file of measured speeds; docs/colocation.md has a small one under Tables."


class _JobsFile(click.File):
    """The same of the list of jobs."""

    def get_missing_message(self, *_: Any, **__: Any) -> str:
        return "It is a CSV file with the columns application,seconds, or - for standard input."


def _of_table(command: Command) -> Command:
    """The options that say what is known."""
    for option in (
        click.option(
            "--cap",
            type=click.FloatRange(min=1, min_open=True),
            metavar="FACTOR",
            help="Nobody may take longer by more than this factor, such as 1.10.",
        ),
        click.option(
            "--together",
            type=click.IntRange(1, 3),
            default=2,
            show_default=True,
            help="So many jobs share a GPU at most.",
        ),
        click.option(
            "--predict",
            is_flag=True,
            help="Speeds of pairs that the table lacks are predicted from those that it has.",
        ),
        click.option("--gpu-model", metavar="NAME", help="Which table of the file, where it has several."),
        click.argument("table", type=_TableFile(path_type=Path, dir_okay=False)),
    ):
        command = option(command)
    return command


def _cap(cap: float | None) -> float:
    if cap is not None and math.isnan(cap):
        raise UsageError(f"--cap {cap}: it must be a number above 1")
    return math.inf if cap is None else cap


@colocation.command(short_help="Train a planner on a table; writes a small file.")
@_of_table
@click.option("--planner", type=click.Choice(LEARNED), default="dqngpu", show_default=True)
@click.option("--out", type=_FILE, metavar="FILE", default="model.npz", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--start", type=_FILE, metavar="FILE", help="A model that only needs to learn what is new.")
@click.option(
    "--checkpoint",
    type=_FILE,
    metavar="FILE",
    help="Written after each epoch; where there is one, the training goes on from it.",
)
@click.option(
    "--if-better", is_flag=True, help="Leave a model alone that was trained on the same and is as good."
)
@click.option(
    "--sbatch",
    "n_seeds",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Print a script for sbatch that trains with N seeds, a job array; the best model wins.",
)
@click.option("--device", default="cpu", show_default=True, help="Another one is torch's, as in `cuda`.")
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
    """Train a planner on a table of speeds, and write what it learned as a small file.

    It ends early where nothing becomes better. Killed, it goes on from its --checkpoint to the same result.
    On the processor it needs numpy alone. Another --device needs torch, which no package carries: the extra
    `train` has it.
    """
    # Before numpy comes: its arrays here are so small that threads take longer, and more of the processor.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from slurm_gpu.cli.colocation import train as run

    known = run.SpeedTable(table, gpu_model, together, _cap(cap), predict)
    if n_seeds is not None:
        if seed or checkpoint is not None or if_better:
            raise UsageError(
                "--sbatch gives each task its --seed, --checkpoint and --if-better: leave them out"
            )
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
    help="What a planner learned, by `train`; may be repeated.",
)
@click.option(
    "--planners",
    metavar="NAMES",
    help="Joined by commas. [default: all that need no model, and those that have one]",
)
@click.option(
    "--lists", type=click.IntRange(1, 1000), default=20, show_default=True, help="So many lists of jobs."
)
@click.option("--jobs", type=click.IntRange(1, 500), default=30, show_default=True, help="In each list.")
@click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the first list.")
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
    """Let planners schedule the same jobs in a model of the GPUs, beside SJF and the least that is possible.

    Each list is of random applications of the table, each job of one to ten minutes. All planners know the
    table.
    """
    from slurm_gpu.cli.colocation import evaluate as run
    from slurm_gpu.cli.colocation.train import SpeedTable

    known = SpeedTable(table, gpu_model, together, _cap(cap), predict)
    names = None if planners is None else tuple(name.strip() for name in planners.split(","))
    run.evaluate_planners(known, models, names, range(seed, seed + lists), jobs, gpus, as_json=as_json)


@colocation.command(short_help="Who would share with whom, and what it would save.")
@_of_table
@click.argument("jobs", type=_JobsFile(encoding="utf-8-sig"))
@click.option("--planner", metavar="NAME", help="[default: annealing, or that of --model]")
@click.option("--model", type=_FILE, metavar="FILE", help="What the planner learned, by `train`.")
@click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option(
    "--prices",
    type=_FILE,
    metavar="FILE",
    help="What a GPU and a part of one cost, if not /etc/slurm-gpu/prices.yaml or the package's.",
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
    """Who would share a GPU with whom, in which order, how fast that is believed to be, and what it saves.

    JOBS is a CSV file with the columns application and seconds (alone), and if need be submit_s; - reads
    standard input. All of it is what would happen if the table were true; nothing is submitted.
    """
    from slurm_gpu.cli.colocation import plan as run
    from slurm_gpu.cli.colocation.train import SpeedTable

    known = SpeedTable(table, gpu_model, together, _cap(cap), predict)
    run.plan_jobs(known, jobs, planner, model, gpus, prices, as_json=as_json)


@colocation.command(short_help="What applications do to GPUs, by recorded runs.")
@click.argument("out", type=_FILE)
@click.argument("files", type=_FILE, nargs=-1)
@click.option(
    "--since",
    metavar="WHEN",
    default="30d",
    show_default=True,
    help="Of runs that ended since then: 2026-11-01, or 7d for a week ago.",
)
@click.option("--files-only", is_flag=True, help="Of FILES alone; slurm-gpudbd is not asked.")
@with_site
def profiles(site: CommandSite, out: Path, files: tuple[Path, ...], since: str, *, files_only: bool) -> None:
    """Write what applications did to a GPU that they had for themselves, phase by phase.

    OUT is CSV or JSON, by its name. They are of finished runs on one whole GPU that you may see, and of FILES
    of profiles, each run of which counts as one.
    """
    from slurm_gpu.cli.colocation import profiles as run

    run.write_profiles(site, out, files, since, files_only=files_only)


@colocation.command(short_help="The profile that is nearest to a job's.")
@click.argument("profiles", type=_FILE)
@click.argument("application")
@click.option("--gpu-model", metavar="NAME", required=True, help="That the job is to run on.")
@click.option("--kind", metavar="KIND", default="", help="Of the application, such as training.")
@click.option(
    "--input-size",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="In the application's own unit, such as its batch size.",
)
@click.option(
    "--parameter",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another one that is known; may be repeated.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Parts that a GPU has (gres/shard): how many the job needs. With --gpu-memory.",
)
@click.option("--gpu-memory", metavar="SIZE", help="Of the GPU, as in 80G.")
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
    """What a job of APPLICATION is likely to do, by the nearest of PROFILES, a file from `profiles`."""
    from slurm_gpu.cli.colocation import profiles as run

    named = dict(one.split("=", 1) for one in parameters if "=" in one)
    if len(named) < len(parameters):
        raise UsageError(f"--parameter {', '.join(parameters)}: write NAME=VALUE, each name once")
    if input_size is not None and not math.isfinite(input_size):
        raise UsageError(f"--input-size {input_size}: it must be a number")
    parted = run.parted(shards, gpu_memory)
    run.show_nearest(profiles, application, gpu_model, kind, input_size, named, parted, as_data=as_json)


@colocation.command(short_help="What slurm-gpuctld learned of jobs that share, as a table.")
@click.argument("out", type=_FILE)
@click.option("--gpu-model", metavar="NAME", default="any", show_default=True, help="Named in the table.")
@with_site
def learned(site: CommandSite, out: Path, gpu_model: str) -> None:
    """Write the speeds that jobs which share GPUs on this cluster were seen to have, as a table.

    OUT is CSV or JSON, by its name; `train`, `evaluate` and `plan` read it. On the host of slurmctld, as root
    or SlurmUser.
    """
    from slurm_gpu.cli.colocation import learned as run

    run.write_learned(site, out, gpu_model)
