"""Compare orders in which equal nodes are filled, for many seeds of arriving and ending jobs.

An order is a possible result of node weights and applies to all jobs. Slurm chooses the first suitable node
and, among equal nodes, the one with the fewest free CPUs; a job that does not fit is rejected. Jobs arrive at
random (Poisson) and run for a random time (exponential, mean ten hours). Time limits exceed run times by a
factor of exp(|z|), where z is normal with standard deviation 0.8. Every order gets the same jobs.

`stock` is Slurm without weights; `whole_last` uses empty nodes last, and is like `stock` otherwise. `fullest`
prefers the fewest free GPUs, `most_jobs` the most jobs, `most_work` the most remaining hours of all jobs.
`latest` prefers the node that becomes empty last by the time limits; `latest_fullest` uses the binary
logarithm of that time, then free GPUs. `applied` is the current rule of slurm-gpuctld, and `at_stake` the
same rule without the remaining time of jobs. All but `stock` and `fullest` use empty nodes last.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import number
from bench.placement_churn import GUESSES, LOADS, STAY_S
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.order import FreeCapacity, NodeKind, NodeOrder
from slurm_gpu.placement.weights import NodeCapacity, WeightScale, level_of
from slurm_gpu.simulate.request import GPU_MGPU, ResourceRequest

Asked = Mapping[tuple[int, int], int]
"""GPUs and CPUs of a job, and its relative frequency."""
CPUS_PER_GPU = 8
WARM_UP = 0.1
SMALL_LOADS: Mapping[str, Asked] = {
    "CPUs in proportion": {(1, 8): 60, (2, 16): 20, (4, 32): 12},
    "few CPUs": {(1, 1): 25, (1, 4): 25, (1, 8): 25, (2, 2): 8, (2, 8): 8, (2, 16): 9, (4, 8): 6, (4, 32): 6},
    "CPU jobs": {(1, 1): 20, (1, 4): 20, (1, 16): 15, (2, 8): 10, (4, 16): 8, (0, 8): 15, (0, 4): 10},
}
"""For nodes of four GPUs."""


@dataclass(slots=True)
class Node:
    """Free resources, and the latest ends of its jobs by number."""

    index: int
    gpus: int
    cpus: int
    until_s: dict[int, float] = field(default_factory=dict)


Key = Callable[[Node, float], float | tuple[float, ...]]
"""The sort key of a node at a time; the lowest comes first."""


@dataclass(frozen=True, slots=True)
class OrderResult:
    """The result of one run; fractions are 0 to 1."""

    turned_away: float
    """The fraction of requested GPUs whose jobs were rejected."""
    whole: float
    """Mean number of nodes without a GPU in use."""
    moves: float
    """Changes of a node's place for each arriving job."""


def orders(asked: Asked, n_gpus: int, n_nodes: int) -> dict[str, Callable[[], Key]]:
    """Return the orders by name, new for each run."""

    def is_whole(node: Node) -> bool:
        return node.gpus == n_gpus

    def left_s(node: Node, now_s: float) -> float:
        return max(node.until_s.values(), default=now_s) - now_s

    def doublings(node: Node, now_s: float) -> int:
        return int(math.log2(1 + left_s(node, now_s) / 900))

    def work_s(node: Node, now_s: float) -> float:
        return sum(until_s - now_s for until_s in node.until_s.values())

    return {
        "stock": lambda: lambda node, now_s: 0,
        "whole_last": lambda: lambda node, now_s: is_whole(node),
        "fullest": lambda: lambda node, now_s: node.gpus,
        "at_stake": lambda: _levels(asked, n_gpus, n_nodes, timed=False),
        "most_jobs": lambda: lambda node, now_s: (is_whole(node), -len(node.until_s)),
        "latest": lambda: lambda node, now_s: (is_whole(node), -left_s(node, now_s)),
        "latest_fullest": lambda: lambda node, now_s: (is_whole(node), -doublings(node, now_s), node.gpus),
        "most_work": lambda: lambda node, now_s: (is_whole(node), -work_s(node, now_s)),
        "applied": lambda: _levels(asked, n_gpus, n_nodes, timed=True),
    }


def _levels(asked: Asked, n_gpus: int, n_nodes: int, *, timed: bool) -> Key:
    """Return a key of levels with bands, as in slurm-gpuctld."""
    kind = NodeKind(("",) * n_gpus, n_gpus * CPUS_PER_GPU, 1)
    mix = Mix.of((ResourceRequest(gpus=gpus, cpus=cpus), times) for (gpus, cpus), times in asked.items())
    order, levels = NodeOrder(mix, 1000.0, {kind: n_nodes}), dict[int, int]()
    scale = WeightScale(n_gpus, order.n_whole_ranks, timed)

    def level(node: Node, now_s: float) -> int:
        free_mgpu = (0,) * (n_gpus - node.gpus) + (GPU_MGPU,) * node.gpus
        stake = order.stake(kind, FreeCapacity(free_mgpu, node.cpus, 1))
        room = NodeCapacity(
            name="",
            gpus=n_gpus,
            gpus_used=n_gpus - node.gpus,
            cpus=kind.cpus,
            cpus_free=node.cpus,
            memory_mib=1,
            memory_free_mib=1,
            worth=order.gpus_left(stake),
            whole_rank=order.whole_rank(kind),
            whole_in_s=max(node.until_s.values(), default=now_s) - now_s,
            one_job=len(node.until_s) == 1,
        )
        levels[node.index] = level_of(room, scale, levels.get(node.index))
        return levels[node.index]

    return level


def run(
    order: Key, asked: Asked, n_gpus: int, n_nodes: int, load: float, seed: int, events: int, every: int = 1
) -> OrderResult:
    """Run one order, with places updated after every `every` starts; `load` is requested ÷ existing GPUs."""
    rng = random.Random(seed)
    kinds, times = list(asked), list(asked.values())
    mean_gpus = sum(gpus * n for (gpus, _), n in asked.items()) / sum(times)
    rate = load * n_nodes * n_gpus / (mean_gpus * STAY_S)
    nodes = [Node(index, n_gpus, n_gpus * CPUS_PER_GPU) for index in range(n_nodes)]
    places = [order(node, 0.0) for node in nodes]
    ends: list[tuple[float, int, Node, int, int]] = []
    now_s = whole_s = counted_s = 0.0
    came = rejected = moves = 0
    starts = 0
    for event in range(events):
        next_s = now_s + rng.expovariate(rate)
        gpus, cpus = rng.choices(kinds, times)[0]
        stay_s = rng.expovariate(1 / STAY_S)
        limit_s = stay_s * math.exp(abs(rng.gauss(0, GUESSES)))
        while now_s < next_s:
            until_s = min(next_s, ends[0][0]) if ends else next_s
            if event >= WARM_UP * events:
                whole_s += (until_s - now_s) * sum(node.gpus == n_gpus for node in nodes)
                counted_s += until_s - now_s
            now_s = until_s
            while ends and ends[0][0] <= now_s:
                _, job, node, of_gpus, of_cpus = heapq.heappop(ends)
                node.gpus, node.cpus = node.gpus + of_gpus, node.cpus + of_cpus
                del node.until_s[job]
        if starts % every == 0:
            fresh = [order(node, now_s) for node in nodes]
            moves += sum(one != other for one, other in zip(places, fresh, strict=True))
            places = fresh
        fitting = [node for node in nodes if node.gpus >= gpus and node.cpus >= cpus]
        if event >= WARM_UP * events:
            came += gpus
            rejected += 0 if fitting else gpus
        if fitting:
            node = min(fitting, key=lambda node: (places[node.index], node.cpus))
            node.gpus, node.cpus = node.gpus - gpus, node.cpus - cpus
            node.until_s[event] = now_s + limit_s
            heapq.heappush(ends, (now_s + stay_s, event, node, gpus, cpus))
            starts += 1
    return OrderResult(rejected / max(came, 1), whole_s / counted_s, moves / events)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=number(2), default=60)
    parser.add_argument("--events", type=number(10), default=2000, help="arriving jobs per run")
    parser.add_argument("--nodes", type=number(1), default=8)
    parser.add_argument("--gpus", type=int, choices=(4, 8), default=8, help="of a node")
    parser.add_argument("--load", type=float, default=0.8, help="ratio of requested to existing GPUs")
    parser.add_argument("--every", type=number(1), default=1, help="starts between two updates of places")
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    options = parser.parse_args()
    answer: dict[str, dict[str, dict[str, float]]] = {}
    for load, asked in (LOADS if options.gpus == 8 else SMALL_LOADS).items():
        print(f"{load}: {options.nodes} nodes of {options.gpus} GPUs, {options.load:.0%} requested")
        head = ("order", "turned away", "more", "+-", "whole", "more", "+-", "moves")
        print("  {:15} {:>11} {:>7} {:>6} {:>6} {:>7} {:>6} {}".format(*head))
        answer[load], stock = {}, list[OrderResult]()
        for name, make in orders(asked, options.gpus, options.nodes).items():
            found = [
                run(
                    make(),
                    asked,
                    options.gpus,
                    options.nodes,
                    options.load,
                    seed,
                    options.events,
                    options.every,
                )
                for seed in range(options.seeds)
            ]
            stock = stock or found
            rejected = [one.turned_away - other.turned_away for one, other in zip(found, stock, strict=True)]
            whole = [one.whole - other.whole for one, other in zip(found, stock, strict=True)]
            figures = answer[load][name] = {
                "turned_away": round(statistics.fmean(one.turned_away for one in found), 5),
                "turned_away_more": round(statistics.fmean(rejected), 5),
                "turned_away_error": round(statistics.stdev(rejected) / len(rejected) ** 0.5, 5),
                "whole": round(statistics.fmean(one.whole for one in found), 4),
                "whole_more": round(statistics.fmean(whole), 4),
                "whole_error": round(statistics.stdev(whole) / len(whole) ** 0.5, 4),
                "moves": round(statistics.fmean(one.moves for one in found), 2),
            }
            print(
                f"  {name:15} {figures['turned_away']:11.2%} {figures['turned_away_more']:+7.2%} "
                f"{figures['turned_away_error']:6.2%} {figures['whole']:6.3f} {figures['whole_more']:+7.3f} "
                f"{figures['whole_error']:6.3f} {figures['moves']:5.2f}",
                flush=True,
            )
    if options.json:
        print(json.dumps({"seeds": options.seeds, "load": options.load, "orders": answer}))


if __name__ == "__main__":
    main()
