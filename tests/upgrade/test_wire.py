"""Nodes and slurm-gpudbd of adjacent releases are compatible; others name the side to upgrade."""

import gzip
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu import __version__
from slurm_gpu.database.ingest.shipment import WireError, parse_shipment
from slurm_gpu.database.ingest.unknown_fields import UnknownLog
from slurm_gpu.node.shipping.post import DirectSender, Reply
from slurm_gpu.node.shipping.ship import ShipmentScheduler
from slurm_gpu.node.shipping.shipment import OutgoingShipment
from slurm_gpu.node.shipping.shipment_queue import Item
from slurm_gpu.node.shipping.wire_version import WireVersion, read_ignored, read_range
from slurm_gpu.wire import WIRE_RANGE, Record
from slurm_gpu.wire.record import _REQUIRED, as_of_wire_1
from tests.node.posting import Post, record

DATA = Path(__file__).parent / "data"
# The wire versions of a node; they are far from 1, to leave room for earlier releases.
OWN = 10
HERE = WIRE_RANGE[1]


def found(**given: Any) -> bytes:
    return json.dumps({"wire": HERE, "node": "n1", "version": "9.9", **given}).encode()


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


class Speaking:
    """A slurm-gpudbd that accepts shipments of given wire versions."""

    def __init__(self, low: int, high: int) -> None:
        self.range = low, high
        self.received: list[int] = []
        self.jobs: list[int] = []

    def __call__(self, body: bytes) -> Reply:
        shipment = json.loads(gzip.decompress(body))
        self.received.append(shipment["wire"])
        answer: dict[str, Any] = {"wire": list(self.range)}
        if not self.range[0] <= shipment["wire"] <= self.range[1]:
            return Reply(426, json.dumps(answer | {"error": "no"}).encode())
        self.jobs += [item["job_id"] for item in shipment["records"]]
        stored = {"stored": len(shipment["records"]), "rejected": []}
        return Reply(200, json.dumps(answer | stored).encode())


def ship_to(post: Post, database: Callable[[bytes], Reply]) -> None:
    sender, dice = DirectSender(database), random.Random(1)
    wire = WireVersion((OWN - 1, OWN))
    post.scheduler = ShipmentScheduler(
        post.spool.queue, sender, post.clock, "n1", post.node, random_source=dice, wire=wire
    )


def ship(post: Post, database: Speaking) -> None:
    ship_to(post, database)
    post.spool.save_record(record(7))
    post.run(1)


@pytest.mark.parametrize(
    ("theirs", "received"),
    [((OWN - 1, OWN), [OWN]), ((OWN, OWN + 1), [OWN]), ((OWN - 2, OWN - 1), [OWN, OWN - 1])],
    ids=["same", "newer", "older"],
)
def test_adjacent_releases_use_the_newest_common_version(
    post: Post, theirs: tuple[int, int], received: list[int]
) -> None:
    database = Speaking(*theirs)
    ship(post, database)
    assert (database.received, database.jobs) == (received, [7])
    assert post.scheduler.failures == 0


def test_the_node_uses_its_own_version_once_the_database_is_upgraded(post: Post) -> None:
    database = Speaking(OWN - 2, OWN - 1)
    ship(post, database)
    database.range = OWN - 1, OWN
    for job_id in (8, 9):
        post.spool.save_record(record(job_id))
        post.run(2)
    assert database.received == [OWN, OWN - 1, OWN - 1, OWN]
    assert database.jobs == [7, 8, 9]


@pytest.mark.parametrize(
    ("theirs", "upgrade"),
    [((OWN - 3, OWN - 2), "upgrade slurm-gpudbd"), ((OWN + 1, OWN + 2), "upgrade slurm-gpud on this node")],
)
def test_with_incompatible_versions_records_wait_and_the_log_names_the_side_to_upgrade(
    post: Post, caplog: pytest.LogCaptureFixture, theirs: tuple[int, int], upgrade: str
) -> None:
    database = Speaking(*theirs)
    ship(post, database)
    post.run(600)
    assert database.jobs == []
    assert 5 <= len(database.received) <= 40  # it pauses in between
    assert len(post.spool.queue) == 1
    (line,) = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert line.endswith(f"slurm-gpud {__version__} supports {OWN - 1} to {OWN}: {upgrade}")
    database.range = OWN, OWN + 1
    post.run(120)
    assert database.jobs == [7]


def test_requests_to_a_contradictory_database_are_limited(post: Post) -> None:
    ranges = iter([(OWN - 1, OWN - 1), (OWN, OWN)] * 1000)
    asked = []

    def contrary(body: bytes) -> Reply:
        asked.append(body)
        return Reply(426, json.dumps({"wire": next(ranges)}).encode())

    ship_to(post, contrary)
    post.spool.save_record(record(7))
    post.run(60)
    assert len(asked) < 20
    assert len(post.spool.queue) == 1


@pytest.mark.parametrize("theirs", [None, [], [2], ["1", "2"], [2, 1], [0, 0], {"min": 1}, "1 2"])
def test_an_answer_that_names_no_versions_changes_none(theirs: Any) -> None:
    wire = WireVersion((OWN - 1, OWN))
    assert not wire.negotiate(read_range(theirs))
    assert wire.version == OWN


def test_unknown_items_of_a_database_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    wire = WireVersion()
    for _ in range(3):
        wire.ignored(read_ignored({"records": ["colour"], "hosts": [], "x": "y"}), "0.1.7")
    (line,) = caplog.messages
    assert (
        line
        == "slurm-gpudbd 0.1.7 does not support colour of records and did not store it; upgrade slurm-gpudbd"
    )


# slurm-gpudbd's side


@pytest.mark.parametrize(
    ("wire", "upgrade", "passing"),
    [
        (HERE - 2, "that slurm-gpud", False),
        (HERE + 1, "slurm-gpudbd", True),
        (HERE + 2, "slurm-gpudbd", False),
    ],
)
def test_a_version_that_is_not_spoken_is_refused_by_name(wire: int, upgrade: str, *, passing: bool) -> None:
    with pytest.raises(WireError) as caught:
        parse_shipment(found(wire=wire), "")
    assert caught.value.status == 426
    assert str(caught.value) == (
        f"slurm-gpud 9.9 of n1 uses wire version {wire}, but slurm-gpudbd {__version__} supports "
        f"{HERE - 1} to {HERE}: upgrade {upgrade}"
    )
    assert caught.value.is_passing is passing


def test_the_sender_of_an_unknown_wire_may_be_anything() -> None:
    with pytest.raises(WireError, match=r"^slurm-gpud uses wire version 99, "):
        parse_shipment(b'{"wire": 99, "node": {"name": "n1"}, "version": ["x"]}', "")


def test_unknown_fields_of_a_newer_node_are_named_and_the_rest_is_stored() -> None:
    sent = {**record(7).to_wire(), "colour": "green", "timeline": newer_timeline()}
    steps = [{"segment": "0" * 16, "step": 1}]
    shipment = parse_shipment(found(records=[sent, record(8).to_wire()], steps=steps, mood=3, runs=[7]), "")
    assert [item.job_id for item in shipment.records.values()] == [7, 8]
    assert {kind: sorted(names) for kind, names in shipment.unknown.items()} == {
        "shipment": ["mood", "steps"],
        "records": ["colour", "timeline.series.heat"],
    }


def newer_timeline() -> dict[str, Any]:
    return {"width_s": 2, "start_s": 100, "series": {"util": "fQ==", "heat": "fQ=="}}


def test_names_are_bounded_for_any_sender() -> None:
    hostile = {f"{n}\n\udfff{'x' * 200}": 1 for n in range(1000)}
    shipment = parse_shipment(found(records=[{**record(7).to_wire(), **hostile}]), "")
    names = shipment.unknown["records"]
    assert len(names) == 32
    assert all(len(name) < 100 and name.isascii() for name in names)


def test_the_log_has_each_name_once(caplog: pytest.LogCaptureFixture) -> None:
    unknown = UnknownLog()
    for _ in range(3):
        unknown.warn("n1", "9.9", {"records": ["colour"]})
    unknown.warn("n2", "9.9", {"records": ["colour", "a\nb"]})
    first, second = caplog.messages
    assert first.startswith("slurm-gpud 9.9 of n1 sends 'colour' of records, which slurm-gpudbd ")
    assert "'a\\nb' of records" in second
    assert "colour" not in second


@pytest.mark.parametrize("release", sorted(path.name for path in DATA.iterdir()))
def test_shipments_of_an_older_release_are_accepted_whole(release: str) -> None:
    shipment = parse_shipment((DATA / release / "shipment.json.gz").read_bytes(), "gzip")
    assert shipment.version == release
    taken = shipment.records, shipment.hosts, shipment.devices, shipment.events, shipment.runs
    assert list(map(len, taken)) == [5, 3, 1, 1, 1]
    assert (shipment.rejected, shipment.unknown, shipment.open_jobs) == ([], {}, [2, 3])


def test_no_key_becomes_required_that_was_not() -> None:
    sent = json.loads(gzip.decompress((DATA / "0.1.0" / "shipment.json.gz").read_bytes()))
    required = as_of_wire_1(dict.fromkeys(_REQUIRED)).keys()
    assert set.intersection(*map(set, sent["records"])) >= required
    bare = {name: value for name, value in sent["records"][0].items() if name in required}
    assert Record.from_wire(bare).job_id == 1


def test_a_database_of_the_previous_release_receives_the_names_that_it_reads() -> None:
    item = Item("record/0000000000000007/GPU-1", 1, as_of_wire_1(record(7).to_wire()))
    bodies = [OutgoingShipment(node="n1", boot_id="b", wire=wire, items=[item]).body() for wire in (1, 2)]
    older, current = (json.loads(gzip.decompress(body))["records"][0] for body in bodies)
    assert older["held_s"] == current["allocated_s"] == record(7).allocated_s
    assert "allocated_s" not in older
    assert "held_s" not in current
    assert Record.from_wire(older) == Record.from_wire(current) == record(7)
