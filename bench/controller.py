"""Measure the cost of slurm-gpuctld and of its requests to slurmctld, with N pending jobs.

    .venv/bin/python bench/controller.py [--queued 0,10000] [--seconds 30] [--json]

The benchmark starts its own lab (requires root; no other lab may be up). slurmctld's time is that of the RPCs
for jobs in sdiag, one per snapshot. With --json the last line is {"0": {"snapshots_per_s": …, "core_pct": …,
"rss_mib": …, "slurmctld_ms": …, "slurmctld_pct": …, "bytes": …}, …}.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import arguments
from bench.own_lab import own_lab
from bench.processes import cost, percent_of_a_core
from bench.submit import Bench
from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.controller.snapshot.snapshot_file import parse

_SETTLED_S = 5
_JOB_INFO = re.compile(r"REQUEST_JOB_INFO\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:(\d+)")


def measure(lab: Lab, seconds: float) -> dict[str, float]:
    """Measure the daemon for `seconds`."""
    daemon, path = lab.daemons["slurm-gpuctld"], lab.layout.controller_run / "snapshot.txt"
    wait_for(lambda: daemon.pid is not None and path.exists(), 60, "slurm-gpuctld writes")
    time.sleep(_SETTLED_S)
    pid = daemon.pid
    assert pid is not None
    lab.run_as("root", ["sdiag", "--reset"])
    before, generations = cost(pid), set[int]()
    while time.monotonic() - before.at_s < seconds:
        generations.add(parse(path.read_text()).generation)
        time.sleep(0.2)
    after = cost(pid)
    found = _JOB_INFO.search(lab.output(["sdiag"]))
    count, average_us = (0, 0) if found is None else (int(found[1]), int(found[2]))
    elapsed_s = after.at_s - before.at_s
    return {
        "snapshots_per_s": round((len(generations) - 1) / elapsed_s, 2),
        "core_pct": round(percent_of_a_core(before, after), 2),
        "rss_mib": round(after.rss_mib, 1),
        "slurmctld_ms": round(average_us / 1000, 2),
        "slurmctld_pct": round(count * average_us / 1e6 / elapsed_s * 100, 3),
        "bytes": path.stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of slurm-gpuctld.")
    parser.add_argument(
        "--queued", type=arguments.numbers, default="0,10000", help="sizes of the queue (default 0,10000)"
    )
    parser.add_argument(
        "--seconds", type=arguments.seconds(1), default=30.0, help="time for each size (default 30)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with own_lab() as (lab, directory):
        bench = Bench(lab, directory)
        bench.prepare_scripts()
        for size in options.queued:
            print(f"queueing {size} jobs ...", file=sys.stderr)
            bench.fill(size)
            bench.start("ours")
            results[str(size)] = measure(lab, options.seconds)
    for size, values in results.items():
        print(f"{size:>8} queued  " + "  ".join(f"{name} {value}" for name, value in values.items()))
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
