"""The statements of the DqnGPU thesis on its figures 10 to 17, next to the results of this benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from bench.colocation_runs import Run
from slurm_gpu.colocation.research.contest import BASELINE
from slurm_gpu.colocation.research.price import Comparison

OURS = {
    "SJF": BASELINE,
    "Tetris": "tetris",
    "DqnGPU": "dqngpu_thesis",
    "DeepRM Max": "deeprm_max",
    "DeepRM Mean": "deeprm_mean",
}
"""The thesis's names of planners, and our names for them."""

TRAINED = "of SJF, training included"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of the text."""

    planner: str
    what: str
    value: float
    usable: bool = True


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: the statements of its text, and why some of them are not usable as targets."""

    number: int
    workload: str
    statements: tuple[Statement, ...]
    remark: str = ""


FIGURES = (
    Figure(
        10,
        "gpu_heavy",
        (
            Statement("SJF", "makespan s", 4807),
            Statement("SJF", "utilisation %", 70.50),
            Statement("SJF", "memory %", 36.44),
            Statement("DqnGPU", "makespan s", 4891),
            Statement("DqnGPU", "utilisation %", 82.09),
            Statement("DqnGPU", "memory %", 59.13),
            Statement("DqnGPU", "of SJF", 4891 / 4807),
            Statement("DeepRM Mean", "makespan s", 5530),
            Statement("DeepRM Mean", "of SJF", 5530 / 4807),
        ),
        "DeepRM Mean runs out of memory there, and runs jobs again.",
    ),
    Figure(
        11,
        "gpu_light",
        (
            Statement("SJF", "makespan s", 2295),
            Statement("DqnGPU", "makespan s", 1214),
            Statement("DqnGPU", "utilisation %", 89.31),
            Statement("DqnGPU", "memory %", 88.42),
            Statement("DqnGPU", "memory peak MB", 11755),
            Statement("DqnGPU", "of SJF", 1214 / 2295),
        ),
        "Up to three together.",
    ),
    Figure(
        12,
        "mem_heavy",
        (
            Statement("DqnGPU", "makespan s", 1214, False),
            Statement("DqnGPU", "utilisation %", 89.31, False),
            Statement("DqnGPU", "memory %", 88.42, False),
        ),
        "All three repeat figure 11, a copy error. The text has SJF shortest, DqnGPU second.",
    ),
    Figure(13, "mem_light", (Statement("DqnGPU", "makespan s", 3928),), "The text has DqnGPU shortest."),
    Figure(
        14,
        "random",
        (
            Statement("DqnGPU", "makespan s", 2481),
            Statement("DqnGPU", "utilisation %", 62.16),
            Statement("DqnGPU", "memory %", 20.45),
            Statement("DqnGPU", "of SJF", 1.027),
            Statement("SJF", "makespan s", 2481 / 1.081, False),
        ),
        "2481 s by its 1.081 of SJF is figure 11's SJF. Tetris and DeepRM Max use more of the GPU.",
    ),
    Figure(
        15,
        "random",
        (
            Statement("DqnGPU", "not slowed of 30", 20),
            Statement("Tetris", "not slowed of 30", 14),
            Statement("DeepRM Max", "not slowed of 30", 14),
            Statement("DeepRM Mean", "10 % and more of 30", 12),
        ),
    ),
    Figure(
        16,
        "random",
        (
            Statement("Tetris", TRAINED, 1.294),
            Statement("DqnGPU", TRAINED, 1.081),
            Statement("DqnGPU", "training s", 123),
            Statement("DeepRM Max", TRAINED, 1.303),
            Statement("DeepRM Mean", TRAINED, 1.346),
        ),
    ),
)
FIGURE_17 = {"cost 1": 29.86, "cost 2": 49.98}
"""Percent of the price saved. Both values are unusable: they assume a makespan 12.6 % shorter than SJF's, but
in figure 16 the makespan is longer."""

BUCKETS = ("≤2 %", "<10 %", "10–20 %", "≥20 %")


def buckets(slowdown: Sequence[float]) -> tuple[int, ...]:
    """Return the number of jobs by slowdown, with the classes of figure 15."""
    return (
        sum(one <= 1.02 for one in slowdown),
        sum(1.02 < one < 1.1 for one in slowdown),
        sum(1.1 <= one < 1.2 for one in slowdown),
        sum(one >= 1.2 for one in slowdown),
    )


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


MEASURES: Mapping[str, Callable[[Run, float], float | None]] = {
    "makespan s": lambda run, _: run.makespan_s,
    "of SJF": lambda run, _: run.ratio,
    TRAINED: lambda run, train_s: run.ratio + train_s / run.alone_s,
    "utilisation %": lambda run, _: _percent(run.utilisation),
    "memory %": lambda run, _: _percent(run.memory),
    "memory peak MB": lambda run, _: run.memory_peak_mib,
    "not slowed of 30": lambda run, _: 30 * buckets(run.slowdown)[0] / len(run.slowdown),
    "10 % and more of 30": lambda run, _: 30 * sum(buckets(run.slowdown)[2:]) / len(run.slowdown),
}
"""The result of one run for each statement, with the training time of its planner in seconds."""


Estimate = tuple[float, float]
"""A mean, and half of its 95 % interval."""


@dataclass(frozen=True, slots=True)
class PlannerComparison:
    """One line: the thesis's value, and the results of this benchmark over all seeds."""

    figure: int
    workload: str
    planner: str
    what: str
    thesis: float
    usable: bool
    theirs_here: Estimate | None
    """The result of our planner of that name in mode throughput; None if it was not run."""
    default_here: tuple[Estimate | None, ...]
    """The default planner's result in each mode; for SJF, none."""


def compare(
    by_mode: Mapping[str, Sequence[Run]], default: str, train_s: Mapping[str, float]
) -> Iterator[tuple[Figure, list[PlannerComparison]]]:
    """Compare figures 10 to 16 with runs by mode, `throughput` first; `train_s` is by planner."""

    def here(mode: str, name: str, workload: str, what: str) -> Estimate | None:
        trained_s = train_s.get(name)
        if what == "training s":
            return None if trained_s is None else (trained_s, math.nan)
        values = [
            MEASURES[what](run, 0.0 if trained_s is None else trained_s)
            for run in by_mode[mode]
            if run.planner == name and run.workload == workload
        ]
        return mean_and_interval([one for one in values if one is not None])

    modes = list(by_mode)
    for figure in FIGURES:
        yield (
            figure,
            [
                PlannerComparison(
                    figure.number,
                    figure.workload,
                    statement.planner,
                    statement.what,
                    statement.value,
                    statement.usable,
                    here(modes[0], OURS[statement.planner], figure.workload, statement.what),
                    tuple(here(mode, default, figure.workload, statement.what) for mode in modes)
                    if statement.planner != "SJF"
                    else (None,) * len(modes),
                )
                for statement in figure.statements
            ],
        )


def savings(
    runs: Sequence[Run], default: str, prices: Sequence[Comparison]
) -> list[tuple[str, float, Estimate | None]]:
    """Compare figure 17: each saving by the thesis and by this benchmark, in percent."""
    return [
        (
            one.name,
            FIGURE_17.get(one.name, float("nan")),
            mean_and_interval(
                [
                    100 * one.saved(run.alone_s, run.makespan_s)
                    for run in runs
                    if run.planner == default and run.workload == "random"
                ]
            ),
        )
        for one in prices
    ]


def mean_and_interval(values: Sequence[float]) -> Estimate | None:
    """Return the mean and its interval; None without values, and an interval of nan for one value."""
    if not values:
        return None
    many = np.asarray(values, dtype=float)
    if len(many) < 2:
        return float(many.mean()), math.nan
    quantile = stdtrit(len(many) - 1, 0.975)  # Student's t distribution
    return float(many.mean()), float(quantile * many.std(ddof=1) / len(many) ** 0.5)
