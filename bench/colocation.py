"""Compare makespans of planners for shared GPUs with those of one job at a time, and with a lower bound.

Every planner runs the same jobs: five workloads of thirty jobs per seed, with known or predicted speeds.
There are two modes: `throughput`, and `considerate`, which slows down no job by more than a factor of 1.10.
Without --data, the jobs are the applications of the DqnGPU thesis on its Titan Xp, with a model of their
slowdown (bench/results/colocation.md). The results are compared with figures 10 to 17. `--data` is a table
of measured pairs in a format of docs/colocation.md, or a folder with throughputs_v100.json in Gavel's format.
Gaps are relative to the bound of the same jobs under the same cap. Makespans are relative to running one job
at a time; "max" is the largest ratio. "Not slowed" is the number of jobs, of 30, that are slowed down by at
most 2 %. "Worst" is the largest slowdown, "OOM" counts jobs out of memory, and * marks the default planner.
"Sparing" is the gap to the bound of schedules that also slow down at most 5 of 30 jobs by more than 2 %. This
bound does not apply to planners that slow down more jobs. With predicted speeds in mode considerate,
unmeasured pairs share a GPU in trials, and a guard separates pairs that exceed the cap
(`colocation_trial_belief.TrialBelief`). A separated job restarts from its beginning, and its slowdown is that
of its completed run. Decision times are measured for all calls, and for calls with 8 full slots (M=8). Times
in the tables are measured while other lists run; those in the last lines, while one process runs alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices, several processes
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import colocation_figures
from bench.arguments import directory, input_errors, number, part
from bench.colocation_beliefs import write_predictions
from bench.colocation_learned import learn, training_tasks
from bench.colocation_report import (
    ALL,
    BELOW,
    answer,
    show_mode,
    show_placements,
    show_prices,
    show_thesis,
)
from bench.colocation_runs import (
    LEARNED_OURS,
    LEARNED_THEIRS,
    MODES,
    SLOWED,
    Place,
    Placements,
    Run,
    Task,
    decisions_alone,
    decisions_by_applications,
    place_with_errors,
    runs,
)
from bench.colocation_workloads import TITAN_XP
from slurm_gpu.colocation.learned.models import read_any
from slurm_gpu.colocation.registry import DEFAULT
from slurm_gpu.colocation.research.contest import BASELINE
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.read import read_table
from slurm_gpu.errors import InputError

PLACEMENTS = 100_000


def main() -> None:
    args = arguments()
    begun = time.monotonic()
    n_seeds = min(2, args.seeds) if args.quick else args.seeds
    table = args.data / "throughputs_v100.json" if args.data and args.data.is_dir() else args.data
    with input_errors():
        measured = None if table is None else complete_table(table, args.gpu_model)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(table, args.gpu_model, args.jobs, args.gpus, slowed=args.slowed)
        if measured is not None:
            place = replace(place, predicted=write_predictions(measured, Path(folder), n_seeds))
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
    show_prices(done, is_thesis=table is None)
    show_placements(placed)
    if args.figures is not None:
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


def complete_table(path: Path, gpu_model: str | None) -> Measured:
    """Return a table with the speed of each pair; raise InputError if a speed is missing."""
    table = read_table(path, gpu_model)
    if lacking := table.lacking:
        one, other = (table.names[at] for at in lacking[0])
        raise InputError(
            str(path),
            0,
            0,
            f"{len(lacking)} of {len(table.names) ** 2} speeds are missing, the first that of {one!r} with "
            f"{other!r}; planners are compared on complete tables",
        )
    return table


def trainable(asked: tuple[str, ...], table: Path | None) -> tuple[str, ...]:
    """Return the planners that can be trained, and print the names of the others."""
    left_out = set() if table is None else set(LEARNED_THEIRS)
    if left_out & set(asked):
        print(f"not run: {', '.join(sorted(left_out & set(asked)))}: tables do not contain use over time")
    return tuple(name for name in asked if name not in left_out)


def train_all(
    place: Place, planners: tuple[str, ...], folder: Path, args: argparse.Namespace
) -> dict[str, float]:
    """Train missing nets; return the training time in s by planner (throughput, known speeds)."""
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
    """Run all lists of jobs, and placements with memory errors, in several processes."""
    tasks = [Task(place, workload, seed, planners) for workload in place.workloads for seed in seeds]
    n_placements = min(1000, args.placements) if args.quick else args.placements
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
    parser.add_argument(
        "--data", type=Path, help="a table of pairs in CSV or JSON, or a folder with throughputs_v100.json"
    )
    parser.add_argument("--gpu-model", help="the table to use, if the file has several")
    parser.add_argument("--seeds", type=number(1), default=20)
    parser.add_argument("--jobs", type=number(1), default=30)
    parser.add_argument("--gpus", type=number(1), default=1)
    parser.add_argument(
        "--slowed",
        type=part,
        default=SLOWED,
        help="fraction of jobs that annealing may slow down noticeably",
    )
    parser.add_argument("--planners", type=names, default=ALL, help="names, separated by commas")
    parser.add_argument(
        "--nets", type=directory, metavar="DIR", help="folder in which trained nets are kept and reused"
    )
    parser.add_argument("--processes", type=number(1), default=os.cpu_count() or 1)
    parser.add_argument(
        "--placements", type=number(0), default=PLACEMENTS, help="placements with errors of memory"
    )
    parser.add_argument("--figures", type=directory, metavar="DIR", help="folder for figures")
    parser.add_argument(
        "--quick", action="store_true", help="quick check: at most 2 seeds and 1000 placements"
    )
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
                f"and the bound is {run.bound_s} s: one of the two is wrong"
            )


if __name__ == "__main__":
    main()
