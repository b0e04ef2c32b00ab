"""Measure the size of a database per million job-GPUs on MariaDB, by table and index.

    .venv/bin/python bench/growth.py [--nodes 200] [--job-gpus 40000] [--gpus 8] [--directory DIR] [--json]

A cluster's data of several days is stored as fast as possible. Each node runs jobs of several lengths, one
after the other. slurm-gpud ships records 10 s after the start of a job, every 300 s (± 60 s) and at its end.
Rows therefore grow while others arrive, as on a site, and pages of the database split. The records are those
of slurm-gpud for jobs that change their load every 7 s (scale_records.py); steadier jobs need less. Runs come
from generated accounting, and each record is matched to its run.

The processor time of storing is also printed. With --json the last line is {"gb_per_million_job_gpus":
…, "tables": {table: {index: bytes per job-GPU}}, …}; an index called PRIMARY is the table itself.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from sqlalchemy import Connection, text

from bench import arguments
from bench.scale_records import LENGTHS, Pattern, patterns
from slurm_gpu.database.accounting import writer as store
from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.ingest.shipment import CheckedShipment, parse_shipment
from slurm_gpu.database.storage.batches import batched
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire import WIRE_VERSION
from tests.database.samples import row
from tests.database.servers import running_mariadb

CLUSTER = "neuron"
N_USERS = 500
JITTER_S = 60
PASS_S = 60
"""Seconds between passes in which slurm-gpudbd reads accounting and matches records."""
TOGETHER = 20
"""Number of shipments in one transaction, if nodes do not wait for each other."""
MARIADB = ("--innodb-buffer-pool-size=1G", "--innodb-log-file-size=256M")
_ALIGN_S = 1024
"""Times are shifted by multiples of this, since bins of a timeline begin at multiples of their width."""
_FROM_S = 1_790_000_000 // _ALIGN_S * _ALIGN_S
_TIMES = "prolog_s", "first_s", "last_s"


@dataclass(frozen=True)
class Job:
    """One run on one node; its records are those of its pattern, `shift_s` later."""

    job_id: int
    node: int
    shift_s: int
    pattern: Pattern
    segment: str
    user: int

    @property
    def start_s(self) -> int:
        """Return the start time."""
        return int(self.pattern.records[0]["prolog_s"]) + self.shift_s


class ShipmentWriter:
    """The shipments of nodes in JSON: built once for each pattern, with the values of a job inserted."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._texts: dict[tuple[int, int, int], str] = {}

    def shipment(self, job: Job, stage: int) -> bytes:
        """Return a job's records at one stage of its pattern; the last stage is the end of the job."""
        final = stage == len(job.pattern.stages) - 1
        texts = [self._record(job, stage, gpu) for gpu in range(self._gpus)]
        host = self._host(job, stage)
        end = "true" if final else "false"
        filled = f'"records":[{",".join(texts)}],"hosts":[{host}]'.replace('"FINAL"', end)
        return f'{{"wire":{WIRE_VERSION},"node":"{_node(job.node)}",{filled}}}'.encode()

    def _record(self, job: Job, stage: int, gpu: int) -> str:
        records = job.pattern.stages[stage].records
        filled = self._of_job(job, stage, gpu, records[gpu % len(records)])
        device = f"GPU-{job.node:08x}-4e5f-{gpu:04x}-abcd-{job.node * 2654435761 % 2**48:012x}"
        return filled.replace("@DEVICE", device)

    def _host(self, job: Job, stage: int) -> str:
        first = job.pattern.stages[stage].records[0]
        return self._of_job(job, stage, -1, dict(job.pattern.host) | {name: first[name] for name in _TIMES})

    def _of_job(self, job: Job, stage: int, gpu: int, wire: Mapping[str, Any]) -> str:
        filled = self._text(job, stage, gpu, wire)
        for name in _TIMES:
            filled = filled.replace(f'"{name}":"{name}"', f'"{name}":{wire[name] + job.shift_s}')
        if "timeline" in wire:
            filled = filled.replace(
                '"start_s":"start_s"', f'"start_s":{wire["timeline"]["start_s"] + job.shift_s}'
            )
        boot_id = f"{job.node * 40503 % 2**32:08x}-4e5f-6789-abcd-{job.node * 2654435761 % 2**48:012x}"
        filled = filled.replace('"JOB"', str(job.job_id)).replace("@NODE", _node(job.node))
        return filled.replace("@SEGMENT", job.segment).replace("@BOOT", boot_id)

    def _text(self, job: Job, stage: int, gpu: int, filled: Mapping[str, Any]) -> str:
        key = job.pattern.seconds, stage, gpu
        if key not in self._texts:
            wire = dict(filled) | {"cluster": CLUSTER, "job_id": "JOB", "node": "@NODE", "boot_id": "@BOOT"}
            wire |= {"segment": "@SEGMENT", "seq": stage + 1, "final": "FINAL"}
            wire |= {name: name for name in _TIMES}
            if gpu >= 0:
                wire["device"] = "@DEVICE"
            if "timeline" in wire:
                wire["timeline"] = wire["timeline"] | {"start_s": "start_s"}
            self._texts[key] = json.dumps(wire, separators=(",", ":"))
        return self._texts[key]


def _node(number: int) -> str:
    return f"gpu{number:04d}"


@dataclass(frozen=True, order=True)
class PlannedShipment:
    """A shipment that a node sends at `at_s` for one stage of a job."""

    at_s: float
    job_id: int
    stage: int


def planned_shipments(jobs: Mapping[int, Job], dice: random.Random) -> Iterator[PlannedShipment]:
    """Yield all shipments for these jobs in the order of their times."""
    due = [
        PlannedShipment(
            job.start_s + stage.at_s + (dice.uniform(0, JITTER_S) if stage.at_s > 10 else 0), job_id, n
        )
        for job_id, job in jobs.items()
        for n, stage in enumerate(job.pattern.stages)
    ]
    heapq.heapify(due)
    while due:
        yield heapq.heappop(due)


def plan(found: Sequence[Pattern], n_nodes: int, n_jobs: int, dice: random.Random) -> dict[int, Job]:
    """Plan jobs one after the other on each node, numbered in the order of their starts."""
    of_length = {pattern.seconds: pattern for pattern in found}
    free = [(_FROM_S + dice.randrange(3600), node) for node in range(n_nodes)]
    heapq.heapify(free)
    jobs = {}
    for job_id in range(100_001, 100_001 + n_jobs):
        at_s, node = heapq.heappop(free)
        (length,) = dice.choices(list(LENGTHS), weights=list(LENGTHS.values()))
        pattern = of_length[length]
        begins_s = int(pattern.records[0]["prolog_s"])
        shift_s = -(-(at_s - begins_s) // _ALIGN_S) * _ALIGN_S  # jobs begin together, like those of arrays
        segment = f"{dice.getrandbits(64):016x}"
        jobs[job_id] = Job(job_id, node, shift_s, pattern, segment, dice.randrange(N_USERS))
        heapq.heappush(free, (begins_s + shift_s + length + dice.randrange(5, 600), node))
    return jobs


def accounting(job: Job, gpus: int, *, over: bool) -> AccountingRun:
    """Return the job's row of `run`."""
    tres = {"cpu": 8.0 * gpus, "mem": 115200.0 * gpus, "node": 1.0, "billing": 8.0 * gpus}
    tres |= {"gres/gpu": float(gpus), "gres/gpu:a100": float(gpus)}
    filled = row(
        cluster=CLUSTER,
        job_id=job.job_id,
        name=f"train_resnet50_{job.job_id % 97}",
        user=f"user{job.user:04d}",
        uid=10_000 + job.user,
        account=f"lab{job.user % 40:02d}",
        nodes=_node(job.node),
        submit_s=job.start_s - job.job_id % 900,
        eligible_s=job.start_s - job.job_id % 900,
        start_s=job.start_s,
        end_s=job.start_s + job.pattern.seconds if over else None,
        elapsed_s=job.pattern.seconds if over else 10,
        state="COMPLETED" if over else "RUNNING",
        tres_requested=tres,
        tres_allocated=tres,
    )
    return run_row(filled, {})


class ProcessorTime:
    """Processor time of parts of the work, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def on(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a part of the work and add its processor time."""
        began = time.process_time()
        try:
            return work()
        finally:
            self.seconds[name] += time.process_time() - began


def play(database: Database, jobs: Mapping[int, Job], gpus: int, dice: random.Random) -> ProcessorTime:
    """Store all shipments, and return the processor time of this process."""
    telling, spent, pass_s = ShipmentWriter(gpus), ProcessorTime(), 0.0
    waiting: list[AccountingRun] = []
    for some in batched(planned_shipments(jobs, dice), TOGETHER):
        bodies = [telling.shipment(jobs[filled.job_id], filled.stage) for filled in some]
        for filled in some:
            job = jobs[filled.job_id]
            over = filled.stage == len(job.pattern.stages) - 1
            if over or filled.stage == 0:
                waiting.append(accounting(job, gpus, over=over))
        shipments = spent.on("reading", partial(_parse, bodies))
        if hasattr(store, "prepare"):
            spent.on("packing", partial(_prepare, shipments))
        spent.on("storing", partial(database.write, partial(_store, shipments)))
        if some[-1].at_s >= pass_s + PASS_S:
            pass_s = some[-1].at_s
            _pass(database, waiting, spent)
    _pass(database, waiting, spent)
    return spent


def _pass(database: Database, waiting: list[AccountingRun], spent: ProcessorTime) -> None:
    """Run the pass that slurm-gpudbd runs each minute."""
    for some in batched(waiting, 500):
        database.write(partial(store_changed_runs, rows=some))
    waiting.clear()
    spent.on("matching", partial(reconcile, database))


def _parse(bodies: Sequence[bytes]) -> list[CheckedShipment]:
    return [parse_shipment(body, "") for body in bodies]


def _prepare(shipments: Iterable[CheckedShipment]) -> None:
    for item in shipments:
        store.prepare(item.records.values())


def _store(shipments: Iterable[CheckedShipment], connection: Connection) -> None:
    records = [record for item in shipments for record in item.records.values()]
    hosts = [host for item in shipments for host in item.hosts.values()]
    store.foreign_segments(connection, dict(enumerate(records)))
    store.store_records(connection, records)
    store.store_hosts(connection, hosts)


def sizes(database: Database) -> dict[str, dict[str, int]]:
    """Return the bytes of each index of each table, as InnoDB counts its pages."""
    name = database.url.database
    counted = (
        "SELECT table_name, index_name, stat_value * @@innodb_page_size FROM mysql.innodb_index_stats "
        "WHERE database_name = :name AND stat_name = 'size'"
    )
    found: dict[str, dict[str, int]] = defaultdict(dict)
    with database.engine.connect() as connection:
        for table in ("run", "run_device", "run_host"):
            connection.execute(text(f"ANALYZE TABLE {table}"))
        for table, index, size in connection.execute(text(counted), {"name": name}):
            found[table][index] = int(size)
    return {table: of for table, of in found.items() if table in ("run", "run_device", "run_host")}


def measure(directory: Path, n_nodes: int, n_job_gpus: int, gpus: int, seed: int) -> dict[str, Any]:
    """Store all shipments, and return the sizes."""
    dice = random.Random(seed)
    jobs = plan(patterns(seed), n_nodes, max(1, n_job_gpus // gpus), dice)
    (directory / "maria").mkdir()
    with running_mariadb(directory / "maria", *MARIADB) as maria:
        database = Database(maria.fresh())
        database.upgrade()
        maria_process = psutil.Process(maria.pid)
        before = maria_process.cpu_times()
        spent = play(database, jobs, gpus, dice)
        after = maria_process.cpu_times()
        maria_s = after.user + after.system - before.user - before.system
        stored = _count(database, "run_device"), _count(database, "run_device WHERE run_id IS NULL")
        found = sizes(database)
        database.dispose()
    n = len(jobs) * gpus
    if stored != (n, 0):
        raise SystemExit(f"{stored[0]} of {n} records are stored, {stored[1]} of them without a run")
    writes = sum(len(job.pattern.stages) for job in jobs.values()) * gpus
    return {
        "job_gpus": n,
        "gb_per_million_job_gpus": round(sum(map(sum, (t.values() for t in found.values()))) / n / 1000, 3),
        "tables": {
            table: {index: round(size / n, 1) for index, size in sorted(of.items())}
            for table, of in sorted(found.items())
        },
        "records_written": writes,
        "us_per_record": {
            **{name: round(seconds / writes * 1e6, 1) for name, seconds in spent.seconds.items()},
            "mariadbd": round(maria_s / writes * 1e6, 1),
        },
    }


def _count(database: Database, what: str) -> int:
    with database.reading() as connection:
        return int(connection.execute(text(f"SELECT COUNT(*) FROM {what}")).scalar_one())


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure the size of a database.")
    parser.add_argument("--nodes", type=arguments.number(1, 10_000), default=200, help="default 200")
    parser.add_argument("--job-gpus", type=arguments.number(1), default=40_000, help="default 40000")
    parser.add_argument("--gpus", type=arguments.number(1, 8), default=8, help="of each job (default 8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--directory", type=arguments.directory, help="directory of the database (default: a temporary one)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sgg-", dir=options.directory) as made:
        values = measure(Path(made), options.nodes, options.job_gpus, options.gpus, options.seed)
    print(f"{values['gb_per_million_job_gpus']} GB for a million job-GPUs ({values['job_gpus']} stored)")
    for table, of in values["tables"].items():
        filled = ", ".join(f"{index} {size:g}" for index, size in of.items())
        print(f"  {table}: {sum(of.values()):.0f} bytes each: {filled}")
    costs = ", ".join(f"{name} {us:g}" for name, us in values["us_per_record"].items())
    print(f"  µs of processor time for each of {values['records_written']} records: {costs}")
    if options.json:
        print(json.dumps(values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
