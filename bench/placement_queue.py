"""Check by simulation that no job waits indefinitely under placement rules.

The load is that of bench/simulate.py (seeded; one GPU to sixteen nodes), but one job in five with one GPU
uses only a part of it. Nodes are in zones; a multi-node job requires one zone, for at most `--zone-wait`
hours. Jobs start in order of submission, with backfill every 30 s. The exit status is 1 if a
job never starts, or waits at the head of the queue for more than the longest time limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import number
from bench.simulate import GPUS_PER_NODE, make_jobs
from slurm_gpu.placement.choice import LeastFragmentation, MostAllocated
from slurm_gpu.placement.placing import ByRule
from slurm_gpu.placement.replay import figures, in_one_zone_where_possible, mix_of
from slurm_gpu.simulate.cluster import ModelCluster, ModelNode, ModelPartition
from slurm_gpu.simulate.jobs import Jobs, ResourceRequest
from slurm_gpu.simulate.model import simulate
from slurm_gpu.simulate.placement import FirstFit, PlacementChoice
from slurm_gpu.simulate.scheduler import Scheduling


def make_cluster(n_nodes: int, per_zone: int) -> ModelCluster:
    nodes = tuple(
        ModelNode(
            name=f"n{i}", gpus=GPUS_PER_NODE, cpus=128, memory_mib=1_000_000, zone=f"zone{i // per_zone}"
        )
        for i in range(n_nodes)
    )
    return ModelCluster(nodes, (ModelPartition("gpu", tuple(range(n_nodes))),))


def with_shares(jobs: Jobs, seed: int) -> Jobs:
    """Reduce one in five of the single-GPU jobs to a quarter of a GPU."""
    share = ResourceRequest(share_mgpu=250, cpus=2, memory_mib=16000)
    ones = np.array([request.mgpu == 1000 for request in jobs.requests])[jobs.request]
    fewer = ones & (np.random.default_rng(seed).random(len(jobs)) < 0.2)
    codes = np.where(fewer, len(jobs.requests), jobs.request).astype(np.int32)
    return replace(jobs, request=codes, requests=[*jobs.requests, share])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=number(1), default=10_000)
    parser.add_argument("--nodes", type=number(16), default=64)
    parser.add_argument("--per-zone", type=number(16), default=16, help="nodes of each zone")
    parser.add_argument("--load", type=float, default=1.0, help="ratio of requested to existing GPUs")
    parser.add_argument("--zone-wait", type=float, default=4.0, help="hours")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    options = parser.parse_args()
    cluster = make_cluster(options.nodes, options.per_zone)
    jobs = with_shares(
        make_jobs(options.jobs, cluster.total_gpus, 1, options.load, options.seed), options.seed
    )
    jobs = replace(jobs, counters=np.zeros(len(jobs), dtype=np.int32), counter_sets=((),))
    zoned = in_one_zone_where_possible(cluster, jobs)
    longest_h = float(jobs.limit_s.max()) / 3600
    rules: dict[str, tuple[PlacementChoice, Jobs]] = {
        "slurm": (FirstFit(), jobs),
        "mostallocated": (ByRule(cluster, MostAllocated()), jobs),
        "ours": (ByRule(cluster, LeastFragmentation(mix_of(jobs))), jobs),
        "ours, one zone": (ByRule(cluster, LeastFragmentation(mix_of(jobs))), zoned),
    }
    print(f"{len(jobs)} jobs, {options.nodes} nodes in zones of {options.per_zone}, load {options.load}")
    print(
        f"{'rule':16} {'never':>5} {'as first h':>10} {'used':>6} {'stranded GPU-h':>14} {'idle GPU-h':>10} "
        f"{'straddle':>8} {'took s':>6}"
    )
    found = {}
    for name, (placement, asked) in rules.items():
        began = time.perf_counter()
        outcome = simulate(
            cluster,
            asked,
            placement=placement,
            zone_wait_s=options.zone_wait * 3600,
            log=True,
            scheduling=Scheduling(backfill_every_s=30, depth=500),
        )
        took_s = time.perf_counter() - began
        one = found[name] = figures(cluster, asked, outcome)
        print(
            f"{name:16} {one.never_started:5} {one.longest_as_first_h:10.2f} {one.utilisation:6.1%} "
            f"{one.stranded_gpu_hours:14.0f} {one.idle_gpu_hours_while_waiting:10.0f} {one.straddling:8} "
            f"{took_s:6.1f}",
            flush=True,
        )
    print(f"\nthe longest time limit is {longest_h:.0f} h; mean and 95 % of waits in hours:")
    for scale in found["slurm"].waits:
        waits = "  ".join(
            f"{name} {one.waits[scale].mean_h:.2f} {one.waits[scale].p95_h:.2f}"
            for name, one in found.items()
        )
        print(f"{scale:16} {found['slurm'].waits[scale].jobs:6} jobs  {waits}")
    if options.json:
        print(
            json.dumps({"longest_limit_h": longest_h, **{name: asdict(one) for name, one in found.items()}})
        )
    if any(one.never_started or one.longest_as_first_h > longest_h for one in found.values()):
        raise SystemExit("a job never started, or waited too long as the first of the queue")


if __name__ == "__main__":
    main()
