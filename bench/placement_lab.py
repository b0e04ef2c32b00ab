"""Replay jobs of a trace on the lab's Slurm, and count the GPUs that are allocated when nothing more fits.

    .venv/bin/python bench/placement_lab.py --data ../shared/data/openb [--seeds 5] [--json]

`--data` is the folder of the trace, as in bench/placement.py. Jobs are its pods with one to four whole GPUs,
drawn with replacement until they request 130 % of the GPUs; none ends, and a job that does not start at once
is cancelled. Two nodes have two GPUs with 16 cores per GPU, two have four GPUs with 8 cores per GPU. The
pods' cores are reduced to two thirds, so that the 12 cores per GPU of the trace's most common nodes become 8.
The same jobs run with Slurm's own placement (`observe`), with node weights, and with `features`. Only GPUs
are simulated. The benchmark requires root and takes about 15 minutes.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import number
from bench.placement import ARRIVALS, read_pods
from lab.cluster import Lab
from lab.options import Options
from tests.lab.test_features import FEATURES, GPUS, TypedCluster, apply_empty_policy, nodes_of_two_types

CORES_OF_TRACE = 2 / 3
WAYS: Mapping[str, tuple[str, Sequence[str]]] = {
    "Slurm's own": ("observe", ()),
    "node weights": ("enforce", ()),
    "features": ("enforce", FEATURES),
}
"""Mode and features of placement, by name."""

# GPUs and cores.
Job = tuple[int, int]


def jobs_of_trace(folder: Path) -> list[Job]:
    """Return the pods with one to four whole GPUs as jobs on the nodes of the lab."""
    return [
        (pod.gpus, max(1, math.ceil(pod.cpus / 1000 * CORES_OF_TRACE)))
        for pod in read_pods(folder)
        if 1 <= pod.gpus <= max(GPUS.values())
    ]


def draw(jobs: Sequence[Job], seed: int) -> list[Job]:
    """Draw jobs until they have requested ARRIVALS of the GPUs."""
    rng, drawn, requested = random.Random(seed), [], 0
    while requested < ARRIVALS * sum(GPUS.values()):
        drawn.append(rng.choice(jobs))
        requested += drawn[-1][0]
    return drawn


def run(lab: Lab, jobs: Sequence[Job], seeds: int) -> dict[str, list[int]]:
    """Return the number of allocated GPUs, by way and seed."""
    apply_empty_policy(lab)
    cluster = TypedCluster(lab)
    cluster.mix = {job: float(times) for job, times in collections.Counter(jobs).items()}
    allocated: dict[str, list[int]] = {way: [] for way in WAYS}
    for seed in range(1, seeds + 1):
        for way, (mode, features) in WAYS.items():
            cluster.run_with(*features, mode=mode)
            found = sum(gpus for gpus, cpus in draw(jobs, seed) if cluster.starts(cpus, gpus))
            allocated[way].append(found)
            print(f"seed {seed}, {way}: {found} of {sum(GPUS.values())} GPUs", file=sys.stderr, flush=True)
    return allocated


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the trace")
    parser.add_argument("--seeds", type=number(1), default=5, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    jobs = jobs_of_trace(arguments.data)
    lab = Lab(
        options=Options(services=False, controller=True, native_limits=False, gpus=nodes_of_two_types())
    )
    if any(lab.status().values()):
        raise SystemExit("a lab is up; take it down first: lab/down")
    try:
        lab.up()
        allocated = run(lab, jobs, arguments.seeds)
    finally:
        lab.down()
    print(f"{'GPUs allocated of ' + str(sum(GPUS.values())):24} {'mean':>6}  by seed")
    for way, found in allocated.items():
        print(f"{way:24} {statistics.mean(found):6.1f}  {', '.join(map(str, found))}")
    if arguments.json:
        print(json.dumps(allocated))


if __name__ == "__main__":
    main()
