"""Measure precision and recall of `slurm-gpu diagnose` on healthy training runs and injected faults.

    .venv/bin/python bench/diagnose.py [--cases 250] [--seed 23] [--data FOLDER] [--jobs 2] [--json]

The streams are synthetic: bench/diagnose_injector*.py simulates synchronous training step by step and records
it like slurm-gpud. The injector shares no code with slurm_gpu.diagnose. --data names the folder with
straggler/trace-ST.parquet and trace-SE.parquet, from github.com/ByteDance-Seed/StragglerAnalysis. From these
traces, bench/diagnose_resample.py builds training runs of real steps, and their timings are judged as with
`--steps`. **Seeds 1 to 99 are for development. Seeds from 1000 are for evaluation only; do not inspect them
while working on the rules.**

A case is right if its cause is right; `inconclusive` is neither right nor wrong, but lowers recall.
Suspicions count like other verdicts. A healthy training run is judged at four times; an alarm at any of
them is a false alarm. The benchmark takes 3 to 5 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.arguments import number
from bench.diagnose_baselines import max_deviation, minder_like, minder_strict
from bench.diagnose_cost import costs
from bench.diagnose_injector import CAUSES, Case, faulty, healthy, undecidable
from bench.diagnose_score import (
    FAULT_CAUSES,
    Outcome,
    Reliability,
    blamed_right,
    by_class,
    calibration,
    confusion,
    detection,
    false_alarms,
    healthy_with_loss,
    named_right,
)
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.verdict import Cause

BASELINES = {"max deviation": max_deviation, "Minder-like": minder_like, "Minder-like, strict": minder_strict}
POLLS_S = (5, 10, 15, 20, 25, 30, 35, 40, 50, 60, 75, 90, 120, 150, 180, 210, 240, 300)
"""Seconds from the start of a fault to each diagnosis."""
HEALTHY_SAMPLES = 3
LARGE = 0.15
# A faulty training run that loses at least this share of each step must not be called healthy.
_GREAT_LOSS = 0.25
Spec = tuple[str, int, str, int]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", type=number(10), default=250, help="faulty cases, and healthy ones (default: %(default)s)"
    )
    parser.add_argument("--seed", type=number(0), default=23, help="(default: %(default)s, for development)")
    parser.add_argument(
        "--data", type=Path, help="folder with straggler/trace-ST.parquet and trace-SE.parquet"
    )
    parser.add_argument("--jobs", type=number(1), default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--wrong", action="store_true", help="list every wrong case")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    for name in ("straggler/trace-ST.parquet", "straggler/trace-SE.parquet") if arguments.data else ():
        if not (arguments.data / name).is_file():
            parser.error(f"argument --data: there is no file {arguments.data / name}")
    begin = time.monotonic()
    found = specs(arguments.seed, arguments.cases)
    if arguments.data is not None:
        found += [("resampled", arguments.seed, str(arguments.data), n) for n in range(arguments.cases // 4)]
    outcomes = examine(found, arguments.jobs)
    values = report(outcomes, wrong=arguments.wrong)
    print()
    for name, cost in costs(arguments.seed).items():
        values[f"128 GPUs, {name}"] = {"seconds": round(cost.seconds, 2), "memory_mb": round(cost.memory_mb)}
        print(f"128 GPUs, {name}: {cost.seconds:.2f} s, {cost.memory_mb:.0f} MB of memory")
    print(
        f"{len(outcomes)} cases in {time.monotonic() - begin:.0f} s, seed {arguments.seed}; synthetic streams"
    )
    if arguments.json:
        print(json.dumps(values))


def specs(seed: int, cases: int) -> list[Spec]:
    """Draw faults of all classes equally, as many healthy training runs, and a few undetectable faults."""
    found: list[Spec] = [
        ("faulty", seed, cause.value, n) for n in range(-(-cases // len(CAUSES))) for cause in CAUSES
    ]
    found += [("healthy", seed, "", n) for n in range(cases)]
    found += [("undecidable", seed, "", n) for n in range(max(2, cases // 20))]
    return found


def examine(found: Sequence[Spec], jobs: int) -> list[Outcome]:
    """Draw and judge each case, in several processes."""
    if jobs == 1:
        return [judge(spec) for spec in found]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return list(pool.imap(judge, found, chunksize=4))


def drawn(spec: Spec) -> Case:
    """Return the case of a specification."""
    what, seed, cause, n = spec
    if what == "resampled":
        # pyarrow is required only for reading the traces.
        from bench.diagnose_resample import resampled

        return resampled(seed, n, Path(cause))
    if what == "faulty":
        return faulty(seed, Cause(cause), n)
    return healthy(seed, n) if what == "healthy" else undecidable(seed, n)


def judge(spec: Spec) -> Outcome:
    """Return the last verdict of a case, the earlier ones, and the verdicts of the baselines."""
    case = drawn(spec)
    timed = case.steps is not None
    series = case.recording.series()
    verdict = diagnose(series, groups=case.groups, steps=case.steps, running=case.running)
    fault = case.fault
    well = fault is None or case.undecidable
    others = {}
    for name, baseline in BASELINES.items():
        row = baseline(series)
        others[name] = (row is not None, row is not None and blamed_right(case, row))
    alarms = [] if fault is not None or timed else _alarms(case, spec)
    if fault is None and verdict.cause in FAULT_CAUSES:
        alarms.append((verdict.cause.value, verdict.suspect))
    detected = None
    onset = fault is not None and fault.since_s is not None and not case.timeline
    if onset and fault is not None and fault.since_s is not None:
        detected = _detected(case, fault.since_s)
    return Outcome(
        name=case.name,
        kind=case.kind,
        timed=timed,
        truth=case.cause,
        undecidable=case.undecidable,
        size=0.0 if fault is None else fault.size,
        n_gpus=case.job.n_workers,
        model=case.job.model.name,
        timeline=case.timeline,
        hosts=bool(case.recording.hosts),
        gpu_hours=case.gpu_hours,
        said=verdict.cause,
        said_kind=verdict.kind,
        suspect=verdict.suspect,
        confidence=verdict.confidence,
        culprit=None if well or verdict.cause is not case.cause else named_right(case, verdict),
        alarms=tuple(alarms),
        detected_s=detected,
        onset=onset,
        others=others,
    )


def _alarms(case: Case, spec: Spec) -> list[tuple[str, bool]]:
    """Return the verdicts on a healthy training run at times before its end."""
    rng = np.random.default_rng([spec[1], spec[3], 1])
    found = []
    for at in rng.uniform(0.15, 1.0, HEALTHY_SAMPLES) * case.length_s:
        verdict = diagnose(case.recording.series(float(at)), groups=case.groups)
        if verdict.cause in FAULT_CAUSES:
            found.append((verdict.cause.value, verdict.suspect))
    return found


def _detected(case: Case, since_s: float) -> float | None:
    for after_s in POLLS_S:
        if since_s + after_s > case.length_s:
            break
        verdict = diagnose(case.recording.series(since_s + after_s), groups=case.groups)
        if verdict.cause is case.cause:
            return float(after_s)
    return None


def report(outcomes: Sequence[Outcome], *, wrong: bool) -> dict[str, Any]:
    """Print the tables and return the values of --json."""
    judged = [item for item in outcomes if not item.undecidable]
    _print_confusion(outcomes)
    classes = by_class(outcomes)
    large = by_class([item for item in judged if item.size >= LARGE or item.truth is Cause.HEALTHY])
    print(f"\n{'':22} {'cases':>6} {'precision':>10} {'recall':>7} {'>= 15 %':>8} {'culprit':>8}")
    for cause, row in classes.items():
        print(
            f"{cause.value:22} {row.cases:6} {_share(row.precision):>10} {row.recall:7.3f} "
            f"{_share(large[cause].recall if cause in large else None):>8} {_share(row.culprit):>8}"
        )
    _print_parts(judged)
    _print_baselines(judged)
    values = _figures(outcomes, judged, classes)
    detection_lines = values["detection"]
    print("\nseconds from the fault to the first right verdict, by the data; slurm-gpud ships each 10 s")
    for name, row in detection_lines.items():
        print(
            f"  {name:34} {row['found']:3} of {row['cases']:3}, median {_plain(row['median_s'])}, "
            f"p90 {_plain(row['p90_s'])}, within {row['goal_s']} s: {row['within']:.0%}"
        )
    if wrong:
        _print_wrong(outcomes)
    return values


def _figures(
    outcomes: Sequence[Outcome], judged: Sequence[Outcome], classes: dict[Cause, Any]
) -> dict[str, Any]:
    windows = [item for item in judged if not item.timeline]
    alarmed, hours = false_alarms(windows)
    sure, _ = false_alarms(windows, sure=True)
    long_alarmed, long_hours = false_alarms([item for item in judged if item.timeline])
    print(
        f"\nfalse alarms: {alarmed} in {hours:,.0f} GPU-hours of healthy windows "
        f"({sure} of them more than a suspicion), {long_alarmed} in {long_hours:,.0f} of timelines of hours"
    )
    called_healthy = healthy_with_loss(judged, _GREAT_LOSS)
    print(f"faulty training runs with a loss of {_GREAT_LOSS:.0%} or more called healthy: {called_healthy}")
    error, rows = calibration(judged)
    _print_calibration(judged, error, rows)
    right = [item for item in judged if item.culprit is not None]
    precisions = [row.precision for row in classes.values() if row.precision is not None]
    return {
        "precision": round(min(precisions, default=0.0), 4),
        "recall": round(min((row.recall for row in classes.values()), default=0.0), 4),
        "culprit": round(sum(bool(item.culprit) for item in right) / max(len(right), 1), 4),
        "false_alarms_per_1000_gpu_job_hours": round(1000 * alarmed / hours, 3) if hours else None,
        "false_alarms_per_1000_gpu_job_hours_sure": round(1000 * sure / hours, 3) if hours else None,
        "false_alarms_per_1000_gpu_job_hours_courses": (
            round(1000 * long_alarmed / long_hours, 4) if long_hours else None
        ),
        "healthy_with_loss_25": called_healthy,
        "calibration_error": round(error, 4),
        "calibration": [[row.sort, round(row.stated, 3), round(row.right, 3), row.n] for row in rows],
        "cases": len(outcomes),
        "by_class": {
            cause.value: {
                "cases": row.cases,
                "precision": row.precision,
                "recall": row.recall,
                "culprit": row.culprit,
            }
            for cause, row in classes.items()
        },
        "detection": {
            "hang or failing": _delay(
                [i for i in judged if i.truth is Cause.HANG or i.kind == "failing"], 30
            ),
            "hang or failing, with hosts": _delay(
                [i for i in judged if i.hosts and (i.truth is Cause.HANG or i.kind == "failing")], 30
            ),
            "slow, >= 15 %": _delay(
                [i for i in judged if i.truth is Cause.SLOW and i.size >= LARGE and i.kind != "failing"],
                180,
            ),
            "any but hang, >= 15 %": _delay(
                [i for i in judged if i.truth is not Cause.HANG and i.size >= LARGE and i.kind != "failing"],
                180,
            ),
        },
        "baselines": {name: _blamed(judged, name) for name in ("slurm-gpu", *BASELINES)},
    }


def _print_calibration(judged: Sequence[Outcome], error: float, rows: Sequence[Reliability]) -> None:
    print(f"\n{'reliability':16} {'verdicts':>8} {'stated':>7} {'right':>7}")
    for row in rows:
        print(f"{row.sort:16} {row.n:8} {row.stated:7.3f} {row.right:7.3f}")
    without = [item for item in judged if item.said is Cause.INCONCLUSIVE]
    lose = sum(item.truth in FAULT_CAUSES for item in without)
    print(f"{'inconclusive':16} {len(without):8}    no claim; {lose} of these training runs have a fault")
    print(f"expected calibration error {error:.3f}")


def _delay(items: Sequence[Outcome], goal_s: float) -> dict[str, Any]:
    cases, after = detection(items)
    within = sum(seconds <= goal_s for seconds in after)
    return {
        "cases": cases,
        "found": len(after),
        "median_s": after[len(after) // 2] if after else None,
        "p90_s": after[int(0.9 * (len(after) - 1))] if after else None,
        "goal_s": goal_s,
        "within": within / cases if cases else 0.0,
    }


def _blamed(judged: Sequence[Outcome], name: str) -> dict[str, float]:
    """Score the distinction between faulty and healthy training runs, the only one that all methods make."""

    def alarm(item: Outcome) -> tuple[bool, bool]:
        if name == "slurm-gpu":
            return item.said in FAULT_CAUSES, bool(item.culprit)
        return item.others[name]

    faulty_ones = [item for item in judged if item.truth in FAULT_CAUSES]
    well = [item for item in judged if item.truth is Cause.HEALTHY]
    found = sum(alarm(item)[0] for item in faulty_ones)
    false = sum(alarm(item)[0] for item in well)
    return {
        "precision": round(found / max(found + false, 1), 4),
        "recall": round(found / max(len(faulty_ones), 1), 4),
        "culprit": round(sum(alarm(item)[1] for item in faulty_ones) / max(found, 1), 4),
        "false_alarms": false,
    }


def _print_confusion(outcomes: Sequence[Outcome]) -> None:
    short = {cause: cause.value.split()[0] for cause in Cause}
    table = confusion(outcomes)
    print(f"{'truth, then verdict':22}" + "".join(f"{short[cause]:>15}" for cause in Cause))
    for truth, row in table.items():
        if any(row.values()):
            name = "undetectable" if truth is Cause.INCONCLUSIVE else truth.value
            print(f"{name:22}" + "".join(f"{row[cause] or '·':>15}" for cause in Cause))


def _print_parts(judged: Sequence[Outcome]) -> None:
    """Print recall by size, by available data, and by kind of fault."""
    are = [item for item in judged if item.truth in FAULT_CAUSES]
    sized = [item for item in are if item.truth is not Cause.HANG and item.kind != "failing"]
    edges = (0.05, 0.10, 0.15, 0.25, 0.40, 0.61)
    parts = {
        f"{low:.0%} to {min(high, 0.6):.0%}": [item for item in sized if low <= item.size < high]
        for low, high in itertools.pairwise(edges)
    }
    print("\nrecall by size   " + _line(parts))
    parts = {model: [item for item in are if item.model == model] for model in sorted({i.model for i in are})}
    print("by GPU           " + _line(parts))
    parts = {
        "windows, hosts": [item for item in are if not (item.timeline or item.timed) and item.hosts],
        "without hosts": [item for item in are if not (item.timeline or item.timed or item.hosts)],
        "timelines": [item for item in are if item.timeline],
        "timings": [item for item in are if item.timed],
    }
    print("by data          " + _line(parts))
    for cause in FAULT_CAUSES:
        kinds = sorted({item.kind for item in are if item.truth is cause})
        parts = {kind: [item for item in are if item.truth is cause and item.kind == kind] for kind in kinds}
        if parts:
            print(f"{cause.value.split()[0]:16} " + _line(parts))


def _line(parts: dict[str, list[Outcome]]) -> str:
    return ", ".join(
        f"{name} {sum(item.right for item in items) / len(items):.2f} ({len(items)})"
        for name, items in parts.items()
        if items
    )


def _print_baselines(judged: Sequence[Outcome]) -> None:
    print(f"\n{'faulty or not, culprit':26} {'precision':>10} {'recall':>7} {'culprit':>10} {'false':>6}")
    for name in ("slurm-gpu", *BASELINES):
        row = _blamed(judged, name)
        label = name if name == "slurm-gpu" else f"{name} (ours)"
        print(
            f"{label:26} {row['precision']:10.3f} {row['recall']:7.3f} {row['culprit']:10.3f} "
            f"{row['false_alarms']:6.0f}"
        )


def _print_wrong(outcomes: Sequence[Outcome]) -> None:
    print()
    for item in outcomes:
        well = item.truth is Cause.HEALTHY or item.undecidable
        if (well and (item.alarms or item.said in FAULT_CAUSES)) or (
            not well and not (item.right and item.culprit)
        ):
            named = "" if item.culprit is None else ", named right" if item.culprit else ", named wrong"
            print(
                f"{item.name} ({item.kind}, {item.size:.0%}, {item.n_gpus} {item.model}"
                f"{', timeline' if item.timeline else ''}{', hosts' if item.hosts else ''}): "
                f"{item.said.value} ({item.said_kind}){named} {' '.join(a for a, _ in item.alarms)}"
            )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} s"


if __name__ == "__main__":
    main()
