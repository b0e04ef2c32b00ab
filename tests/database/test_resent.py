"""After a loss of the database, nodes send even one-time data again, and runs are imported again."""

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from slurm_gpu.database.accounting.importer import Importer
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.shipment import parse_shipment
from slurm_gpu.database.ingest.stored_facts import READ_EACH_S
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.maintenance.upkeep import Upkeep
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import device, metadata, run
from slurm_gpu.errors import DatabaseError
from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.shipping.post import DirectSender, Reply
from slurm_gpu.node.shipping.ship import AGAIN_S, LIVE_S, PERIOD_S, ShipmentScheduler, ShipmentSource
from slurm_gpu.node.shipping.spool import Spool
from slurm_gpu.wire import DeviceFacts, HostRun
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S
from tests.database.samples import (
    CLUSTER,
    T0,
    FakeClock,
    MemorySlurm,
    gpu,
    host,
    queued,
    record,
    row,
    segment,
)

ADDRESS = "127.0.1.1"
WITHIN_S = READ_EACH_S + AGAIN_S + 2 * LIVE_S + 5
HOST = "host:m1"


class Here(ShipmentSource):
    """A node with two GPUs, and a job on the first."""

    def __init__(self, name: str, clock: FakeClock) -> None:
        self.name, self.clock = name, clock
        self.uuids = ["GPU-1", "GPU-2"]
        self.sent: list[int] = []

    def open_jobs(self) -> Sequence[int]:
        return (1,)

    def devices(self) -> Sequence[DeviceFacts]:
        at_s = int(self.clock.wall())
        return [gpu(node=self.name, uuid=uuid, at_s=at_s) for uuid in self.uuids]

    def live(self) -> Mapping[str, Any]:
        return {"at_s": self.clock.wall(), "devices": {}, "host": {}}

    def windows(self, job_ids: Collection[int]) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "job_id": 1,
                "segment": segment(1),
                "device": "GPU-1",
                "start_s": self.clock.wall() - 600,
                "width_s": 1.0,
                "series": {},
            }
        ]


class World:
    """One node with its scheduler, and slurm-gpudbd's intake and import, all with one clock."""

    def __init__(self, database: Database, directory: Path, name: str = "n1", address: str = ADDRESS) -> None:
        self.database, self.clock = database, FakeClock(T0 + 5)
        self.slurm = MemorySlurm([row(state="RUNNING", end_s=None)], [queued()])
        self.view = SlurmView(self.slurm, self.clock, lambda host: frozenset({host}))
        self.memory = LiveState.fresh(self.clock)
        self.intake = Intake(database, self.view, CLUSTER, self.clock, self.memory)
        self.importer = Importer(
            database, self.view, self.clock, CLUSTER, 60.0, upkeep=Upkeep(database, self.clock)
        )
        self.address, self.answers = address, list[dict[str, Any]]()
        self.shipments = list[Any]()
        self.spool = Spool(directory)
        self.here = Here(name, self.clock)
        self.scheduler = ShipmentScheduler(
            self.spool.queue,
            DirectSender(self._post),
            self.clock,
            name,
            self.here,
            random_source=random.Random(1),
        )
        self.seq = 0

    def _post(self, body: bytes) -> Reply:
        shipment = parse_shipment(body, "gzip")
        self.shipments.append(shipment)
        try:
            answer = self.intake.take(shipment, self.address)
        except (ShipmentError, DatabaseError) as error:
            return Reply(503, str(error).encode())
        self.answers.append(answer)
        return Reply(200, json.dumps(answer).encode())

    def job_runs(self) -> None:
        """Record the job once more, as slurm-gpud does each minute."""
        self.seq += 1
        last_s = int(self.clock.wall())
        given = {"seq": self.seq, "final": False, "last_s": last_s}
        measured = record(**given)
        key = SegmentKey(**{name: getattr(measured, name) for name in SegmentKey.__dataclass_fields__})
        self.spool.save_allocation(
            Allocation(key=key, prolog_at_s=T0, begun_s=1.0, start_s=1.0, start_wall_s=T0, positions=(0,))
        )
        self.spool.save_record(measured)
        self.spool.save_host(host(**given))

    def advance(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            if int(self.clock.now) % 60 == 0:
                self.job_runs()
                self.importer.run_once()
            self.scheduler.step()
            self.clock.now += 1

    def rows(self, table: Any) -> list[dict[str, Any]]:
        with self.database.reading() as connection:
            return [dict(found) for found in connection.execute(select(table)).mappings()]

    def empty(self, *tables: Any) -> None:
        def work(connection: Any) -> None:
            for table in tables:
                connection.execute(delete(table))

        self.database.write(work)


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    made = World(database, tmp_path / "spool")
    made.advance(120)
    return made


FROM_NODES_AND_SLURM = {
    "run": ("job_id", "user", "end_s"),
    "run_device": ("segment", "device", "run_id"),
    "run_host": ("segment", "run_id"),
    "device": ("node", "uuid"),
    "node_period": ("node", "gpus", "state"),
    "watermark": ("name",),
}
ON_REQUEST = {"run_window"}
BY_THE_WATCH = {"verdict"}
BY_TRAINING = {"forecast_model"}
FROM_SLURM_GPUCTLD = {"decision"}
HISTORY = {"event", "audit", "forecast", "reservation", "cluster_usage"}


def test_each_table_declares_whether_its_rows_come_again() -> None:
    said = [FROM_NODES_AND_SLURM.keys(), ON_REQUEST, BY_THE_WATCH, BY_TRAINING, FROM_SLURM_GPUCTLD, HISTORY]
    assert sorted(name for names in said for name in names) == sorted(metadata.tables)
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = page.partition("### After a restored backup")[2].partition("\n## ")[0]
    assert [name for name in metadata.tables if f"`{name}`" not in section] == []


@pytest.mark.parametrize("name", FROM_NODES_AND_SLURM)
def test_a_table_that_is_emptied_under_a_running_node_fills_again(world: World, name: str) -> None:
    table, columns = metadata.tables[name], FROM_NODES_AND_SLURM[name]

    def content() -> set[tuple[Any, ...]]:
        names = [column for column in columns if column != "run_id"]
        return {tuple(found[column] for column in names) for found in world.rows(table)}

    before = content()
    assert before
    world.empty(table)
    world.advance(3700 if name == "watermark" else PERIOD_S + 120)  # pruning stores its watermark every hour
    assert content() == before
    if "run_id" in columns:
        (known,) = {found["run_id"] for found in world.rows(run)}
        assert {found["run_id"] for found in world.rows(table)} == {known}


def test_a_new_database_fills_with_all_of_it(world: World) -> None:
    names = FROM_NODES_AND_SLURM.keys() - {"watermark"}
    before = {name: len(world.rows(metadata.tables[name])) for name in names}
    world.empty(*metadata.sorted_tables)
    world.advance(PERIOD_S + 120)
    assert {name: len(world.rows(metadata.tables[name])) for name in names} == before


def test_a_run_that_comes_again_has_the_records_of_before(world: World) -> None:
    world.slurm.rows = [row(job_id=5, state="COMPLETED"), *world.slurm.rows]
    ended = record(job_id=5, segment=segment(5), final=True)
    world.spool.save_record(ended)
    world.slurm.queue = [*world.slurm.queue, queued(job_id=5, state="COMPLETED")]
    world.advance(120)
    (measured,) = (found["ugpucore"] for found in world.rows(run) if found["job_id"] == 5)
    assert measured is not None
    world.empty(run)
    world.clock.now += 30 * 86400  # too long for the overlap of two passes
    world.advance(120)
    assert [found["ugpucore"] for found in world.rows(run) if found["job_id"] == 5] == [measured]


def test_a_cluster_without_jobs_is_not_read_from_its_beginning_again_and_again(
    database: Database, tmp_path: Path
) -> None:
    world = World(database, tmp_path / "spool")
    world.slurm.rows, world.slurm.queue = [], []
    for _ in range(10):
        world.importer.run_once()
        world.clock.now += 60
    assert sum(since_s == 0 for since_s, _ in world.slurm.periods) == 1


def test_windows_come_again_when_they_are_wanted(world: World) -> None:
    table = metadata.tables["run_window"]
    for _ in range(2):
        world.memory.wants.ask("n1", 1)
        world.advance(1.1 * IDLE_LIVE_INTERVAL_S + 2 * LIVE_S)
        assert len(world.rows(table)) == 1
        world.empty(table)


LOSSES: dict[str, Callable[[World], None]] = {
    "all": lambda world: world.empty(device),
    "one of two": lambda world: world.database.write(
        lambda connection: connection.execute(delete(device).where(device.c.uuid == "GPU-2"))
    ),
    "an older state": lambda world: world.database.write(
        lambda connection: connection.execute(update(device).values(at_s=T0 - 86400, index=7))
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_devices_are_sent_again_within_two_minutes_of_any_loss(world: World, loss: str) -> None:
    LOSSES[loss](world)
    world.advance(WITHIN_S)
    assert sorted((found["uuid"], found["index"]) for found in world.rows(device)) == [
        ("GPU-1", 0),
        ("GPU-2", 0),
    ]


def test_stored_devices_are_not_sent_again(world: World) -> None:
    world.advance(3600)
    assert sum(bool(shipment.devices) for shipment in world.shipments) == 1
    world.empty(device)
    world.advance(3600)
    assert sum(bool(shipment.devices) for shipment in world.shipments) == 2


def test_a_node_is_accepted_once_slurm_has_it(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path / "spool", address="127.0.1.9")
    world.advance(300)
    assert world.rows(device) == []
    world.address = ADDRESS
    world.advance(WITHIN_S)
    assert len(world.rows(device)) == 2


def test_repeatedly_rejected_items_are_sent_less_and_less_often(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path / "spool")
    world.here.devices = lambda: [gpu(uuid="GPU-1", at_s=int(world.clock.wall()) + 200_000)]  # type: ignore[method-assign]
    world.advance(7200)
    assert 3 <= sum(bool(answer["rejected_devices"]) for answer in world.answers) <= 8


def test_while_the_database_is_unreadable_nothing_is_reported_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable() -> Any:
        raise DatabaseError("unreachable")

    monkeypatch.setattr(world.database, "reading", unreachable)
    before = len(world.answers)
    for _ in range(120):
        world.scheduler.step()
        world.clock.now += 1
    assert {tuple(answer["lacks"]) for answer in world.answers[before:]} == {()}


def open_run(seq: int = 1, end_s: int | None = None) -> HostRun:
    return HostRun(
        cluster=HOST,
        job_id=9,
        node="m1",
        seq=seq,
        uid=1000,
        user="alice",
        start_s=T0,
        end_s=end_s,
        devices=["GPU-1"],
    )


def test_a_run_of_a_machine_without_slurm_comes_again_until_it_has_ended(
    database: Database, tmp_path: Path
) -> None:
    world = World(database, tmp_path / "spool", "m1", "127.0.1.9")
    world.view.may_speak = lambda node, address: (True, frozenset())  # type: ignore[method-assign]
    world.spool.save_run(open_run())
    world.advance(60)
    for _ in range(2):
        world.empty(run)
        world.advance(WITHIN_S)
        assert [
            (found["job_id"], found["state"]) for found in world.rows(run) if found["cluster"] == HOST
        ] == [(9, "RUNNING")]
    world.spool.save_run(open_run(2, T0 + 300))
    world.advance(60)
    assert sum(bool(shipment.runs) for shipment in world.shipments) == 4
    world.advance(3600)
    assert sum(bool(shipment.runs) for shipment in world.shipments) == 4


def test_a_restarted_node_still_has_its_list_of_sent_runs(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.save_run(open_run())
    assert spool.queue.shipped_open_runs() == {}
    (item,) = spool.queue.waiting(9)
    spool.queue.shipped(item)
    spool.commit()
    spool.close()
    again = Spool(tmp_path / "spool")
    assert again.queue.shipped_open_runs() == {9: 1}
    again.queue.ship_open_runs_again()
    assert [item.key for item in again.queue.waiting(9)] == ["run/9"]


@pytest.mark.parametrize(
    "has",
    [
        None,
        5,
        [],
        {"devices": 5},
        {"devices": {"at_s": "x", "n": 2}},
        {"runs": []},
        {"runs": {"x": 1, "": 1, "9": "x"}},
    ],
)
def test_invalid_parts_of_it_do_no_harm(world: World, has: Any) -> None:
    body = json.dumps({"wire": 2, "node": "n1", "boot_id": "b", "has": has}).encode()
    answer = world.intake.take(parse_shipment(body, ""), ADDRESS)
    assert (answer["lacks"], answer["ignored"]) == ([], {})
