"""Measure the cost of sampling 8 GPUs with 8 jobs every second: slurm-gpud, and two plain loops.

    .venv/bin/python bench/sampler.py [--seconds 60] [--turns 3] [--gpus 8] [--json]

The benchmark needs no cluster: the GPUs are simulated below the real NVML binding, and all other code is that
of a real node. The alternatives run in turn; CPU time includes all their processes, even if they have ended.
With --json the last line is {"cpu_percent_core": …, "rss_mib": …, "bytes_per_job_gpu": …, …}.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import arguments, long_job, processes
from bench.simulated_node import ROOT, SimulatedNode, simulated_node
from lab.nvml.call_times import FILE as CALL_TIMES
from lab.nvml.call_times import call_times
from lab.simgpu.calls import set_times
from lab.simgpu.layout import MAX_DEVICES

WARM_UP_S = 6.0
YOUNG_S = 10.0
# A job is sampled less often as it ages: from 200 s on, once per interval.
OLD_S = 1200.0
SHIPPED_WITHIN_S = 10.0
NVML_HELP = "durations of NVML's calls: usual (default), worst case, or none"
BUDGET = {"cpu_percent_core": 0.5, "rss_mib": 40.0, "bytes_per_job_gpu": 3000.0}
TITLES = {
    "slurm-gpud": "slurm-gpud",
    "young": f"  its jobs' first {YOUNG_S:g} s",
    "poll": "plain pynvml loop",
    "fork": "loop that forks a query",
}


@dataclass(frozen=True)
class Window:
    """One alternative during one interval; `nvml` is the number of calls of each NVML function per second."""

    cpu_percent: float
    rss_mib: float
    pss_mib: float
    processes: int
    nvml: dict[str, float]

    @property
    def calls_per_s(self) -> float:
        return sum(self.nvml.values())


def watch(node: SimulatedNode, pid: int, seconds: float) -> Window:
    """Measure a process for `seconds`."""
    before, calls_before = processes.cost(pid), node.world.calls()
    time.sleep(seconds)
    after, calls = processes.cost(pid), node.world.calls()
    return Window(
        processes.percent_of_a_core(before, after),
        after.rss_mib,
        after.pss_mib,
        after.processes,
        {
            name: (count - calls_before[name]) / (after.at_s - before.at_s)
            for name, count in calls.items()
            if count > calls_before[name]
        },
    )


class Bench:
    """One node on which the alternatives take turns."""

    def __init__(self, node: SimulatedNode, window_s: float) -> None:
        self.node, self.window_s = node, window_s
        self.windows: dict[str, list[Window]] = {name: [] for name in TITLES}
        self.shipped: list[float] = []
        self.long_job_bytes = long_job.shipped_bytes()
        self._query = node.directory / "query_gpus"
        source = ROOT / "bench" / "query_gpus.c"
        subprocess.run(["cc", "-O2", "-Wall", "-o", self._query, source, node.library], check=True)

    def turn(self) -> None:
        """Run every alternative once."""
        with self.node.daemon(job_age_s=OLD_S) as daemon:
            time.sleep(WARM_UP_S)
            self.windows["slurm-gpud"].append(watch(self.node, daemon.pid, self.window_s))
            self.shipped.append(self._bytes_of_final_records())
        with self.node.daemon(job_age_s=None) as daemon:
            time.sleep(WARM_UP_S)
            self.node.hooks("prolog")
            self.windows["young"].append(watch(self.node, daemon.pid, YOUNG_S))
        for name, words in (("poll", ["poll"]), ("fork", ["fork", str(self._query)])):
            with self._loop(words) as process:
                time.sleep(WARM_UP_S)
                self.windows[name].append(watch(self.node, process.pid, self.window_s))

    def _bytes_of_final_records(self) -> float:
        """End all jobs, and return the bytes sent for each."""
        before = len(self.node.sink.shipments)
        self.node.hooks("epilog")
        until = time.monotonic() + SHIPPED_WITHIN_S
        while True:
            new = self.node.sink.shipments[before:]
            final = sum(record["final"] for shipment in new for record in shipment.content["records"])
            if final == self.node.gpus:
                with_records = [shipment for shipment in new if shipment.content["records"]]
                return sum(shipment.body for shipment in with_records) / self.node.gpus
            if time.monotonic() > until:
                raise SystemExit(f"only {final} final records came within {SHIPPED_WITHIN_S:g} s")
            time.sleep(0.1)

    @contextlib.contextmanager
    def _loop(self, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, str(ROOT / "bench" / "plain_loops.py"), *words]
        process = subprocess.Popen(command, env=self.node.environment)
        try:
            yield process
            if process.poll() is not None:
                raise SystemExit(f"{command}: exit status {process.returncode}")
        finally:
            process.terminate()
            process.wait()

    def figures(self, name: str) -> dict[str, float]:
        """Return the median of the turns of one alternative."""
        windows = self.windows[name]
        return {
            "cpu_percent_core": round(statistics.median(window.cpu_percent for window in windows), 3),
            "cpu_percent_core_best": round(min(window.cpu_percent for window in windows), 3),
            "rss_mib": round(statistics.median(window.rss_mib for window in windows), 1),
            "pss_mib": round(statistics.median(window.pss_mib for window in windows), 1),
            "nvml_calls_per_s": round(statistics.median(window.calls_per_s for window in windows), 1),
        }


def results(bench: Bench) -> dict[str, Any]:
    """Return the values of --json."""
    figures = {name: bench.figures(name) for name in TITLES}
    ours = figures["slurm-gpud"]
    ratios = {
        f"{name}_over_ours": {
            key: round(figures[name][key] / ours[key], 2) for key in ("cpu_percent_core", "rss_mib")
        }
        for name in ("poll", "fork")
    }
    return {
        "cpu_percent_core": ours["cpu_percent_core"],
        "rss_mib": ours["rss_mib"],
        "bytes_per_job_gpu": round(max(*bench.shipped, bench.long_job_bytes)),
        "bytes_per_young_job_gpu": round(max(bench.shipped)),
        "young_cpu_percent_core": figures["young"]["cpu_percent_core"],
        **ratios,
        "alternatives": figures,
    }


def show(bench: Bench, result: dict[str, Any]) -> None:
    gpus, window_s, turns = bench.node.gpus, bench.window_s, len(bench.shipped)
    print(f"{gpus} GPUs, {gpus} jobs {OLD_S:g} s old, 1 Hz; median of {turns} turns of {window_s:g} s")
    print(
        "jobs are in cgroups"
        if bench.node.has_cgroups
        else "jobs are identified by their environment: no cgroup v1"
    )
    print(f"{'':26}{'% of a core':>12}{'RSS MiB':>9}{'PSS MiB':>9}{'NVML calls/s':>14}")
    for name, title in TITLES.items():
        row = result["alternatives"][name]
        print(
            f"{title:26}{row['cpu_percent_core']:12.3f}{row['rss_mib']:9.1f}{row['pss_mib']:9.1f}"
            f"{row['nvml_calls_per_s']:14.1f}"
        )
    print(
        f"a shipment's bytes for a job's GPU: {result['bytes_per_young_job_gpu']} for these, "
        f"{bench.long_job_bytes} after {long_job.HOURS:g} h of changing load"
    )
    for key, limit in BUDGET.items():
        verdict = "within" if result[key] <= limit else "OVER"
        print(f"{key}: {result[key]:g}, {verdict} the budget of {limit:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU, memory and bytes of slurm-gpud, next to plain loops.")
    parser.add_argument(
        "--seconds", type=arguments.seconds(1), default=60, help="measured time of each (default 60)"
    )
    parser.add_argument(
        "--turns", type=arguments.number(1), default=3, help="number of turns in that time (default 3)"
    )
    parser.add_argument(
        "--gpus", type=arguments.number(1, MAX_DEVICES), default=8, help="GPUs, with a job each (default 8)"
    )
    parser.add_argument("--nvml", choices=("usual", "upper", "none"), default="usual", help=NVML_HELP)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    if options.seconds < options.turns:
        parser.error(f"--seconds {options.seconds:g}: each of the {options.turns} turns takes at least 1 s")
    with (
        tempfile.TemporaryDirectory(prefix="slurm-gpu-bench-") as directory,
        simulated_node(Path(directory), options.gpus) as node,
    ):
        # Compile the modules, as an installation does; otherwise memory includes their compilation.
        compileall.compile_dir(ROOT / "slurm_gpu", quiet=1)
        if options.nvml != "none":
            set_times(node.world, call_times(upper=options.nvml == "upper"))
        bench = Bench(node, options.seconds / options.turns)
        for turn in range(options.turns):
            print(f"turn {turn + 1} of {options.turns} ...", file=sys.stderr)
            bench.turn()
    result = {**results(bench), "nvml_call_times": options.nvml}
    show(bench, result)
    if options.nvml != "none":
        print(f"NVML's calls took as long as real ones do ({options.nvml}): {CALL_TIMES.relative_to(ROOT)}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
