"""Compare slurm-gpud with a known load and with other tools on this machine's GPU.

    .venv/bin/python bench/real_gpu.py [--gpu 0] [--seconds 12] [--idle-seconds 30] [--json]

Each phase is a job of one GPU, with the hook files that Slurm's prolog and epilog would leave. PyTorch
generates the load and measures kernel times with CUDA events; nvidia-smi is polled at the same time. The run
takes 3 minutes. Without a GPU it prints "skipped" and exits with 0. The exit status is 1 if a difference
exceeds its limit.
With --json the last line is an object.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import arguments

ROOT = Path(__file__).resolve().parent.parent
NODE = "realgpu"
UTIL_POINTS, MEMORY_POINTS, ENERGY_PART = 2.0, 1.0, 0.05
# (part of the time in which kernels run, MiB taken)
PHASES = ((0.0, 2000), (0.25, 8000), (0.5, 16000), (1.0, 30000))
OLD_S = 205.0
POLL_MS = 200
WITHIN_S = 30.0
READY_WITHIN_S = 120.0


class Daemon:
    """slurm-gpud as on a node, except that it prints its shipments."""

    def __init__(self, directory: Path, minors: list[int]) -> None:
        self.directory = directory
        self._jobs = directory / "run" / "jobs"
        self._jobs.mkdir(parents=True)
        site = "cluster: bench\ndatabase: http://127.0.0.1:1\n"
        (directory / "site.yaml").write_text(site)
        slurmd = directory / "bin" / "slurmd"
        slurmd.parent.mkdir()
        lines = [
            f"echo 'slurmd: Gres Name=gpu Count=1 File=/dev/nvidia{minor} (null)' >&2\n" for minor in minors
        ]
        slurmd.write_text("#!/bin/sh\n" + "".join(lines))
        slurmd.chmod(0o755)
        command = [sys.executable, "-m", "slurm_gpu.node.main", f"--config={directory}/site.yaml", "--print"]
        command += [f"--node={NODE}", f"--run-dir={directory}/run", f"--state-dir={directory}/state"]
        environment = os.environ | {"PATH": f"{slurmd.parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._records: list[Mapping[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            item = json.loads(line)
            if "record" in item:
                self._records.append(item["record"])

    def hook(self, kind: str, job_id: int, position: int, age_s: float = 0.0) -> None:
        """Write the hook file of a job with one GPU, dated `age_s` ago."""
        at_ns = time.time_ns() - round(age_s * 1e9)
        values = {
            "EVENT": kind,
            "AT_NS": at_ns,
            "UPTIME_S": f"{time.clock_gettime(time.CLOCK_BOOTTIME) - age_s:.2f}",
            "BOOT_ID": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "SLURM_JOB_ID": job_id,
            "SLURM_JOB_UID": os.geteuid(),
            "SLURM_JOB_GPUS": position,
            "SLURMD_NODENAME": NODE,
            "SLURM_CLUSTER_NAME": "bench",
        }
        hidden = self._jobs / f".{at_ns}-{job_id}-{kind}"
        hidden.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        hidden.rename(self._jobs / hidden.name.removeprefix("."))

    def final_record(self, job_id: int) -> Mapping[str, Any]:
        """Return the job's last record, once it exists."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until and self.process.poll() is None:
            for record in self._records:
                if record["job_id"] == job_id and record["final"]:
                    return record
            time.sleep(0.05)
        raise SystemExit(f"no record of job {job_id} came:\n{(self.directory / 'log').read_text()[-3000:]}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(WITHIN_S)


class Smi:
    """nvidia-smi, polled during a phase."""

    QUERY = "utilization.gpu,memory.used,power.draw"

    def __init__(self, uuid: str) -> None:
        self._rows: list[tuple[float, list[float]]] = []
        command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={self.QUERY}", "--format=csv,noheader,nounits"]
        self._process = subprocess.Popen(
            [*command, f"--loop-ms={POLL_MS}"], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._rows.append((time.monotonic(), [float(cell) for cell in line.split(",")]))

    def between(self, start_s: float, end_s: float) -> dict[str, float] | None:
        """Return the means over that time, and the integral of power."""
        rows = [values for at_s, values in self._rows if start_s <= at_s <= end_s]
        if len(rows) < 5:
            return None
        util, memory, power = (statistics.fmean(column) for column in zip(*rows, strict=True))
        return {"util_pct": util, "mem_mib": memory, "energy_j": power * (end_s - start_s)}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@dataclass(frozen=True)
class Difference:
    """The value of slurm-gpud, another value, and the allowed difference."""

    what: str
    ours: float | None
    source: str
    other: float | None
    allowed: float

    @property
    def is_right(self) -> bool:
        return self.other is None or (self.ours is not None and abs(self.ours - self.other) <= self.allowed)


@dataclass(frozen=True)
class Phase:
    """One job of known or unknown load."""

    title: str
    record: Mapping[str, Any]
    differences: tuple[Difference, ...]


def run_phase(
    daemon: Daemon,
    smi: Smi | None,
    gpu: Mapping[str, Any],
    job_id: int,
    phase: tuple[float, int],
    seconds: float,
) -> Phase:
    """Run PyTorch as a job of that load."""
    duty, mib = phase
    command = [sys.executable, str(ROOT / "bench" / "gpu_load.py"), str(duty), str(seconds), str(mib)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu["uuid"]), "SLURM_JOB_ID": str(job_id)}
    load = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert load.stdin is not None
    assert load.stdout is not None
    try:
        ready = json.loads(load.stdout.readline() or "{}")
        if not ready.get("ready"):
            raise SystemExit("the load did not begin, see above")
        time.sleep(1.5)  # the driver's last samples no longer cover the load's preparation
        daemon.hook("prolog", job_id, gpu["position"])
        start_s = time.monotonic()
        load.stdin.write("go\n")
        load.stdin.flush()
        done = json.loads(load.stdout.readline() or "{}")
        daemon.hook("epilog", job_id, gpu["position"])
        end_s = time.monotonic()
        record = daemon.final_record(job_id)
    finally:
        load.kill()
        load.wait()
    allocated_s = record["allocated_s"]
    reported = values_of(record)
    differences = [
        Difference(
            "utilisation %",
            reported["util_pct"],
            "CUDA events",
            100 * done["busy_s"] / allocated_s,
            UTIL_POINTS,
        ),
        Difference(
            "memory MiB",
            reported["mem_mib"],
            "cudaMemGetInfo",
            ready["used_mib"],
            MEMORY_POINTS / 100 * gpu["mib"],
        ),
    ]
    polled = None if smi is None else smi.between(start_s, end_s)
    if polled is not None:
        share = MEMORY_POINTS / 100 * gpu["mib"]
        differences += [
            # nvidia-smi samples only a part of the time, so a difference is printed, but is not a failure.
            Difference("utilisation %", reported["util_pct"], "nvidia-smi", polled["util_pct"], 100.0),
            Difference("memory MiB", reported["mem_mib"], "nvidia-smi", polled["mem_mib"], share),
            Difference(
                "energy J",
                reported["energy_j"],
                "nvidia-smi",
                polled["energy_j"],
                ENERGY_PART * polled["energy_j"],
            ),
        ]
    return Phase(f"matrix products {100 * duty:g} % of the time, {mib} MiB", record, tuple(differences))


def values_of(record: Mapping[str, Any]) -> dict[str, float | None]:
    histogram = {int(percent): ms for percent, ms in (record.get("util_hist_ms") or {}).items()}
    total = sum(histogram.values())
    memory, energy = record.get("mem_used_mib"), record.get("energy_j")
    return {
        "util_pct": sum(percent * ms for percent, ms in histogram.items()) / total if total else None,
        "mem_mib": None if memory is None else memory[1],
        "energy_j": None if energy is None else energy[1],
    }


def idle_cost(daemon: Daemon, gpu: Mapping[str, Any], job_id: int, seconds: float) -> dict[str, float]:
    """Return the CPU use of the daemon for the GPU of a job that is sampled once a second."""
    from bench import processes

    age_s = min(1200.0, time.clock_gettime(time.CLOCK_BOOTTIME) - 1.0)
    daemon.hook("prolog", job_id, gpu["position"], age_s)
    time.sleep(max(3.0, OLD_S - age_s if OLD_S - age_s < 90 else 3.0))
    before = processes.cost(daemon.process.pid)
    time.sleep(seconds)
    after = processes.cost(daemon.process.pid)
    daemon.hook("epilog", job_id, gpu["position"])
    daemon.final_record(job_id)
    return {
        "job_age_s": round(age_s),
        "seconds": seconds,
        "cpu_percent_core": round(processes.percent_of_a_core(before, after), 3),
        "rss_mib": round(after.rss_mib, 1),
        "pss_mib": round(after.pss_mib, 1),
    }


def the_gpus() -> tuple[Any, list[dict[str, Any]]] | str:
    """Return pynvml and its GPUs, or the reason for having none."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    gpus = []
    for index in range(count):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpus.append(
            {
                "position": index,
                "uuid": pynvml.nvmlDeviceGetUUID(handle),
                "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
                "name": pynvml.nvmlDeviceGetName(handle),
                "mib": pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**20,
                "driver": pynvml.nvmlSystemGetDriverVersion(),
            }
        )
    pynvml.nvmlShutdown()
    return (pynvml, gpus) if gpus else "NVML shows no GPU"


@contextlib.contextmanager
def running(directory: Path, gpus: list[dict[str, Any]], uuid: str) -> Iterator[tuple[Daemon, Smi | None]]:
    """Run the daemon, and nvidia-smi if available."""
    daemon = Daemon(directory, [gpu["minor"] for gpu in gpus])
    smi = Smi(uuid) if shutil.which("nvidia-smi") else None
    try:
        time.sleep(2)
        yield daemon, smi
    finally:
        daemon.stop()
        if smi is not None:
            smi.stop()


def show(result: Mapping[str, Any]) -> None:
    print(f"{result['gpu']}, driver {result['driver']}")
    for phase in result["phases"]:
        print(f"{phase['title']}: allocated {phase['allocated_s']:.2f} s, sampled {phase['sampled_s']:.2f} s")
        for line in phase["differences"]:
            other = "-" if line["other"] is None else f"{line['other']:.2f}"
            ours = "-" if line["ours"] is None else f"{line['ours']:.2f}"
            verdict = "" if line["is_right"] else "  WRONG"
            print(f"    {line['what']:14}{ours:>12}   {line['source']:15}{other:>12}{verdict}")
        print(f"    also: {json.dumps(phase['also'])}")
    print(f"{'µs a call':64}{'wall':>9}{'max':>9}{'CPU':>9}")
    for name, times in result["calls"].items():
        if "error" in times:
            print(f"{name:64} {times['error']}")
        else:
            print(f"{name:64}{times['wall_us']:9.1f}{times.get('wall_us_max', 0):9.1f}{times['cpu_us']:9.1f}")
    if "cost" in result:
        cost = result["cost"]
        print(f"slurm-gpud on this GPU with a job {cost['job_age_s']} s old: {json.dumps(cost)}")


ALSO = (
    *("device_util_pct", "mem_util_pct", "sm_active_frac", "sm_occupancy_frac", "tensor_frac", "dram_frac"),
    *("power_w", "temp_c", "sm_clock_mhz", "throttle_s", "processes", "no_process_s", "ecc_corrected"),
    *("ecc_uncorrected", "pcie_rx_bytes", "pcie_tx_bytes", "nvlink_rx_bytes", "nvlink_tx_bytes"),
)


def as_json(phase: Phase) -> dict[str, Any]:
    return {
        "title": phase.title,
        "allocated_s": phase.record["allocated_s"],
        "sampled_s": phase.record["sampled_s"],
        "differences": [
            {
                "what": d.what,
                "ours": d.ours,
                "source": d.source,
                "other": d.other,
                "allowed": d.allowed,
                "is_right": d.is_right,
            }
            for d in phase.differences
        ],
        "also": {name: phase.record[name] for name in ALSO if name in phase.record},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="slurm-gpud against independent sources on a real GPU.")
    parser.add_argument("--gpu", type=arguments.number(0), default=0, help="NVML's index (default 0)")
    parser.add_argument("--seconds", type=arguments.seconds(2), default=12, help="of each load (default 12)")
    idle_help = "of measuring the daemon (default 30)"
    parser.add_argument("--idle-seconds", type=arguments.seconds(1), default=30, help=idle_help)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    found = the_gpus()
    if isinstance(found, str):
        print(f"skipped: {found}")
        if options.json:
            print(json.dumps({"skipped": True, "why": found}))
        return 0
    pynvml, gpus = found
    if options.gpu >= len(gpus):
        parser.error(f"--gpu {options.gpu}: NVML shows {len(gpus)} GPUs here, numbered from 0")
    from bench import nvml_calls

    gpu = gpus[options.gpu]
    result: dict[str, Any] = {"skipped": False, "gpu": gpu["name"], "driver": gpu["driver"], "phases": []}
    starting = nvml_calls.measure_start()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(options.gpu)
    result["calls"] = {"nvmlInit + nvmlShutdown": starting, **nvml_calls.measure(handle)}
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        print("no load is generated: PyTorch is not installed", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(prefix="slurm-gpu-bench-") as directory,
        running(Path(directory), gpus, gpu["uuid"]) as (daemon, smi),
    ):
        for job_id, load in enumerate(PHASES if has_torch else (), start=1):
            phase = run_phase(daemon, smi, gpu, job_id, load, options.seconds)
            result["phases"].append(as_json(phase))
        if smi is not None:
            smi.stop()
        if importlib.util.find_spec("psutil") is not None:
            result["cost"] = idle_cost(daemon, gpu, 100, options.idle_seconds)
        log = (Path(directory) / "log").read_text()
    show(result)
    print(f"slurm-gpud's log:\n{log.strip()}", file=sys.stderr)
    if options.json:
        print(json.dumps(result))
    return 0 if all(line["is_right"] for phase in result["phases"] for line in phase["differences"]) else 1


if __name__ == "__main__":
    sys.exit(main())
