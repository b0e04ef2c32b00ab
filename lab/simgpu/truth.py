"""The true values of simulated work: how each process used each GPU, computed only from its schedule.

simgpu writes one file per process and GPU when it starts and again when it ends, without reading NVML.
``usage`` integrates the files over an interval, for comparison with records.

The definitions are those of docs/contracts.md. Utilisation is each process's share of the device's
utilisation; processes that request more than 100 % together are reduced in proportion. Used memory is a
fraction of the GPU's memory and excludes the memory that the driver reserves, as in MemoryInfo_v2. Outside
its schedule a process counts as 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .load import FULL, USUAL, Activity, Footprint, Part, Point, integrate

_PREFIX = "simgpu-"


@dataclass(frozen=True)
class ProcessTruth:
    """One process on one GPU or MIG instance."""

    job_id: int | None
    restart: int
    node: str
    # ``GPU-…`` or ``MIG-…``.
    uuid: str
    # The total memory of the GPU or instance.
    memory_mib: int
    pid: int
    # Absolute wall-clock times in ns.
    points: tuple[Point, ...]
    # The end time; None while the process runs, and also later if SIGKILL ended the process.
    end_ns: int | None = None
    # The cause of the end: ``schedule``, or the name of the signal.
    ended_by: str | None = None
    activity: Activity = USUAL
    footprint: Footprint = FULL

    def killed_at(self, end_s: float) -> ProcessTruth:
        """Return the same process with an end at ``end_s`` (epoch seconds) if it has none."""
        return self if self.end_ns is not None else replace(self, end_ns=round(end_s * 1e9))

    @property
    def path_name(self) -> str:
        """The name of the process's file, which does not change when the process ends."""
        run = f"{self.job_id}-{self.restart}-{self.node}"
        return f"{_PREFIX}{run}-{self.pid}-{self.points[0].time_ns}-{self.uuid}.json"

    def write(self, directory: Path) -> None:
        """Write or replace the file."""
        new = directory / f".{self.path_name}"
        new.write_text(json.dumps(asdict(self)) + "\n")
        new.replace(directory / self.path_name)


_NOTHING = Activity(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Usage:
    """Mean values over an interval; without any process, the values are 0, not missing."""

    # The job's share of the GPU's utilisation, the expected uGPUcore.
    util_pct: float
    # The job's memory as a fraction of the GPU's, the expected uGPUmem / 100.
    mem_used_frac: float
    # Utilisation of the GPU by all processes.
    device_util_pct: float
    # Memory used by all processes.
    device_mem_used_frac: float
    # The number of processes of the job in the interval.
    processes: int
    # The GPM metrics of the job's share, as fractions.
    activity: Activity = _NOTHING
    # The metrics of all processes together, as GPM should report them.
    device_activity: Activity = _NOTHING


def job_of_environment(environment: dict[str, str]) -> tuple[int | None, int]:
    """Return (job ID, restart count) of a job's environment; (None, 0) outside of jobs."""
    job_id = environment.get("SLURM_JOB_ID")
    return None if job_id is None else int(job_id), int(environment.get("SLURM_RESTART_COUNT", "0"))


def load(directory: Path) -> list[ProcessTruth]:
    """Read all files of a lab."""
    return [_read(path) for path in sorted(directory.glob(f"{_PREFIX}*.json"))]


def _read(path: Path) -> ProcessTruth:
    fields = json.loads(path.read_text())
    fields["points"] = tuple(Point(*point) for point in fields["points"])
    fields["activity"] = Activity(*fields["activity"])
    fields["footprint"] = Footprint(*fields["footprint"])
    return ProcessTruth(**fields)


def usage(
    processes: Iterable[ProcessTruth],
    *,
    job_id: int,
    uuid: str,
    start_s: float,
    end_s: float,
    restart: int | None = None,
) -> Usage:
    """Return the use of GPU ``uuid`` by job ``job_id`` between two epoch times.

    If ``restart`` is None, any run of the job counts. A process killed by SIGKILL counts until the end of its
    schedule; set its true end with ``killed_at``.
    """
    if not start_s < end_s:
        raise ValueError(f"interval from {start_s} to {end_s}: must end after it starts")
    start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
    present = [
        process
        for process in processes
        if process.uuid == uuid and process.points[0].time_ns < end_ns and _part(process).end_ns > start_ns
    ]
    if not present:
        return Usage(0.0, 0.0, 0.0, 0.0, 0)
    whole = integrate([_part(process) for process in present], start_ns, end_ns)
    own = [
        index
        for index, process in enumerate(present)
        if process.job_id == job_id and (restart is None or process.restart == restart)
    ]
    width = end_ns - start_ns
    memory = width * present[0].memory_mib

    def activity(indices: Iterable[int]) -> Activity:
        shares = [(whole.shares[index] / width / 100, present[index].activity) for index in indices]
        return Activity(*(sum(share * each[kind] for share, each in shares) for kind in range(len(USUAL))))

    return Usage(
        util_pct=sum(whole.shares[index] for index in own) / width,
        mem_used_frac=sum(whole.memory[index] for index in own) / memory,
        device_util_pct=whole.busy / width,
        device_mem_used_frac=sum(whole.memory) / memory,
        processes=len({present[index].pid for index in own}),
        activity=activity(own),
        device_activity=activity(range(len(present))),
    )


def _part(process: ProcessTruth) -> Part:
    return Part(process.points, process.end_ns)


def default_directory() -> Path:
    """Return the truth directory of the lab that SLURM_GPU_LAB_DIR names."""
    return lab_directory() / "truth"


def lab_directory() -> Path:
    """Return the lab's directory."""
    return Path(os.environ.get("SLURM_GPU_LAB_DIR", "/run/slurm-gpu-lab"))
