"""`slurm-gpu colocation evaluate`: compare planners in a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_gpu.cli.colocation.train import SpeedTable
from slurm_gpu.cli.output import console, print_json, print_table
from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.colocation.learned.models import read_any
from slurm_gpu.colocation.learned.net import Net
from slurm_gpu.colocation.registry import PLANNERS
from slurm_gpu.colocation.research.workloads import table_jobs
from slurm_gpu.errors import UsageError

if TYPE_CHECKING:  # the bound needs scipy, but plans do not
    from slurm_gpu.colocation.research.contest import ContestResult

_COLUMNS = (
    "planner",
    "of_SJF",
    "at_worst",
    "above_bound",
    "not_slowed",
    "slowest",
    "together",
    "OOM",
    "ms_p50",
    "ms_p99",
)

# The bound enumerates all triples of jobs: half a million for this many jobs.
_MOST_JOBS = 150


def read_nets(paths: Sequence[Path]) -> dict[str, Net]:
    """Return the models by planner; raise InputError for an invalid model, UsageError for duplicates."""
    nets: dict[str, Net] = {}
    for path in paths:
        model = read_any(path)
        if model.kind in nets:
            raise UsageError(f"--model {path}: a model for {model.kind} is already given; specify only one")
        nets[model.kind] = model.net
    return nets


def checked_names(names: Sequence[str] | None, nets: Mapping[str, Net]) -> tuple[str, ...]:
    """Return the planners to compare; by default, those that need no model or whose model is given.

    Raise UsageError if a planner is unknown or lacks a model.
    """
    if names is None:
        return (*PLANNERS, *(name for name in LEARNED_PLANNERS if name in nets))
    for name in names:
        if name not in PLANNERS and name not in LEARNED_PLANNERS:
            raise UsageError(
                f"unknown planner {name!r}; planners: {', '.join([*PLANNERS, *LEARNED_PLANNERS])}"
            )
        if name in LEARNED_PLANNERS and name not in nets:
            raise UsageError(
                f"planner {name} needs a model: write one with `slurm-gpu colocation train --planner "
                f"{name}`, "
                "and pass it as --model FILE"
            )
    return tuple(dict.fromkeys(names))


def evaluate_planners(
    known: SpeedTable,
    models: Sequence[Path],
    names: Sequence[str] | None,
    seeds: Sequence[int],
    n_jobs: int,
    n_gpus: int,
    *,
    as_json: bool,
) -> None:
    """Compare planners on lists of random jobs, and print the comparison."""
    from slurm_gpu.colocation.research.contest import contest

    if known.together > 2 and n_jobs > _MOST_JOBS:
        raise UsageError(
            f"--jobs {n_jobs}: with --together {known.together}, the limit is {_MOST_JOBS} jobs, since the "
            "bound considers all groups of jobs"
        )
    nets = read_nets(models)
    planners = checked_names(names, nets)
    lists = [table_jobs(known.measured, "random", seed, n_jobs) for seed in seeds]
    with _progress() as print_progress:
        standings = contest(
            known.world,
            lambda number: known.setting(seeds[number], nets),
            planners,
            lists,
            n_gpus=n_gpus,
            report_progress=print_progress,
        )
    if as_json:
        print_json({"gpu_model": known.measured.gpu_model, "planners": [asdict(one) for one in standings]})
        return
    print_table(
        _COLUMNS,
        map(_row, standings),
        right=_COLUMNS[1:],
        whole=_COLUMNS,
        spare=("ms_p50", "together", "slowest", "at_worst"),
    )


def _row(one: ContestResult) -> tuple[str, ...]:
    return (
        one.planner,
        f"{one.ratio:.3f}",
        f"{one.ratio_max:.3f}",
        f"{one.gap:.2%}",
        f"{one.not_slowed:.0%}",
        f"{one.worst_slowdown:.2f}",
        f"{one.together:.2f}",
        str(one.out_of_memory),
        f"{one.decision_ms_p50:.2f}",
        f"{one.decision_ms_p99:.2f}",
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    screen = console(sys.stderr)
    if not screen.is_terminal:
        yield lambda done, of: None
        return
    with click.progressbar(length=1, file=sys.stderr, label="runs", width=0) as bar:

        def print_progress(done: int, of: int) -> None:
            bar.length = of
            bar.update(done - bar.pos)

        yield print_progress
