"""Measure the cost of slurm-gpuctld for a slurmctld with N simulated nodes and M changing jobs.

    .venv/bin/python bench/controller_cost.py [--nodes 1000] [--jobs 10000] [--seconds 60] [--rounds 2]

The benchmark starts its own lab (requires root; no other lab may be up). The nodes have eight GPUs each and
no slurmd: they are CLOUD nodes in Slurm's state POWERING_UP. Jobs are placed, keep their GPUs, and end when
they are cancelled, some every second. The alternatives run in turn, for `--seconds` each:

none      no slurm-gpuctld
observe   slurm-gpuctld reads jobs and nodes, and logs the weights that it would set
enforce   slurm-gpuctld sets the weights of nodes

Printed for each: RPCs per minute by type, from sdiag; slurmctld's time for RPCs of SlurmUser; CPU time of
slurm-gpuctld and the commands that it runs, and its memory; the time of slurmctld's main scheduling cycle;
and submissions per second. With --json the last line is {"none": {"rpc_per_min": {…}, "rpc_per_min_total": …,
"slurmctld_pct": …, "core_pct": …, "rss_mib": …, "cycle_us": …, "submit_per_s": …, "submit_to_none": …},
"observe": …, "enforce": …, "nodes": …, "jobs": …, "weight_calls_per_min": …}.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import yaml

from bench import arguments
from bench.own_lab import own_lab
from bench.processes import cost, percent_of_a_core
from bench.submit import Bench
from lab.cluster import Lab
from lab.errors import LabError
from lab.options import JobSubmit
from lab.polling import wait_for

MODES = ("none", "observe", "enforce")
GPUS = 8
CHURN_PER_S = 2
"""Number of jobs that end, and of jobs that start, each second."""
WHOLE = 0.6
"""The fraction of nodes with one job on all their GPUs at the start."""
SMALL = 0.2
"""The fraction of GPUs with a single-GPU job at the start. All other GPUs are free."""
SETTLED_S = 15
SUBMITTED, SUBMITTERS = 250, 4
_USER_RPC = re.compile(
    r"^\s*slurm\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE
)
_KIND_RPC = re.compile(r"^\s*(REQUEST_\w+)\s+\(\s*\d+\)\s+count:(\d+)", re.MULTILINE)
_CYCLE = re.compile(r"Main schedule statistics.*?Mean cycle:\s+(\d+)", re.DOTALL)
_ASKED = (
    "REQUEST_JOB_INFO",
    "REQUEST_PARTITION_INFO",
    "REQUEST_NODE_INFO",
    "REQUEST_BUILD_INFO",
    "REQUEST_UPDATE_NODE",
)
"""The RPC types of slurm-gpuctld; the load uses others."""


def slurm_conf(nodes: int) -> tuple[str, ...]:
    """Return the lines of nodes that never respond, although Slurm starts jobs on them."""
    return (
        f"NodeName=s[0001-{nodes:04}] CPUs=64 RealMemory=512000 Gres=gpu:a100:{GPUS} State=CLOUD",
        f"PartitionName=big Nodes=s[0001-{nodes:04}] MaxTime=INFINITE State=UP",
        "SuspendProgram=/bin/true",
        "ResumeProgram=/bin/true",
        "ResumeTimeout=65000",
        "ResumeRate=0",
        "SuspendTime=-1",
        "PrivateData=cloud",
    )


class Cluster:
    """The lab with its simulated nodes, and the jobs on them."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab, self._random = lab, random.Random(seed)

    def submit(self, jobs: int, gpus: int, *options: str) -> None:
        """Submit arrays of jobs with `gpus` GPUs of one node each, instead of thousands of calls."""
        while jobs:
            n = min(jobs, 5000)
            self.lab.submit(
                "alice",
                f"--array=0-{n - 1}",
                "--partition=big",
                "--nodes=1",
                f"--gpus={gpus}",
                f"--cpus-per-task={6 * gpus}",
                "--time=7-0",
                "--output=/dev/null",
                *options,
                script="#!/bin/sh\nexec sleep 604800\n",
            )
            jobs -= n

    def running(self) -> list[str]:
        return self.lab.output(["squeue", "-h", "-t", "R,CF", "-p", "big", "-r", "-o", "%A"]).split()

    def churn(self, seconds: float) -> None:
        """Cancel random jobs for `seconds` and submit others, which Slurm places."""
        end = time.monotonic() + seconds
        jobs = self.running()
        self._random.shuffle(jobs)
        while time.monotonic() < end:
            began = time.monotonic()
            self.lab.run_as("root", ["scancel", *(jobs.pop() for _ in range(CHURN_PER_S))])
            self.submit(CHURN_PER_S, 1)
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

    def switch_to(self, mode: str) -> None:
        """Run slurm-gpuctld in this mode, or not at all."""
        daemon = self.lab.daemons["slurm-gpuctld"]
        daemon.stop(60)
        if mode != "none":
            path = self.lab.layout.site_file
            site = yaml.safe_load(path.read_text()) | {"placement": {"mode": mode, "partitions": ["big"]}}
            path.write_text(yaml.safe_dump(site))
            daemon.start()

    def sdiag(self) -> str:
        return self.lab.output(["sdiag"])


def watch(cluster: Cluster, bench: Bench, mode: str, seconds: float) -> dict[str, Any]:
    """Measure one turn of one alternative."""
    cluster.switch_to(mode)
    cluster.churn(SETTLED_S)
    pid = cluster.lab.daemons["slurm-gpuctld"].pid
    cluster.lab.run_as("root", ["sdiag", "--reset"])
    began, before = time.monotonic(), None if pid is None else cost(pid)
    cluster.churn(seconds)
    after, elapsed_s = None if pid is None else cost(pid), time.monotonic() - began
    sdiag = cluster.sdiag()
    rpc = {kind: int(n) / elapsed_s * 60 for kind, n in _KIND_RPC.findall(sdiag) if kind in _ASKED}
    by_user = _USER_RPC.search(sdiag)
    cycle = _CYCLE.search(sdiag)
    per_s = bench.submit(SUBMITTED, SUBMITTERS, "noop")
    cluster.lab.run_as("root", ["scancel", "--name=noop"])
    wait_for(
        lambda: "noop" not in cluster.lab.output(["squeue", "-h", "-p", "gpu", "-o", "%j"]),
        120,
        "all noop jobs end",
    )
    return {
        "rpc_per_min": rpc,
        "slurmctld_pct": 0.0 if by_user is None else int(by_user[2]) / 1e6 / elapsed_s * 100,
        "core_pct": 0.0 if before is None or after is None else percent_of_a_core(before, after),
        "rss_mib": 0.0 if after is None else after.rss_mib,
        "cycle_us": 0.0 if cycle is None else float(cycle[1]),
        "submit_per_s": per_s,
    }


def summary(turns: list[Mapping[str, Any]], none: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means of the turns of one alternative."""
    kinds = sorted({kind for turn in turns for kind in turn["rpc_per_min"]})
    rpc = {
        kind: round(statistics.fmean(turn["rpc_per_min"].get(kind, 0) for turn in turns), 1) for kind in kinds
    }

    def mean(key: str, digits: int) -> float:
        return round(statistics.fmean(turn[key] for turn in turns), digits)

    ratios = [turn["submit_per_s"] / other["submit_per_s"] for turn, other in zip(turns, none, strict=True)]
    return {
        "rpc_per_min": rpc,
        "rpc_per_min_total": round(sum(rpc.values()), 1),
        "slurmctld_pct": mean("slurmctld_pct", 3),
        "core_pct": mean("core_pct", 2),
        "rss_mib": mean("rss_mib", 1),
        "cycle_us": mean("cycle_us", 0),
        "submit_per_s": mean("submit_per_s", 0),
        "submit_to_none": round(statistics.fmean(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of slurm-gpuctld for a large slurmctld.")
    parser.add_argument(
        "--nodes", type=arguments.number(1, 9999), default=1000, help="simulated nodes (default 1000)"
    )
    parser.add_argument(
        "--jobs", type=arguments.number(1), default=10_000, help="jobs in the queue (default 10000)"
    )
    parser.add_argument(
        "--seconds", type=arguments.seconds(1), default=60.0, help="length of a turn (default 60)"
    )
    parser.add_argument("--rounds", type=arguments.number(1), default=2, help="number of turns (default 2)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    turns: dict[str, list[Mapping[str, Any]]] = {mode: [] for mode in MODES}
    with own_lab(job_submit=JobSubmit.NOOP, extra_slurm_conf=slurm_conf(options.nodes)) as (lab, directory):
        cluster, bench = Cluster(lab, 1), Bench(lab, directory)
        print(f"starting jobs, {options.jobs} in all ...", file=sys.stderr)
        large, small = int(options.nodes * WHOLE), int(options.nodes * GPUS * SMALL)
        if large + small > options.jobs:
            parser.error(f"--jobs: {options.jobs} are fewer than the {large + small} that run at first")
        cluster.submit(large, GPUS)
        cluster.submit(small, 1)
        cluster.submit(options.jobs - large - small, 1, "--begin=now+1day")
        wanted = large + small
        wait_for(lambda: len(cluster.running()) >= wanted * 0.98, 900, "jobs start", interval_s=5)
        for number in range(options.rounds):
            for mode in MODES if number % 2 == 0 else reversed(MODES):
                turns[mode].append(watch(cluster, bench, mode, options.seconds))
                print(f"{mode:<8} {turns[mode][-1]}", file=sys.stderr)
        cluster.switch_to("none")
    results: dict[str, Any] = {mode: summary(turns[mode], turns["none"]) for mode in MODES}
    print(f"{options.nodes} nodes, {options.jobs} jobs, {CHURN_PER_S} start and end each second")
    for mode, row in results.items():
        kinds = ", ".join(f"{kind.removeprefix('REQUEST_')} {n:g}" for kind, n in row["rpc_per_min"].items())
        print(
            f"{mode:<8} {row['core_pct']:5.2f} % of a core, {row['rss_mib']:.0f} MiB; "
            f"{row['rpc_per_min_total']:g} RPCs a minute ({kinds}), slurmctld {row['slurmctld_pct']:.2f} % "
            f"of the time; main cycle {row['cycle_us']:.0f} us; {row['submit_per_s']:.0f} submissions a "
            f"second ({row['submit_to_none']:.3f} of none)"
        )
    if options.json:
        more = {"nodes": options.nodes, "jobs": options.jobs}
        calls = results["enforce"]["rpc_per_min"].get("REQUEST_UPDATE_NODE", 0)
        print(json.dumps(results | more | {"weight_calls_per_min": calls}))


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        sys.exit(str(error))
