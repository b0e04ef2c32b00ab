"""Measure by how much prolog and epilog delay a job, compared with starting an empty shell.

    .venv/bin/python bench/hooks.py [--runs 200] [--shell /bin/sh] [--json]

With --json the last line is {"prolog_ms_median": …, "epilog_ms_median": …, "sh_ms_median": …}.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import arguments

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    "SLURM_JOB_UID": "1001",
    "SLURM_JOB_GID": "1001",
    "SLURM_JOB_USER": "alice",
    "SLURM_JOB_ACCOUNT": "vision",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "GPU_DEVICE_ORDINAL": "0,1,2,3,4,5,6,7",
    "SLURMD_NODENAME": "n1",
    "SLURM_CLUSTER_NAME": "neuron",
    "SLURM_NODELIST": "n[1-64]",
    "SLURM_JOB_CPUS_PER_NODE": "32(x64)",
    "SLURM_JOB_WORK_DIR": "/home/alice/experiments/2026-11/run-17",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
}


def milliseconds(command: list[str], environment: Mapping[str, str]) -> float:
    """Return the wall time of one run, from spawn to exit."""
    start = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter() - start) * 1000
    if status != 0:
        raise SystemExit(f"{command}: exit status {os.waitstatus_to_exitcode(status)}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of the prolog and epilog hooks.")
    parser.add_argument("--runs", type=arguments.number(2), default=200, help="runs of each (default 200)")
    parser.add_argument(
        "--shell", type=arguments.program, default="/bin/sh", help="shell of the hooks (default /bin/sh)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        commands = {
            "sh": [options.shell, "-c", ":"],
            "prolog": [options.shell, str(ROOT / "prolog" / "10-slurm-gpu")],
            "epilog": [options.shell, str(ROOT / "epilog" / "10-slurm-gpu")],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        # In turn, so that other load affects all three equally.
        for run in range(options.runs):
            environment = ENVIRONMENT | {"SLURM_GPU_RUN_DIR": directory, "SLURM_JOB_ID": str(run + 1)}
            for name, command in commands.items():
                times[name].append(milliseconds(command, environment))
        written = len(list(Path(directory, "jobs").iterdir()))
    if written != 2 * options.runs:
        raise SystemExit(f"the hooks wrote {written} files in {options.runs} runs of each")

    print(f"{'':8}{'median':>10}{'p95':>10}{'max':>10}   ms, {options.runs} runs, {options.shell}")
    for name, values in times.items():
        p95 = statistics.quantiles(values, n=20, method="inclusive")[-1]
        print(f"{name:8}{statistics.median(values):10.2f}{p95:10.2f}{max(values):10.2f}")
    if options.json:
        print(json.dumps({f"{n}_ms_median": round(statistics.median(times[n]), 3) for n in commands}))


if __name__ == "__main__":
    main()
