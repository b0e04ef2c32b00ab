"""Measure the fraction of GPUs that each placement rule fills, on a public trace.

In the published experiment (Weng et al., "Beware of Fragmentation", USENIX ATC 2023, Alibaba's trace openb),
pods are drawn from the trace with replacement and arrive until they have requested 130 % of the cluster's
GPUs. Pods never end, and a pod that does not fit is dropped. The result is the fraction of all GPUs that is
allocated at the end, as the mean over seeds. `slurm` chooses the suitable node with the fewest free CPUs,
like Slurm without weights. `weights` chooses by the weights of slurm-gpuctld, from the mix or from fullness
alone: the lowest weight, then the fewest free CPUs. With `weights_by_type`, each pod first uses the types of
GPUs in its own order. `--data` is a folder with the trace's openb_node_list_gpu_node.csv and the list of pods
openb_pod_list_NAME.csv, by default openb_pod_list_default.csv; others are chosen by `--pods NAME`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import number, numbers
from bench.placement_rules import BestFit, FewestCPUs, Random
from slurm_gpu.controller.placement.original_weights import OriginalWeights
from slurm_gpu.controller.placement.weight_plan import kind_and_room, plan
from slurm_gpu.placement.choice import LeastFragmentation, MostAllocated, PlacementRule
from slurm_gpu.placement.fragmentation import StrandedMeasure
from slurm_gpu.placement.mix import Mix
from slurm_gpu.placement.order import NodeKind, NodeOrder
from slurm_gpu.placement.state import Nodes, NodeState
from slurm_gpu.placement.weighted import NodeWeights, NodeWeightsByType
from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.slurm.client import SlurmNode

PUBLISHED = {"random": 87.5, "bestfit": 93.1, "fgd": 95.4}
ARRIVALS = 1.3
"""The requested GPUs as a fraction of the cluster's."""
WEIGHTS_EVERY = 10
"""Number of decisions between two updates of node weights, because slurm-gpuctld lags by a second."""
PASS_CHANGES = 100
"""Number of nodes that change between two polls when the time of a poll is measured."""


def rules(mix: Mix) -> dict[str, Callable[[int], PlacementRule]]:
    """Return the rules by name, for a seed."""
    return {
        "random": Random,
        "bestfit": lambda _: BestFit(),
        "mostallocated": lambda _: MostAllocated(),
        "slurm": lambda _: FewestCPUs(),
        "weights_fullness": lambda _: NodeWeights(None, every=WEIGHTS_EVERY),
        "weights": lambda _: NodeWeights(mix, every=WEIGHTS_EVERY),
        "weights_by_type": lambda _: NodeWeightsByType(mix, every=WEIGHTS_EVERY),
        "fgd": lambda _: LeastFragmentation(mix, StrandedMeasure.FGD),
        "ours": lambda _: LeastFragmentation(mix),
        "ours_whole_last": lambda _: LeastFragmentation(mix, whole_last=True),
    }


def read_nodes(folder: Path) -> Nodes:
    """Read all nodes, without jobs; CPUs of nodes and requests are in thousandths, as in the trace."""
    with (folder / "openb_node_list_gpu_node.csv").open(newline="") as file:
        return Nodes.of(_node(row) for row in csv.DictReader(file))


def _node(row: dict[str, str]) -> NodeState:
    n_gpus, cpus, memory_mib = int(row["gpu"]), int(row["cpu_milli"]), int(row["memory_mib"])
    return NodeState(
        name=row["sn"],
        gpu_types=(row["model"],) * n_gpus,
        free_mgpu=(GPU_MGPU,) * n_gpus,
        cpus=cpus,
        free_cpus=cpus,
        memory_mib=memory_mib,
        free_memory_mib=memory_mib,
    )


def read_pods(folder: Path, name: str = "default") -> list[ResourceRequest]:
    """Read the requests of the pods in one of the trace's lists."""
    with (folder / f"openb_pod_list_{name}.csv").open(newline="") as file:
        return [_request(row) for row in csv.DictReader(file)]


def _request(row: dict[str, str]) -> ResourceRequest:
    n_gpus, mgpu = int(row["num_gpu"]), int(row["gpu_milli"])
    if row.get("gpu_spec"):
        raise SystemExit(f"{row['name']} asks for GPUs {row['gpu_spec']}; here pods may have any")
    whole = mgpu == GPU_MGPU or n_gpus == 0
    return ResourceRequest(
        gpus=n_gpus if whole else 0,
        share_mgpu=0 if whole else mgpu,
        cpus=int(row["cpu_milli"]),
        memory_mib=int(row["memory_mib"]),
    )


def arrivals(pods: Sequence[ResourceRequest], capacity_mgpu: int, seed: int) -> Iterator[ResourceRequest]:
    """Draw pods until they have requested `ARRIVALS` of the capacity."""
    random = np.random.default_rng(seed)
    asked = 0
    while asked < ARRIVALS * capacity_mgpu:
        pod = pods[int(random.integers(len(pods)))]
        asked += pod.mgpu
        yield pod


def fill(nodes: Nodes, rule: PlacementRule, pods: Iterator[ResourceRequest]) -> Nodes:
    """Return the cluster after all arrivals."""
    for pod in pods:
        for place in rule.choose(nodes, pod):
            nodes = nodes.take(place.node, pod, place.devices)
    return nodes


def allocated_percent(nodes: Nodes) -> float:
    """Return the percentage of all GPUs that is allocated."""
    return 100.0 * (1.0 - float(nodes.free_mgpu.sum()) / float(nodes.n_gpus.sum() * GPU_MGPU))


def half_full(nodes: Nodes, n_nodes: int, pods: Sequence[ResourceRequest]) -> Nodes:
    """Return `n_nodes` nodes of the trace's kinds in turn, with half of all GPUs allocated at random."""
    kinds = [
        NodeState(
            name=f"n{index}",
            gpu_types=tuple(nodes.types[code] for code in nodes.gpu_type[index % len(nodes)] if code >= 0),
            free_mgpu=(GPU_MGPU,) * int(nodes.n_gpus[index % len(nodes)]),
            cpus=int(nodes.cpus[index % len(nodes)]),
            free_cpus=int(nodes.cpus[index % len(nodes)]),
            memory_mib=int(nodes.memory_mib[index % len(nodes)]),
            free_memory_mib=int(nodes.memory_mib[index % len(nodes)]),
        )
        for index in range(n_nodes)
    ]
    state, rule, random = Nodes.of(kinds), Random(0), np.random.default_rng(0)
    capacity = int(state.n_gpus.sum()) * GPU_MGPU
    while int(state.free_mgpu.sum()) > capacity / 2:
        pod = pods[int(random.integers(len(pods)))]
        for place in rule.choose(state, pod):
            state = state.take(place.node, pod, place.devices)
    return state


def decision_ms(state: Nodes, mix: Mix, pods: Sequence[ResourceRequest]) -> dict[str, float]:
    """Return median times of our rule: with all nodes scored, and with changed nodes only."""
    random = np.random.default_rng(1)
    recomputed, recomputed_cpu, since, since_cpu = [], [], [], []
    known = LeastFragmentation(mix)
    for pod in mix.requests:
        known.choose(state, pod)
    for _ in range(40):
        pod = pods[int(random.integers(len(pods)))]
        began, cpu_began = time.perf_counter(), time.process_time()
        LeastFragmentation(mix).choose(state, pod)
        recomputed.append(time.perf_counter() - began)
        recomputed_cpu.append(time.process_time() - cpu_began)
        began, cpu_began = time.perf_counter(), time.process_time()
        places = known.choose(state, pod)
        since.append(time.perf_counter() - began)
        since_cpu.append(time.process_time() - cpu_began)
        for place in places:
            state = state.take(place.node, pod, place.devices)
    return {
        "all_nodes": round(1000 * float(np.median(recomputed)), 2),
        "all_nodes_max": round(1000 * max(recomputed), 2),
        "all_nodes_cpu": round(1000 * float(np.median(recomputed_cpu)), 2),
        "all_nodes_cpu_max": round(1000 * max(recomputed_cpu), 2),
        "changed_nodes": round(1000 * float(np.median(since)), 3),
        "changed_nodes_cpu": round(1000 * float(np.median(since_cpu)), 3),
    }


def planning_ms(state: Nodes, mix: Mix) -> dict[str, float]:
    """Return the median processor time in which slurm-gpuctld plans the weights of all nodes.

    The times are for planning by fullness only; by the mix with every node computed, as after a change of the
    mix; and by the mix with the changed nodes only.
    """
    random = np.random.default_rng(1)
    nodes = [_slurm_node(state, index) for index in range(len(state))]

    def took(order_of: Callable[[Mapping[NodeKind, int]], NodeOrder | None]) -> float:
        began = time.process_time()
        plan(nodes, nodes, OriginalWeights(), {}, {}, order_of)
        return 1000 * (time.process_time() - began)

    def recomputed(kinds: Mapping[NodeKind, int]) -> NodeOrder:
        return NodeOrder(mix, len(state), kinds)

    order = recomputed(Counter(kind_and_room(node)[0] for node in nodes))
    fullness = [took(lambda _: None) for _ in range(5)]
    all_recomputed = [took(recomputed) for _ in range(5)]
    plan(nodes, nodes, OriginalWeights(), {}, {}, lambda _: order)
    changed = []
    for _ in range(5):
        for index in random.choice(len(nodes), size=PASS_CHANGES, replace=len(nodes) < PASS_CHANGES).tolist():
            used = int(random.integers(nodes[index].cpus + 1))
            nodes[index] = replace(nodes[index], cpus_allocated=used)
        changed.append(took(lambda _: order))
    return {
        "fullness": round(float(np.median(fullness)), 1),
        "all_nodes": round(float(np.median(all_recomputed)), 1),
        "changed_nodes": round(float(np.median(changed)), 1),
    }


def _slurm_node(state: Nodes, index: int) -> SlurmNode:
    """Return a node in Slurm's form, with used fractions of GPUs rounded up to whole GPUs."""
    n_gpus = int(state.n_gpus[index])
    kind = state.types[state.gpu_type[index, 0]] if n_gpus else ""
    return SlurmNode(
        name=state.names[index],
        address="",
        state="mixed",
        reason=None,
        cpus=int(state.cpus[index]),
        cpus_allocated=int(state.cpus[index] - state.free_cpus[index]),
        memory_mib=int(state.memory_mib[index]),
        memory_allocated_mib=int(state.memory_mib[index] - state.free_memory_mib[index]),
        gpus={kind: n_gpus},
        gpus_allocated={kind: n_gpus - int(state.free_gpus[index])},
        shards=0,
        shards_allocated=0,
        features=(),
        partitions=("gpu",),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder with the trace")
    parser.add_argument("--pods", default="default", help="the list of pods")
    parser.add_argument("--seeds", type=number(1), default=10)
    parser.add_argument("--nodes", type=numbers, default=[1213, 2500, 5000, 10000], help="for the times")
    parser.add_argument("--only", help="rules, joined by commas")
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    options = parser.parse_args()
    try:
        empty, pods = read_nodes(options.data), read_pods(options.data, options.pods)
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    capacity = int(empty.n_gpus.sum()) * GPU_MGPU
    mix = Mix.of(Counter(pods).items())
    chosen = rules(mix)
    if options.only:
        if unknown := [name for name in options.only.split(",") if name not in chosen]:
            parser.error(f"--only: unknown rule {unknown[0]!r}; rules: {', '.join(chosen)}")
        chosen = {name: chosen[name] for name in options.only.split(",")}
    print(f"{len(empty)} nodes, {capacity // GPU_MGPU} GPUs, {len(pods)} pods in {len(mix.requests)} classes")
    print(f"{'rule':17} {'allocated %':>11} {'min':>6} {'max':>6} {'published':>9} {'s a run':>8}")
    allocated: dict[str, float] = {}
    for name, make in chosen.items():
        began, found = time.perf_counter(), []
        for seed in range(options.seeds):
            found.append(allocated_percent(fill(empty, make(seed), arrivals(pods, capacity, seed))))
        took_s = (time.perf_counter() - began) / options.seeds
        allocated[name] = round(float(np.mean(found)), 2)
        print(
            f"{name:17} {allocated[name]:11.2f} {min(found):6.2f} {max(found):6.2f} "
            f"{PUBLISHED.get(name, ''):>9} {took_s:8.1f}",
            flush=True,
        )
    times, planning = {}, {}
    for n in options.nodes:
        state = half_full(empty, n, pods)
        ms = times[n] = decision_ms(state, mix, pods)
        print(
            f"{n} nodes: a decision takes {ms['all_nodes']} ms with all nodes scored again (at most "
            f"{ms['all_nodes_max']}; of the processor {ms['all_nodes_cpu']}, at most "
            f"{ms['all_nodes_cpu_max']}), {ms['changed_nodes']} ms with those that changed (of the "
            f"processor {ms['changed_nodes_cpu']})",
            flush=True,
        )
        pass_ms = planning[n] = planning_ms(state, mix)
        print(
            f"  slurm-gpuctld plans their weights in {pass_ms['fullness']} ms of the processor by fullness, "
            f"{pass_ms['all_nodes']} by the mix with every node computed, {pass_ms['changed_nodes']} with "
            f"{PASS_CHANGES} that changed",
            flush=True,
        )
    if options.json:
        print(
            json.dumps(
                {
                    "allocated_percent": allocated,
                    "published_percent": PUBLISHED,
                    "seeds": options.seeds,
                    "decision_ms_1213_nodes": times.get(1213, {}).get("all_nodes"),
                    "decision_ms": times,
                    "planning_ms": planning,
                }
            )
        )


if __name__ == "__main__":
    main()
