"""Records, accounting rows and a Slurm in memory, with defaults for fields that a test does not set."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import AccountingRun, QueuedJob, SlurmNode, SlurmSettings
from slurm_gpu.wire import DeviceFacts, Host, Mean, Record, Timeline, Total

T0 = 1_780_000_000
CLUSTER = "lab"
SLURM_UID = 64030


class FakeClock:
    """A clock that advances only on request."""

    def __init__(self, wall: float = T0) -> None:
        self.now = wall

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - T0 + 1000

    def boot_id(self) -> str:
        return "boot"


def segment(n: int) -> str:
    return f"{n:016x}"


def record(**given: Any) -> Record:
    """Return a record of ten seconds of a job on one GPU of n1, at 40 %."""
    first_s = given.get("first_s", T0)
    seconds = float(given.get("last_s", first_s + 10) - first_s)
    values: dict[str, Any] = {
        "cluster": CLUSTER,
        "job_id": 1,
        "restart": 0,
        "prolog_s": first_s,
        "node": "n1",
        "boot_id": "boot",
        "segment": segment(1),
        "device": "GPU-1",
        "seq": 1,
        "final": True,
        "first_s": first_s,
        "last_s": first_s + 10,
        "allocated_s": seconds,
        "sampled_s": seconds,
        "util_hist_ms": {40: int(seconds * 1000)},
        "mem_used_frac": Mean(seconds, 0.25, 0.25, 0.25),
        "energy_j": Total(seconds, 1000.0),
    }
    return Record(**{**values, **given})


def idle(**given: Any) -> Record:
    """Return a record without samples, as if the daemon had been down."""
    return record(
        **{"sampled_s": 0.0, "util_hist_ms": None, "mem_used_frac": None, "energy_j": None, **given}
    )


def host(**given: Any) -> Host:
    """Return a host record of ten seconds of a job's GROMACS processes on n1."""
    first_s = given.get("first_s", T0)
    values: dict[str, Any] = {
        "cluster": CLUSTER,
        "job_id": 1,
        "restart": 0,
        "prolog_s": first_s,
        "node": "n1",
        "boot_id": "boot",
        "segment": segment(1),
        "seq": 1,
        "final": True,
        "first_s": first_s,
        "last_s": first_s + 10,
        "cpu_s": 38.5,
        "rss_max_mib": 2048.0,
        "read_bytes": 1 << 30,
        "write_bytes": 0,
        "app": "GROMACS",
        "app_field": "molecular dynamics",
        "app_params": {"input": "water"},
        "container": False,
    }
    return Host(**{**values, **given})


def gpu(**given: Any) -> DeviceFacts:
    """Return the facts of an a100 of n1."""
    values: dict[str, Any] = {
        "uuid": "GPU-1",
        "node": "n1",
        "at_s": T0,
        "name": "NVIDIA A100-SXM4-80GB",
        "minor": 0,
        "index": 0,
        "memory_mib": 81920.0,
        "power_limit_w": 400.0,
        "sm_clock_max_mhz": 1410.0,
        "pcie_bytes_per_s": 31.5e9,
        "nvlink_bytes_per_s": None,
        "pci_bus_id": "00000000:07:00.0",
        "driver": "535.129.03",
    }
    return DeviceFacts(**{**values, **given})


def timeline(*util_pct: float | None, start_s: int = T0, width_s: int = 1) -> Timeline:
    """Return a timeline with the given utilisation."""
    levels = bytes(255 if value is None else round(value * 2.5) for value in util_pct)
    return Timeline(width_s=width_s, start_s=start_s // width_s * width_s, series={"util": levels})


UIDS = {"alice": 1001, "bob": 1002}


def row(**given: Any) -> AccountingRun:
    """Return a completed job of alice with one GPU of n1, for ten seconds from T0."""
    values: dict[str, Any] = {
        "cluster": CLUSTER,
        "job_id": 1,
        "array_job_id": None,
        "array_task": None,
        "het_job_id": None,
        "het_offset": None,
        "sluid": None,
        "name": "train",
        "user": "alice",
        "uid": UIDS.get(given.get("user", "alice")),
        "account": "vision",
        "qos": "normal",
        "partition": "gpu",
        "state": "COMPLETED",
        "exit_code": "0:0",
        "restart": None,
        "submit_s": T0 - 60,
        "eligible_s": T0 - 36,
        "start_s": T0,
        "end_s": T0 + 10,
        "elapsed_s": 10,
        "suspended_s": 0,
        "time_limit_s": 3600,
        "n_nodes": 1,
        "nodes": "n1",
        "tres_requested": {"cpu": 1, "gres/gpu": 1},
        "tres_allocated": {"cpu": 1, "gres/gpu": 1, "gres/gpu:a100": 1},
        "admin_comment": "",
    }
    return AccountingRun(**{**values, **given})


def requeued(job_id: int = 1) -> list[AccountingRun]:
    """Return a job that ran 10 s on n1, was requeued, and ran 10 s on n1 again 30 s later."""
    first = row(job_id=job_id, state="REQUEUED")
    start_s = T0 + 40
    return [
        first,
        first._replace(
            state="COMPLETED",
            submit_s=T0 + 11,
            eligible_s=T0 + 30,
            start_s=start_s,
            end_s=start_s + 10,
        ),
    ]


def queued(**given: Any) -> QueuedJob:
    """Return a running job of alice on n1."""
    values: dict[str, Any] = {
        "job_id": 1,
        "array_job_id": None,
        "array_task": None,
        "n_tasks": 1,
        "het_job_id": None,
        "name": "train",
        "user": "alice",
        "uid": 1001,
        "account": "vision",
        "qos": "normal",
        "partition": "gpu",
        "state": "RUNNING",
        "reason": "None",
        "restarts": 0,
        "submit_s": T0 - 60,
        "eligible_s": T0 - 36,
        "start_s": T0,
        "end_s": None,
        "time_limit_s": 3600,
        "n_nodes": 1,
        "nodes": ("n1",),
        "tres_requested": {"gres/gpu": 1},
        "tres_allocated": {"gres/gpu": 1},
        "gpu_index": {"n1": {"gpu": (0,)}},
        "gres_per_node": "gres:gpu:1",
        "features": "",
        "admin_comment": "",
    }
    return QueuedJob(**{**values, **given})


def node(number: int, **given: Any) -> SlurmNode:
    """Return node n1, n2 …, with four a100 of four shards each, at 127.0.1.1, 127.0.1.2 …"""
    values: dict[str, Any] = {
        "name": f"n{number}",
        "address": f"127.0.1.{number}",
        "state": "idle",
        "reason": None,
        "cpus": 32,
        "cpus_allocated": 0,
        "memory_mib": 100_000,
        "memory_allocated_mib": 0,
        "gpus": {"a100": 4},
        "gpus_allocated": {},
        "shards": 16,
        "shards_allocated": 0,
        "features": (),
        "partitions": ("gpu",),
    }
    return SlurmNode(**{**values, **given})


class MemorySlurm:
    """A SlurmClient whose answers a test sets; `unavailable` makes it fail.

    `questions` lists the queries for current accounting rows, `periods` those for past periods.
    """

    def __init__(self, rows: Iterable[AccountingRun] = (), jobs: Iterable[QueuedJob] = ()) -> None:
        self.rows, self.queue = list(rows), list(jobs)
        self.node_list: list[SlurmNode] = [node(number) for number in range(1, 5)]
        self.unavailable = False
        self.questions: list[tuple[int, tuple[int, ...] | None]] = []
        self.periods: list[tuple[int, int]] = []
        self.job_calls = 0

    def _answer(self) -> None:
        if self.unavailable:
            raise SlurmError("slurmctld does not answer")

    def settings(self) -> SlurmSettings:
        self._answer()
        return SlurmSettings(
            cluster=CLUSTER,
            version="22.05.8",
            slurm_user="slurm",
            slurm_user_uid=SLURM_UID,
            conf_path="/etc/slurm/slurm.conf",
            raw={},
        )

    def nodes(self) -> Sequence[SlurmNode]:
        self._answer()
        return self.node_list

    def jobs(self, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        self._answer()
        self.job_calls += 1
        return self.queue

    def accounting(
        self, since_s: int, until_s: int | None = None, job_ids: Iterable[int] | None = None
    ) -> Iterator[AccountingRun]:
        self._answer()
        ids = None if job_ids is None else tuple(job_ids)
        if until_s is None:
            self.questions.append((since_s, ids))
        else:
            self.periods.append((since_s, until_s))
        for item in self.rows:
            begun = until_s is None or (item.eligible_s is not None and item.eligible_s <= until_s)
            within = begun and (item.end_s is None or item.end_s >= since_s)
            if within and (ids is None or item.job_id in ids):
                yield item
