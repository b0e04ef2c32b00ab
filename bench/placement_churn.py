"""Compare how many jobs different node selections reject while jobs arrive and end.

All nodes have 8 GPUs and 64 CPUs. Jobs arrive at random (Poisson) and run for a random time (exponential,
mean ten hours). A job that does not fit is rejected and does not return. `slurm` chooses the suitable node
with the fewest free CPUs, as without weights. `weights_fullness` uses the fullness of nodes,
`weights_untimed` the value for the mix, `weights` also the time until nodes are free, as in slurm-gpuctld;
weights are updated after every `--every` jobs. With `weights_by_type`, each job first uses types of GPUs in
its own order, which matters with `--two-types`. `ours` chooses the best node for each job; `ours_whole` also
uses empty nodes last. Time limits exceed run times by a factor of exp(|z|), as users' estimates do, where z
is normal with standard deviation 0.8; with `--limits most`, all are eight times the mean.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import number
from bench.placement_rules import FewestCPUs
from slurm_gpu.placement.choice import LeastFragmentation, NodeShare, PlacementRule
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.state import Nodes, NodeState, RunningUntil
from slurm_gpu.placement.weighted import NodeWeights, NodeWeightsByType
from slurm_gpu.simulate.jobs import ResourceRequest

GPUS, CPUS = 8, 64
STAY_S = 36_000.0
GUESSES, MOST = 0.8, 8
WARM_UP = 0.1
"""The fraction of events before the measurement starts."""

LOADS: Mapping[str, Mapping[tuple[int, int], int]] = {
    "CPUs in proportion": {(1, 8): 60, (2, 16): 20, (4, 32): 12, (8, 64): 4},
    "CPUs independent of GPUs, and CPU jobs": {
        (1, 1): 20,
        (1, 4): 20,
        (1, 16): 20,
        (2, 8): 10,
        (2, 24): 10,
        (4, 16): 6,
        (4, 32): 6,
        (8, 48): 4,
        (0, 8): 10,
        (0, 16): 5,
    },
    "half of them pairs": {(1, 4): 30, (1, 12): 10, (2, 16): 50, (4, 24): 10, (8, 32): 3},
    "short of CPUs": {
        (1, 4): 20,
        (1, 12): 30,
        (1, 24): 10,
        (2, 12): 10,
        (4, 32): 10,
        (8, 32): 5,
        (0, 16): 10,
    },
}
"""GPUs and CPUs of a job, and its relative frequency."""


@dataclass(frozen=True, slots=True)
class ChurnResult:
    """The result of one run; fractions are 0 to 1."""

    turned_away: float
    """The fraction of requested GPUs whose jobs were rejected."""
    by_gpus: Mapping[int, float]
    """The fraction of jobs by number of GPUs."""
    used: float
    """GPUs in use."""
    whole: float
    """Nodes without a GPU in use."""


def rules(mix: Mix, every: int) -> dict[str, Callable[[], PlacementRule]]:
    """Return the rules by name, new for each run."""
    return {
        "slurm": FewestCPUs,
        "weights_fullness": lambda: NodeWeights(None, every=every, timed=False),
        "weights_untimed": lambda: NodeWeights(mix, every=every, timed=False),
        "weights": lambda: NodeWeights(mix, every=every),
        "weights_by_type": lambda: NodeWeightsByType(mix, every=every),
        "ours": lambda: LeastFragmentation(mix),
        "ours_whole": lambda: LeastFragmentation(mix, whole_last=True),
    }


def empty_nodes(n: int, two_types: bool = False) -> Nodes:
    """Return nodes; with two types, every second one has a quarter of the GPUs and all CPUs."""
    small = [two_types and index % 2 == 1 for index in range(n)]
    return Nodes.of(
        NodeState(
            name=f"n{index}",
            gpu_types=("t4",) * (GPUS // 4) if is_small else ("a100",) * GPUS,
            free_mgpu=(1000,) * (GPUS // 4 if is_small else GPUS),
            cpus=CPUS,
            free_cpus=CPUS,
            memory_mib=1,
            free_memory_mib=1,
        )
        for index, is_small in enumerate(small)
    )


def with_running(nodes: Nodes, ends: Sequence[Mapping[int, float]], now_s: float) -> Nodes:
    """Return the nodes with the latest end of their jobs (`ends`: by job ID)."""
    until_s = np.array([max(one.values(), default=0.0) for one in ends])
    return replace(nodes, running=RunningUntil(now_s, until_s, np.array([len(one) for one in ends])))


def run(
    rule: PlacementRule,
    asked: Mapping[ResourceRequest, int],
    nodes: Nodes,
    load: float,
    seed: int,
    events: int,
    limits: str = "guessed",
) -> ChurnResult:
    """Run one rule; `load` is the ratio of requested to existing GPUs. Every rule gets the same jobs."""
    rng = random.Random(seed)
    requests, times = list(asked), list(asked.values())
    gpus_each = sum(one.gpus * n for one, n in asked.items()) / sum(times)
    n_gpus = int(nodes.n_gpus.sum())
    rate = load * n_gpus / (gpus_each * STAY_S)
    now_s, running = 0.0, list[tuple[float, int, ResourceRequest, NodeShare]]()
    came, rejected = Counter[int](), Counter[int]()
    used, whole = [], []
    ends: list[dict[int, float]] = [{} for _ in range(len(nodes))]
    for event in range(events):
        now_s += rng.expovariate(rate)
        request, stay_s = rng.choices(requests, times)[0], rng.expovariate(1 / STAY_S)
        longer = math.exp(abs(rng.gauss(0, GUESSES)))
        limit_s = stay_s * longer if limits == "guessed" else max(stay_s, MOST * STAY_S)
        while running and running[0][0] <= now_s:
            _, job, ended, place = heapq.heappop(running)
            nodes = nodes.give_back(place.node, ended, place.devices)
            del ends[place.node][job]
        nodes = with_running(nodes, ends, now_s)
        places = rule.choose(nodes, request)
        if event >= WARM_UP * events:
            came[request.gpus] += 1
            rejected[request.gpus] += not places
            used.append(1 - nodes.free_gpus.sum() / n_gpus)
            whole.append(np.count_nonzero(nodes.free_gpus == GPUS))
        for place in places:
            nodes = nodes.take(place.node, request, place.devices)
            heapq.heappush(running, (now_s + stay_s, event, request, place))
            ends[place.node][event] = now_s + limit_s
    return ChurnResult(
        sum(gpus * n for gpus, n in rejected.items()) / max(sum(gpus * n for gpus, n in came.items()), 1),
        {gpus: rejected[gpus] / n for gpus, n in sorted(came.items())},
        float(np.mean(used)),
        float(np.mean(whole)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=number(1), default=8)
    parser.add_argument("--events", type=number(10), default=6000, help="arriving jobs per run")
    parser.add_argument("--nodes", type=number(1), default=32)
    parser.add_argument("--load", type=float, default=0.9, help="ratio of requested to existing GPUs")
    parser.add_argument("--two-types", action="store_true", help="every second node has two GPUs")
    parser.add_argument("--every", type=number(1), default=1, help="jobs between two updates of weights")
    parser.add_argument("--limits", choices=("guessed", "most"), default="guessed", help="time limits")
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    options = parser.parse_args()
    nodes, answer = empty_nodes(options.nodes, options.two_types), dict[str, dict[str, dict[str, float]]]()
    for name, classes in LOADS.items():
        asked = {ResourceRequest(gpus=gpus, cpus=cpus): n for (gpus, cpus), n in classes.items()}
        print(f"{name}: {options.load:.0%} of the GPUs of {options.nodes} nodes requested")
        print(f"  {'rule':17} {'rejected':>11} {'+-':>5} {'of 8 GPUs':>9} {'used':>6} {'whole':>6}")
        answer[name] = {}
        for rule, make in rules(Mix.of(asked.items()), options.every).items():
            found = [
                run(make(), asked, nodes, options.load, seed, options.events, options.limits)
                for seed in range(options.seeds)
            ]
            rejected = [one.turned_away for one in found]
            figures = answer[name][rule] = {
                "turned_away": round(float(np.mean(rejected)), 4),
                "standard_error": round(float(np.std(rejected)) / options.seeds**0.5, 4),
                "turned_away_8_gpus": round(float(np.mean([one.by_gpus.get(8, 0.0) for one in found])), 4),
                "used": round(float(np.mean([one.used for one in found])), 4),
                "whole": round(float(np.mean([one.whole for one in found])), 2),
            }
            print(
                f"  {rule:17} {figures['turned_away']:11.1%} {figures['standard_error']:5.1%} "
                f"{figures['turned_away_8_gpus']:9.1%} {figures['used']:6.1%} {figures['whole']:6.2f}",
                flush=True,
            )
    if options.json:
        print(json.dumps({"seeds": options.seeds, "load": options.load, "rules": answer}))


if __name__ == "__main__":
    main()
