"""A node that ships to a slurm-gpudbd, and the resulting record of a job there."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_gpu.database.accounting.derived_columns import resolve_double_watches
from slurm_gpu.node.shipping.post import DirectSender, Reply
from slurm_gpu.node.shipping.ship import ShipmentScheduler, ShipmentSource
from slurm_gpu.wire import (
    Histogram,
    Record,
    histogram_mean,
    merge_histograms,
    merge_means,
    merge_totals,
)
from tests.node.fakes import GIB, FakeGpu, Work
from tests.node.machine import Machine

# The time that a kill -9 may cost, and the longest wait until a retry after an outage of the database.
CHECKPOINT_S, BACKOFF_S = 10.0, 70.0
# Records that are not final are shipped every 300 ± 60 s.
PERIOD_S = 361.0


class Database:
    """A slurm-gpudbd that stores shipments unless `is_down`; its answers contain `jobs`."""

    def __init__(self) -> None:
        self.is_down = False
        self.posts = 0
        self.records: dict[tuple[str, str], Record] = {}
        self.events: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.jobs: dict[str, Mapping[str, Any]] = {}

    def __call__(self, body: bytes) -> Reply:
        if self.is_down:
            return Reply(0, failure="no route to host")
        self.posts += 1
        shipment = json.loads(gzip.decompress(body))
        for wire in shipment["records"]:
            record = Record.from_wire(wire)
            key = record.segment, record.device
            if key not in self.records or record.seq > self.records[key].seq:
                self.records[key] = record
        for wire in shipment["events"]:
            self.events[wire["boot_id"], wire["n"]] = wire
        answer = {"stored": 0, "stale": 0, "rejected": [], "rejected_events": [], "want": [], "ended": {}}
        return Reply(200, json.dumps(answer | {"jobs": self.jobs, "wire": [1, 1]}).encode())

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events.values()]

    def of_job(self, job_id: int, device: str = "GPU-0") -> list[Record]:
        return [r for r in self.records.values() if (r.job_id, r.device) == (job_id, device)]


class _Source(ShipmentSource):
    """The data other than records that the node and slurm-gpudbd exchange."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def open_jobs(self) -> Sequence[int]:
        return [] if self._machine.node is None else self._machine.node.open_jobs()

    def live(self) -> Mapping[str, Any] | None:
        return {"at_s": int(self._machine.clock.wall()), "devices": {}}

    def windows(self, job_ids: Collection[int]) -> Sequence[Mapping[str, Any]]:
        return ()

    def update_jobs(self, jobs: Mapping[int, Mapping[str, Any]]) -> None:
        if self._machine.node is not None:
            self._machine.node.update_jobs(jobs)


class Wired(Machine):
    """A machine that ships to a database."""

    def __init__(self, directory: Path, *gpus: FakeGpu, interval_s: float = 1.0) -> None:
        super().__init__(directory, *gpus)
        self.interval_s = interval_s
        self.database = Database()
        self.scheduler: ShipmentScheduler | None = None

    def start(self) -> None:
        super().start()
        assert self.spool is not None
        dice = random.Random(1)
        sender = DirectSender(self.database)
        self.scheduler = ShipmentScheduler(
            self.spool.queue, sender, self.clock, "n1", _Source(self), random_source=dice
        )

    def kill(self) -> None:
        super().kill()
        self.scheduler = None

    def run_until(self, at_s: float) -> None:
        while self.node is not None and self.scheduler is not None:
            due_s = min(self.due_s, self.scheduler.step())
            if due_s > at_s:
                break
            self.clock.now_s = max(self.clock.now_s, due_s)
            self.node.step()
            self.due_s = self.node.due_s()
        self.clock.now_s = max(self.clock.now_s, at_s)

    def job(self, job_id: int, seconds: float, *, percent: float = 60, memory: int = 10 * GIB) -> float:
        """Run a job on the first GPU, with one process that is always busy, and return its start."""
        start_s = self.begin(job_id, seconds, percent=percent, memory=memory)
        self.run_until(start_s + seconds)
        self.hook("epilog", job_id, "0")
        return start_s

    def begin(self, job_id: int, seconds: float, *, percent: float = 60, memory: int = 10 * GIB) -> float:
        start_s = self.clock.now_s
        self.gpus[0].work.append(Work(job_id, start_s, start_s + seconds, percent, memory))
        self.hook("prolog", job_id, "0")
        return start_s


class Merged:
    """All records of a run on one device, merged as slurm-gpudbd does."""

    def __init__(self, records: Sequence[Record]) -> None:
        kept, self.doubled = resolve_double_watches(records)
        self.records = sorted(kept, key=lambda record: record.first_s)
        self.allocated_s = math.fsum(record.allocated_s for record in kept)
        self.sampled_s = math.fsum(record.sampled_s for record in kept)
        util: Histogram = merge_histograms(record.util_hist_ms for record in kept) or {}
        memory = merge_means(record.mem_used_frac for record in kept)
        energy = merge_totals(record.energy_j for record in kept)
        self.util_pct = histogram_mean(util)
        self.mem_pct = None if memory is None else 100 * memory.mean
        self.energy_j = None if energy is None else energy.total


def merged(machine: Wired, job_id: int, device: str = "GPU-0") -> Merged:
    return Merged(machine.database.of_job(job_id, device))
