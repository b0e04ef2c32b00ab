"""Planners of shared GPUs: makespans against one job at a time and against the linear program's bound.

Every planner runs the same jobs: five workloads of thirty jobs per seed, with known or predicted speeds.
There are two modes: `throughput`, and `considerate`, which slows down no job by more than a factor of 1.10.
Without --data, the jobs are the applications of the DqnGPU thesis on its Titan Xp, with a model of their
slowdown (bench/results/colocation.md), next to the text's statements on figures 10 to 17. `--data` is a table
of measured pairs, or Gavel's folder (throughputs_v100.json). Gaps are relative to the bound of the same jobs
under the same cap. "Sparing" is relative to the bound of schedules that also slow down at most 5 of 30 jobs
by more than 2 %, which is no bound for planners that slow down more. With predicted speeds in mode
considerate, unmeasured pairs share a GPU in trials, and a guard separates those that exceed the cap
(`colocation_trial_belief.TrialBelief`). A separated job restarts from its beginning, and its slowdown is that
of its completed run. Decision times are those of all calls, and of calls with 8 full slots (M=8). In the
tables, other lists run at the same time; in the last lines, one process runs alone.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices, several processes
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench import colocation_figures, colocation_thesis
from bench.arguments import number
from bench.colocation_beliefs import write_predictions
from bench.colocation_learned import learn, training_tasks
from bench.colocation_runs import (
    LEARNED_OURS,
    LEARNED_THEIRS,
    MEMORY_ERROR,
    MODES,
    SLOWED,
    Place,
    Placements,
    Run,
    Task,
    decisions_alone,
    decisions_by_applications,
    division,
    place_with_errors,
    runs,
)
from bench.colocation_thesis import BUCKETS, buckets, mean_and_interval
from bench.colocation_workloads import TITAN_XP
from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.colocation.learned.models import read_any
from slurm_gpu.colocation.registry import DEFAULT, PLANNERS
from slurm_gpu.colocation.research.contest import BASELINE
from slurm_gpu.colocation.research.price import comparisons
from slurm_gpu.colocation.tables.read import read_table
from slurm_gpu.config.yaml_source import read_yaml

PRICES = Path(__file__).resolve().parents[1] / "etc/prices.yaml"
PLACEMENTS = 100_000
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
BELOW = 1e-6
"""Relative tolerance. If a makespan is below its bound by more, one of them is wrong."""


def main() -> None:
    args = arguments()
    begun = time.monotonic()
    n_seeds = 2 if args.quick else args.seeds
    table = args.data / "throughputs_v100.json" if args.data and args.data.is_dir() else args.data
    with tempfile.TemporaryDirectory() as folder:
        place = Place(table, args.gpu_model, args.jobs, args.gpus, slowed=args.slowed)
        if table is not None:
            place = replace(
                place, predicted=write_predictions(read_table(table, args.gpu_model), Path(folder), n_seeds)
            )
        planners = trainable(args.planners, table)
        train_s = train_all(place, planners, args.nets or Path(folder), args)
        place = replace(place, nets=args.nets or Path(folder))
        done, placed = run_all(place, range(n_seeds), planners, args)
        thinks = LEARNED_OURS if LEARNED_OURS in planners else BASELINE
        decisions = decisions_alone(place, range(n_seeds), thinks)
        generated = decisions_by_applications(place, range(n_seeds)) if thinks == LEARNED_OURS else {}
    done.sort(key=lambda run: (run.workload, run.seed))
    check_bounds(done)
    title = (
        TITAN_XP.name if table is None else f"{table.name}{' ' + args.gpu_model if args.gpu_model else ''}"
    )
    print(
        f"{title}: {args.jobs} jobs, {place.most_together} together at most, GPUs: {args.gpus}, "
        f"seeds: {n_seeds}; means with 95 % intervals\n"
    )
    for mode in MODES:
        for information in place.information:
            show_mode(done, place, mode, information, planners)
    if table is None:
        show_thesis(done, train_s)
    show_prices(done)
    show_placements(placed)
    if args.figures is not None:
        args.figures.mkdir(parents=True, exist_ok=True)
        for path in colocation_figures.draw(args.figures, done, DEFAULT):
            print(f"drawn: {path}")
    p99 = ["–" if one is None else f"{one:.2f}" for one in decisions.values()]
    print(f"\ndecisions of {thinks} by one process, p99 in ms, with M=8 and all: {', '.join(p99)}")
    for n, ms in generated.items():
        ratio = ms / generated[min(generated)]
        print(f"generated tables, {n} applications, M=8: p99 {ms:.2f} ms, by that of the fewest {ratio:.2f}")
    print(f"\n{time.monotonic() - begun:.0f} s")
    if args.json:
        timed = decisions | {"decision_ms_p99_generated": generated}
        print(json.dumps(answer(done, placed, n_seeds, title, place, planners, train_s) | timed))


def trainable(asked: tuple[str, ...], table: Path | None) -> tuple[str, ...]:
    """Return the planners without those that cannot be trained, and print their names."""
    left_out = set() if table is None else set(LEARNED_THEIRS)
    if left_out & set(asked):
        print(f"not run: {', '.join(sorted(left_out & set(asked)))}: tables do not contain use over time")
    return tuple(name for name in asked if name not in left_out)


def train_all(
    place: Place, planners: tuple[str, ...], folder: Path, args: argparse.Namespace
) -> dict[str, float]:
    """Train missing nets, and return the seconds by planner, of mode throughput with known speeds."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [one for one in training_tasks(place, planners, folder, args.quick) if not one.path.exists()]
    if args.processes == 1 or not wanted:
        took = [learn(one) for one in wanted]
    else:
        with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
            took = pool.map(learn, wanted, chunksize=1)
    for one, seconds in zip(wanted, took, strict=True):
        print(f"trained: {one.planner} for {one.mode}, speeds {one.information}: {seconds:.0f} s")
    return {
        one.planner: float(read_any(one.path).provenance["seconds"])
        for one in training_tasks(place, planners, folder, args.quick)
        if one.mode == "throughput" and one.information == "known"
    }


def run_all(
    place: Place, seeds: Sequence[int], planners: tuple[str, ...], args: argparse.Namespace
) -> tuple[list[Run], list[Placements]]:
    """Run all lists of jobs, and placements with errors, in several processes."""
    tasks = [Task(place, workload, seed, planners) for workload in place.workloads for seed in seeds]
    n_placements = 1000 if args.quick else args.placements
    shares = [n_placements // args.processes + 1] * args.processes if n_placements else []
    headrooms, place_seeds = [None] * len(shares), range(len(shares))
    if args.processes == 1:
        done = [run for some in watched(map(runs, tasks), len(tasks)) for run in some]
        return done, list(map(place_with_errors, headrooms, shares, place_seeds))
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        done = [run for some in watched(pool.imap_unordered(runs, tasks), len(tasks)) for run in some]
        return done, pool.starmap(place_with_errors, zip(headrooms, shares, place_seeds, strict=True))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a table of pairs, or the folder of Gavel's")
    parser.add_argument("--gpu-model", help="the table to use, if the file has several")
    parser.add_argument("--seeds", type=number(1), default=20)
    parser.add_argument("--jobs", type=number(1), default=30)
    parser.add_argument("--gpus", type=number(1), default=1)
    parser.add_argument(
        "--slowed",
        type=float,
        default=SLOWED,
        help="fraction of jobs that annealing may slow down noticeably",
    )
    parser.add_argument("--planners", type=names, default=ALL, help="joined by commas; all")
    parser.add_argument(
        "--nets", type=Path, metavar="DIR", help="folder in which trained nets are kept and reused"
    )
    parser.add_argument("--processes", type=number(1), default=os.cpu_count() or 1)
    parser.add_argument(
        "--placements", type=number(0), default=PLACEMENTS, help="placements with errors of memory"
    )
    parser.add_argument("--figures", type=Path, metavar="DIR", help="folder for figures")
    parser.add_argument("--quick", action="store_true", help="quick check: 2 seeds and 1000 placements")
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    return parser.parse_args()


def names(text: str) -> tuple[str, ...]:
    """Return the chosen planners; the baseline is always included."""
    asked = text.split(",")
    for name in asked:
        if name not in ALL:
            raise argparse.ArgumentTypeError(f"unknown planner {name!r}; planners: {', '.join(ALL)}")
    return tuple(name for name in ALL if name in {*asked, BASELINE})


def watched(results: Any, n: int) -> Any:
    """Show progress on a terminal."""
    for at, one in enumerate(results, 1):
        if sys.stderr.isatty():
            print(f"\r{at} of {n} lists of jobs", end="\n" if at == n else "", file=sys.stderr, flush=True)
        yield one


def check_bounds(done: Sequence[Run]) -> None:
    """Check that no planner is below a bound that holds for all."""
    for run in done:
        if run.mode == "throughput" and run.gap < -BELOW:
            raise SystemExit(
                f"{run.planner} took {run.makespan_s} s for {run.workload} {run.seed}, "
                f"and the bound is {run.bound_s} s: one of both is wrong"
            )


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


def show_prices(done: Sequence[Run]) -> None:
    ours = [run for run in done if run.mode == "throughput" and run.information == "known"]
    print("Figure 17, percent of the price saved (random); both targets are unusable: their makespan is")
    print("12.6 % shorter than SJF's, but 2.7 to 8.1 % longer elsewhere in the same text")
    for name, thesis, here in colocation_thesis.savings(ours, DEFAULT, comparisons(read_yaml(PRICES))):
        print(row(name, [f"[{thesis:.2f}]", value_text(here)], 46, 20))
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
    """Return the values of --json; null was not run."""
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


if __name__ == "__main__":
    main()
