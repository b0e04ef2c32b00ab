"""A scheduler with a slurm-gpudbd that returns configured answers."""

import gzip
import json
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_gpu.node.shipping.post import DirectSender, Reply
from slurm_gpu.node.shipping.ship import ShipmentScheduler, ShipmentSource
from slurm_gpu.node.shipping.shipment import JobFacts
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.wire import DeviceFacts, Event, Host, Record
from tests.node.fakes import FakeClock


def record(job_id: int, seq: int = 1, *, final: bool = True) -> Record:
    return Record(
        cluster="lab",
        job_id=job_id,
        restart=0,
        prolog_s=100,
        node="n1",
        boot_id="b",
        segment=f"{job_id:016x}",
        device="GPU-0",
        seq=seq,
        final=final,
        first_s=100,
        last_s=110,
        allocated_s=10.0,
        sampled_s=10.0,
        util_hist_ms={40: 10_000},
    )


def host(job_id: int, seq: int = 1, *, final: bool = True) -> Host:
    key = {
        name: getattr(record(job_id, seq, final=final), name)
        for name in Host.__dataclass_fields__
        if name in Record.__dataclass_fields__
    }
    return Host(**key, cpu_s=12.5)


EVENT = Event(node="n1", boot_id="b", n=5, at_s=100, kind="gpu_lost", device="GPU-0")


class Database:
    """A slurm-gpudbd that accepts shipments, or returns the configured replies."""

    def __init__(self) -> None:
        self.shipments: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        self.replies: list[Reply] = []
        self.poison: int | None = None  # requests with a record of this job get a 400
        self.too_many: int | None = None
        self.answer: dict[str, Any] = {}

    def __call__(self, body: bytes) -> Reply:
        if self.replies:
            return self.replies.pop(0)
        shipment = json.loads(gzip.decompress(body))
        jobs = [item["job_id"] for item in shipment["records"]]
        if self.poison in jobs:
            return Reply(400, b"no")
        if self.too_many is not None and len(jobs) > self.too_many:
            return Reply(413)
        self.shipments.append(shipment)
        self.sizes.append(len(body))
        return Reply(200, json.dumps({"stored": len(jobs), **self.answer}).encode())

    def jobs(self) -> list[list[int]]:
        return [[item["job_id"] for item in shipment["records"]] for shipment in self.shipments]


class FakeNode(ShipmentSource):
    """A node that returns configured values and stores what it receives."""

    def __init__(self) -> None:
        self.jobs: list[int] = []
        self.now: dict[str, Any] | None = None
        self.here: Sequence[DeviceFacts] = ()
        self.requested_windows: list[list[int]] = []
        self.window_bytes = 10
        self.updated_jobs: list[JobFacts] = []
        self.ended_jobs: list[JobFacts] = []

    def open_jobs(self) -> Sequence[int]:
        return self.jobs

    def devices(self) -> Sequence[DeviceFacts]:
        return self.here

    def live(self) -> Mapping[str, Any] | None:
        return self.now

    def windows(self, job_ids: Collection[int]) -> Sequence[Mapping[str, Any]]:
        self.requested_windows.append(list(job_ids))
        noise = random.Random(1)
        return [{"job_id": job, "noise": noise.randbytes(self.window_bytes).hex()} for job in job_ids]

    def update_jobs(self, jobs: JobFacts) -> None:
        self.updated_jobs.append(jobs)

    def end_jobs(self, jobs: JobFacts) -> None:
        self.ended_jobs.append(jobs)


class Post:
    def __init__(self, directory: Path, seed: int = 1) -> None:
        self.clock, self.database, self.node = FakeClock(), Database(), FakeNode()
        self.spool = Spool(directory)
        self.scheduler = ShipmentScheduler(
            self.spool.queue,
            DirectSender(self.database),
            self.clock,
            "n1",
            self.node,
            random_source=random.Random(seed),
        )

    def run(self, seconds: float) -> None:
        end = self.clock.now_s + seconds
        while (due := self.scheduler.step()) <= end:
            self.clock.now_s = max(self.clock.now_s + 0.01, due)
        self.clock.now_s = end
