"""Draw figures 1 to 3 and the makespans of bench/colocation.py with matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.colocation_contention import level
from bench.colocation_runs import Run
from bench.colocation_workloads import PROFILES, THESIS_WORLD, TITAN_XP, application
from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile
from slurm_gpu.colocation.simulation.sharing import SharingStretch, look_ahead

PAIRS = ("vgg16", "googlenet", "LAMMPS", "GROMACS")
"""The applications of figure 3; its fifth, "CNN", is in no list of the thesis."""
SHADES = ("time", "memory", "cores", "I/O")


def draw(folder: Path, runs: Sequence[Run], default: str) -> Iterator[Path]:
    """Write SVG files and print their names."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise SystemExit("figures need matplotlib: pip install 'slurm-gpu[report]'") from error
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "slurm-gpu"  # equal figures give equal files
    yield _save(folder / "colocation-profiles.svg", _profiles())
    yield _save(folder / "colocation-pairs.svg", _pairs())
    yield _save(folder / "colocation-makespan.svg", _makespans(runs, default))


def _save(path: Path, figure: Any) -> Path:
    figure.savefig(path, metadata={"Date": None})
    return path


def _canvas(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _profiles() -> Any:
    """Draw figures 1 and 2: utilisation and memory over time."""
    names = ("vgg16", "resnet50", "LAMMPS", "QMCPACK")
    figure, axes = _canvas(2, len(names), 12, 4.5)
    for column, name in enumerate(names):
        profile: ApplicationProfile = PROFILES[application(name)]
        edges = [0.0, *profile.ends_s]
        for at, (use, scale, label) in enumerate(
            (("util", 100, "utilisation %"), ("memory_mib", 1, "memory MiB"))
        ):
            axis = axes[at][column]
            axis.stairs(
                [scale * getattr(phase, use) for phase in profile.phases], edges, fill=True, alpha=0.6
            )
            axis.set_ylim(0, 100 if at == 0 else TITAN_XP.memory_mib)
            axis.set_xlim(0, edges[-1])
            if column == 0:
                axis.set_ylabel(label)
        axes[0][column].set_title(name)
        axes[1][column].set_xlabel("s")
    return figure


def pair_levels(first: str, second: str) -> dict[str, int | None]:
    """Return a cell of figure 3: time, memory, cores and I/O in five levels; None if out of memory.

    The time level is the larger of both slowdowns, from none (1) to twice as long (5); the other levels are
    mean use while both run.
    """
    members = [
        Member(job, application(name), PROFILES[application(name)].seconds)
        for job, name in enumerate((first, second))
    ]
    course = look_ahead(THESIS_WORLD, members)
    if course is None:
        return dict.fromkeys(SHADES)
    profiles = [PROFILES[one.application] for one in members]
    ends = [max(s.to_s for s in course if any(r.job == job for r in s.ran)) for job in (0, 1)]
    slowdown = max(end / profile.seconds for end, profile in zip(ends, profiles, strict=True))
    together = [stretch for stretch in course if len(stretch.ran) == 2]

    def mean(use: str, whole: float) -> int:
        seconds = sum(stretch.to_s - stretch.from_s for stretch in together)
        return level(
            sum(_sum(stretch, use) * (stretch.to_s - stretch.from_s) for stretch in together) / seconds,
            0,
            whole,
        )

    return {
        "time": level(slowdown, 1, 2),
        "memory": mean("memory_mib", TITAN_XP.memory_mib),
        "cores": mean("sm", 1),
        "I/O": mean("pcie", 1),
    }


def _sum(stretch: SharingStretch, use: str) -> float:
    return sum(float(getattr(PROFILES[one.application].phases[one.phase], use)) for one in stretch.ran)


def _pairs() -> Any:
    """Draw figure 3."""
    figure, axes = _canvas(1, len(SHADES), 13, 3.6)
    levels = {pair: pair_levels(*pair) for pair in product(PAIRS, PAIRS)}
    for column, shade in enumerate(SHADES):
        axis = axes[0][column]
        field = np.array(
            [[np.nan if (one := levels[a, b][shade]) is None else one for b in PAIRS] for a in PAIRS], float
        )
        axis.imshow(field, cmap="Reds" if shade == "time" else "Greens", vmin=0, vmax=5)
        for (i, j), value in np.ndenumerate(field):
            axis.text(j, i, "memory\nshort" if np.isnan(value) else f"{value:.0f}", ha="center", va="center")
        axis.set_xticks(range(len(PAIRS)), PAIRS, rotation=45)
        axis.set_yticks(range(len(PAIRS)), PAIRS if column == 0 else [""] * len(PAIRS))
        axis.set_title(shade)
    return figure


def _makespans(runs: Sequence[Run], default: str) -> Any:
    """Draw figures 10 to 14: each planner's makespan relative to one job at a time, and the bound."""
    known = [run for run in runs if run.mode == "throughput" and run.information == "known"]
    workloads = list(dict.fromkeys(run.workload for run in known))
    planners = list(dict.fromkeys(run.planner for run in known))
    figure, axes = _canvas(1, 1, 12, 4)
    axis = axes[0][0]
    width = 0.8 / len(planners)
    for at, name in enumerate(planners):
        means = [
            np.mean([run.ratio for run in known if run.planner == name and run.workload == one])
            for one in workloads
        ]
        label = f"{name} (default)" if name == default else name
        axis.bar(np.arange(len(workloads)) + at * width, means, width, label=label)
    for at, one in enumerate(workloads):
        bound = np.mean([run.bound_s / run.alone_s for run in known if run.workload == one])
        axis.hlines(
            bound, at - width / 2, at + 0.8 - width / 2, colors="black", label="" if at else "LP bound"
        )
    axis.axhline(1, color="grey", linewidth=0.5)
    axis.set_xticks(np.arange(len(workloads)) + 0.4 - width / 2, workloads)
    axis.set_ylabel("makespan, one job at a time = 1")
    axis.legend(ncols=4, fontsize="small")
    return figure
