"""Measure the time of the cluster model for a number of jobs on a number of nodes, and print JSON.

The load is generated (seeded): jobs of one GPU to sixteen nodes by 300 users with running limits, on nodes
with eight GPUs. A `--load` above 1 requests more than the capacity, so that the queue grows to the end;
`--shapes` varies CPUs, memory and time limits as users do. Scheduling is as in Slurm: backfill every 30 s,
500 jobs deep.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import replace

import numpy as np

from slurm_gpu.simulate.cluster import ModelCluster, ModelNode, ModelPartition
from slurm_gpu.simulate.jobs import Jobs, ResourceRequest
from slurm_gpu.simulate.limits import LimitCounter, Resource
from slurm_gpu.simulate.model import simulate
from slurm_gpu.simulate.scheduler import Scheduling

GPUS_PER_NODE = 8
REQUESTS = tuple(
    ResourceRequest(nodes=nodes, gpus=gpus, cpus=8 * gpus, memory_mib=64000 * gpus)
    for nodes, gpus in ((1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (16, 8))
)
SHARES = (0.45, 0.15, 0.13, 0.12, 0.09, 0.03, 0.02, 0.01)
LIMITS_S = np.array([1, 4, 12, 24, 72]) * 3600.0


def make_jobs(n: int, n_gpus: int, n_users: int, load: float, seed: int, shapes: int = 1) -> Jobs:
    """Generate jobs with `shapes` kinds of requests; `load` is requested ÷ available GPU-hours."""
    random = np.random.default_rng(seed)
    request = random.choice(len(REQUESTS), size=n, p=SHARES).astype(np.int32)
    run_s = np.clip(random.lognormal(7.5, 1.6, n), 10, LIMITS_S[-1]).round()
    limit_s = LIMITS_S[
        np.minimum(np.searchsorted(LIMITS_S, run_s * random.uniform(1, 4, n)), len(LIMITS_S) - 1)
    ]
    requests = REQUESTS
    if shapes > 1:
        variant = random.integers(0, shapes, n)
        requests = tuple(
            replace(one, cpus=one.cpus - shape % (one.cpus // 2), memory_mib=one.memory_mib - 1000 * shape)
            for one in REQUESTS
            for shape in range(shapes)
        )
        request = (request * shapes + variant).astype(np.int32)
        limit_s = limit_s - 60.0 * random.integers(0, shapes, n)
        run_s = np.minimum(run_s, limit_s)
    gpus = np.array([one.mgpu / 1000 for one in requests])[request]
    span_s = float((run_s * gpus).sum() / (n_gpus * load))
    user = np.minimum(random.zipf(1.3, n) - 1, n_users - 1).astype(np.int32)
    return Jobs(
        submit_s=np.sort(random.uniform(0, span_s, n)).round(),
        run_s=run_s,
        limit_s=limit_s,
        priority=np.zeros(n),
        cancel_s=np.full(n, np.inf),
        request=request,
        partition=np.zeros(n, dtype=np.int32),
        counters=user,
        qos=np.zeros(n, dtype=np.int32),
        requests=requests,
        counter_sets=tuple((index,) for index in range(n_users)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=1200)
    parser.add_argument("--users", type=int, default=300)
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--shapes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    nodes = tuple(
        ModelNode(name=f"n{i}", gpus=GPUS_PER_NODE, cpus=128, memory_mib=1_000_000)
        for i in range(options.nodes)
    )
    cluster = ModelCluster(nodes, (ModelPartition("gpu", tuple(range(options.nodes))),))
    jobs = make_jobs(
        options.jobs, cluster.total_gpus, options.users, options.load, options.seed, options.shapes
    )
    most = {Resource.MGPU: cluster.total_gpus * 1000 // 4}
    counters = [LimitCounter(f"user{i}", most) for i in range(options.users)]
    began, cpu_began = time.monotonic(), time.process_time()
    outcome = simulate(
        cluster, jobs, scheduling=Scheduling(backfill_every_s=30, depth=500), counters=counters
    )
    took_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    waits_h = (outcome.start_s - jobs.submit_s) / 3600
    print(
        json.dumps(
            {
                "jobs": len(jobs),
                "nodes": options.nodes,
                "simulate_s": round(took_s, 1),
                "cpu_s": round(cpu_s, 1),
                "jobs_per_s": round(len(jobs) / took_s),
                "simulated_days": round(float(np.nanmax(outcome.end_s)) / 86400, 1),
                "wait_h_mean": round(float(np.nanmean(waits_h)), 2),
                "wait_h_p95": round(float(np.nanquantile(waits_h, 0.95)), 2),
                "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            }
        )
    )


if __name__ == "__main__":
    main()
