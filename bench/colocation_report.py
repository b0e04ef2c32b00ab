"""Tables and JSON of bench/colocation.py: makespans, gaps, slowdowns and prices of each planner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import colocation_thesis
from bench.colocation_runs import LEARNED_OURS, MEMORY_ERROR, MODES, Place, Placements, Run, division
from bench.colocation_thesis import BUCKETS, buckets, mean_and_interval
from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.colocation.registry import DEFAULT, PLANNERS
from slurm_gpu.colocation.research.contest import BASELINE
from slurm_gpu.colocation.research.price import comparisons
from slurm_gpu.config.yaml_source import read_yaml

PRICES = Path(__file__).resolve().parents[1] / "etc/prices.yaml"
ALL = (*PLANNERS, *LEARNED_PLANNERS)
CONSIDERATE = (
    "ratio_to_sjf_max",
    "gap_to_lp",
    "gap_to_lp_sparing",
    "not_slowed_of_30",
    "worst_slowdown",
    "within_cap",
    "separated_of_30",
    "oom",
)
# Relative tolerance: a makespan or a bound is wrong if the makespan is below the bound by more than this.
BELOW = 1e-6


def select(done: Sequence[Run], mode: str, information: str, name: str) -> list[Run]:
    """Return the runs of one planner; those of the baseline do not depend on the information."""
    return [
        run
        for run in done
        if run.mode == mode and run.planner == name and (name == BASELINE or run.information == information)
    ]


def show_mode(
    done: Sequence[Run], place: Place, mode: str, information: str, planners: Sequence[str]
) -> None:
    cap = MODES[mode]
    what = "" if cap == float("inf") else f", no job slowed down by more than {cap}"
    print(f"{mode}{what}; speeds {information}: makespan by that of one job at a time")
    head = [*place.workloads, "max", "gap to LP", "jobs/GPU", "not slowed", "worst", "OOM", "p99 ms"]
    head += ["p99 ms, M=8"]
    if math.isfinite(cap):
        head += ["gap, sparing", "within cap", "separated"]
    print(row("", head))
    for name in planners:
        some = select(done, mode, information, name)
        cells = [
            interval([run.ratio for run in some if run.workload == workload]) for workload in place.workloads
        ]
        s = summary(some)
        print(
            row(
                name + (" *" if name == DEFAULT else ""),
                [
                    *cells,
                    f"{s['ratio_to_sjf_max']:.3f}",
                    f"{100 * s['gap_to_lp']:.1f} %",
                    f"{s['jobs_per_gpu']:.2f}",
                    f"{s['not_slowed_of_30']:.1f}",
                    f"{s['worst_slowdown']:.2f}",
                    str(s["oom"]),
                    f"{s['decision_ms_p99']:.2f}",
                    "–" if s["decision_ms_p99_full"] is None else f"{s['decision_ms_p99_full']:.2f}",
                    *(
                        [
                            f"{100 * s['gap_to_lp_sparing']:.1f} %",
                            f"{100 * s['within_cap']:.2f} %",
                            f"{s['separated_of_30']:.1f}",
                        ]
                        if math.isfinite(cap)
                        else []
                    ),
                ],
            )
        )
    bound = select(done, mode, "known", BASELINE)
    bounds = {"LP bound": [run.bound_s / run.alone_s for run in bound]}
    if math.isfinite(cap):
        bounds["sparing 25"] = [run.spared_bound_s / run.alone_s for run in bound]
    for name, values in bounds.items():
        cells = [
            interval([value for run, value in zip(bound, values, strict=True) if run.workload == workload])
            for workload in place.workloads
        ]
        print(row(name, cells))
    print()


def summary(some: Sequence[Run]) -> dict[str, Any]:
    """Summarize runs over all workloads and seeds."""
    thought = np.concatenate([run.decisions_ms for run in some])
    full = np.concatenate([run.full_ms for run in some])
    sorted_in = np.array([np.array(buckets(run.slowdown)) * 30 / len(run.slowdown) for run in some])
    return {
        "ratio_to_sjf": float(np.mean([run.ratio for run in some])),
        "ratio_to_sjf_max": round(max(run.ratio for run in some), 9),  # the order of sums varies
        "gap_to_lp": float(np.mean([run.gap for run in some])),
        "gap_to_lp_max": max(run.gap for run in some),
        "gap_to_lp_sparing": float(np.mean([run.spared_gap for run in some])),
        "gap_to_lp_by_workload": {
            workload: float(np.mean([run.gap for run in some if run.workload == workload]))
            for workload in sorted({run.workload for run in some})
        },
        "not_slowed_of_30": float(sorted_in[:, 0].mean()),
        "slowdown_of_30": dict(zip(BUCKETS, sorted_in.mean(axis=0).tolist(), strict=True)),
        "worst_slowdown": max(max(run.slowdown) for run in some),
        "within_cap": float(
            np.mean([np.array(run.slowdown) <= MODES["considerate"] + BELOW for run in some])
        ),
        "separated_of_30": float(np.mean([30 * run.separated / len(run.slowdown) for run in some])),
        "jobs_per_gpu": float(np.mean([run.together for run in some])),
        "oom": sum(run.out_of_memory for run in some),
        "decision_ms_p99": float(np.percentile(thought, 99)),
        "decision_ms_p99_full": float(np.percentile(full, 99)) if len(full) else None,
    }


def show_thesis(done: Sequence[Run], train_s: Mapping[str, float]) -> None:
    by_mode = {
        mode: [run for run in done if run.mode == mode and run.information == "known"] for mode in MODES
    }
    print(f"Figures 10 to 16 of the thesis, speeds known ([…]: not usable as a target; *: {DEFAULT})")
    print(row("", ["thesis", "same planner", *(f"{mode} *" for mode in MODES)], 46, 20))
    for figure, lines in colocation_thesis.compare(by_mode, DEFAULT, train_s):
        print(f"figure {figure.number}, {figure.workload}. {figure.remark}")
        for one in lines:
            thesis = f"{one.thesis:g}" if one.thesis >= 100 else f"{one.thesis:.4g}"
            cells = [thesis if one.usable else f"[{thesis}]", value_text(one.theirs_here)]
            print(row(f"  {one.planner}, {one.what}", [*cells, *map(value_text, one.default_here)], 46, 20))
    for mode, some in by_mode.items():
        print(f"\nFigure 15 in mode {mode}, jobs of 30 by slowdown (random)")
        print(row("", BUCKETS))
        for name in sorted({run.planner for run in some}, key=ALL.index):
            counts = [
                np.array(buckets(run.slowdown)) * 30 / len(run.slowdown)
                for run in some
                if run.planner == name and run.workload == "random"
            ]
            print(row(name, [f"{one:.1f}" for one in np.mean(counts, axis=0)]))
    print()


def show_prices(done: Sequence[Run], *, is_thesis: bool) -> None:
    """Print the part of the price that sharing saves, with the thesis's figures if its jobs were run."""
    ours = [run for run in done if run.mode == "throughput" and run.information == "known"]
    if is_thesis:
        print("Figure 17, percent of the price saved (random); both targets are unusable: their makespan is")
        print("12.6 % shorter than SJF's, but 2.7 to 8.1 % longer elsewhere in the same text")
    else:
        print(f"percent of the price saved by {DEFAULT} (random), by the comparisons of etc/prices.yaml")
    for name, thesis, here in colocation_thesis.savings(ours, DEFAULT, comparisons(read_yaml(PRICES))):
        print(row(name, [f"[{thesis:.2f}]"] * is_thesis + [value_text(here)], 46, 20))
    print()


def show_placements(placed: Sequence[Placements]) -> None:
    if placed:
        n, kills = sum(one.n for one in placed), sum(one.out_of_memory for one in placed)
        together = np.mean([one.together for one in placed])
        print(f"{n} placements of the thesis's applications in random groups, memory up to")
        off = f"{100 * MEMORY_ERROR:.0f} %"
        print(f"{off} off, headroom learned: {kills} out of memory, {together:.2f} jobs/GPU")


def answer(
    done: Sequence[Run],
    placed: Sequence[Placements],
    n_seeds: int,
    title: str,
    place: Place,
    planners: Sequence[str],
    train_s: Mapping[str, float],
) -> dict[str, Any]:
    """Return the values of --json; null means that a planner was not run."""
    all_of = {
        mode: {
            information: {name: summary(select(done, mode, information, name)) for name in planners}
            for information in place.information
        }
        for mode in MODES
    }

    def of_default(mode: str, key: str, information: str = "known") -> Any:
        ran = information in place.information and DEFAULT in planners
        return all_of[mode][information][DEFAULT][key] if ran else None

    return {
        "data": title,
        "seeds": n_seeds,
        "default_planner": DEFAULT,
        "throughput": {
            "ratio_to_sjf_max": of_default("throughput", "ratio_to_sjf_max"),
            "gap_to_lp_known": of_default("throughput", "gap_to_lp"),
            "gap_to_lp_predicted": of_default("throughput", "gap_to_lp", "predicted"),
            "gap_to_lp_predicted_by_division": by_division(done, place),
            "oom": of_default("throughput", "oom"),
        },
        "considerate": {key: of_default("considerate", key) for key in CONSIDERATE},
        "considerate_predicted": {key: of_default("considerate", key, "predicted") for key in CONSIDERATE},
        "train_s": train_s.get(LEARNED_OURS),
        "placements": {
            "n": sum(one.n for one in placed),
            "oom": sum(one.out_of_memory for one in placed),
        }
        if placed
        else None,
        "planners": all_of,
    }


def by_division(done: Sequence[Run], place: Place) -> list[float] | None:
    """Return the default planner's gap with predicted speeds, by division into folds."""
    some = select(done, "throughput", "predicted", DEFAULT)
    return (
        [
            float(np.mean([run.gap for run in some if division(place, run.seed) == one]))
            for one in range(len(place.predicted))
        ]
        if some
        else None
    )


def row(name: str, cells: Sequence[str], width: int = 15, cell: int = 14) -> str:
    """Return one line of the printed table."""
    return f"{name:<{width}}" + "".join(f"{one:>{cell}}" for one in cells)


def interval(values: Sequence[float]) -> str:
    here = mean_and_interval(values)
    return "–" if here is None else f"{here[0]:.3f} ±{here[1]:.3f}"


def value_text(here: tuple[float, float] | None) -> str:
    if here is None:
        return "–"
    return f"{here[0]:.4g}" if math.isnan(here[1]) else f"{here[0]:.4g} ±{here[1]:.2g}"
