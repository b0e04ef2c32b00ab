"""An impossible value drops only its field: the other fields are stored, and the field is reported."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sqlalchemy import select

from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.accounting.writer import read_record
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.shipment import parse_shipment
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run_device
from slurm_gpu.wire import DeviceFacts, Event, Host, Live, Record
from slurm_gpu.wire.live import QUANTITIES
from slurm_gpu.wire.window import Window, pack
from tests.database.conftest import empty
from tests.database.samples import CLUSTER, T0, FakeClock, MemorySlurm, gpu, host, queued, record
from tests.database.test_fast_decoder import full

# Values of every type, including values outside the limits of all quantities, names and times.
NONSENSE = st.sampled_from(
    [2**64 - 1, 2**32 - 1, -1, -1e300, 1e300, 10**400, "", "\x00", [], [1], {"a b": 1}]
)
IDENTITY = {
    *("cluster", "job_id", "restart", "prolog_s", "node", "boot_id", "segment", "seq", "final"),
    *("first_s", "last_s", "device", "allocated_s"),
}
EVENT = Event(node="n1", boot_id="b", n=1, at_s=T0, kind="xid", device="GPU-1", job_id=1, data={"code": 79})
DEVICE = gpu(parent="GPU-0", gpu_instance=1, compute_instance=0, nvlink_bytes_per_s=9e11)


def wrong(name: str, wire: dict[str, Any], nonsense: Any) -> Any:
    """Replace a field, or the last number of a list, with nonsense."""
    value = wire[name]
    if isinstance(value, list) and isinstance(nonsense, int | float):
        return [*value[:-1], nonsense]
    if isinstance(value, dict) and isinstance(nonsense, int | float):
        return {**value, next(iter(value), "x"): nonsense}
    return nonsense


def as_received(wire: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(wire))  # type: ignore[no-any-return]


WHOLE: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "records": (Record, as_received(full().to_wire()), IDENTITY),
    "hosts": (Host, as_received(host(net_rx_bytes=1, ib_tx_bytes=2, uptime_s=3.0).to_wire()), IDENTITY),
    "devices": (DeviceFacts, as_received(DEVICE.to_wire()), {"uuid", "node", "at_s"}),
    "events": (Event, as_received(EVENT.to_wire()), {"node", "boot_id", "n", "at_s", "kind"}),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, (_, wire, key) in WHOLE.items() for name in wire if name not in key],
)
@given(NONSENSE)
def test_each_implausible_field_costs_only_that_field(kind: str, name: str, nonsense: Any) -> None:
    read, wire, _ = WHOLE[kind]
    spoilt = {**wire, name: wrong(name, wire, nonsense)}
    dropped: dict[str, str] = {}
    item = read.from_wire(spoilt, dropped)
    good = read.from_wire(wire)
    assume(dropped)  # an empty list of jobs is valid
    assert list(dropped) == [name]
    assert dropped[name].startswith(name)
    assert getattr(item, name) in (None, {}, 10.0 if name == "sampled_s" else None)
    for other in {f.name for f in dataclasses.fields(good)} - {name}:
        assert getattr(item, other) == getattr(good, other), other


@pytest.mark.parametrize("name", [*QUANTITIES, "throttle", "jobs", "host"])
@given(st.sampled_from([2**64 - 1, -1, 1e300, "x", [[]], {}]))
def test_each_implausible_live_value_costs_only_that_value(name: str, nonsense: Any) -> None:
    device: dict[str, Any] = {**dict.fromkeys(QUANTITIES, 0.5), "throttle": ["hot"], "jobs": [7]}
    host_values: dict[str, Any] = {"cpu_pct": 5.0, "mem_used_mib": 9.0}
    if name == "host":
        host_values["cpu_pct"] = nonsense
    else:
        device[name] = nonsense
    dropped: dict[str, str] = {}
    live = Live.from_wire({"at_s": T0, "devices": {"GPU-1": device}, "host": host_values}, dropped)
    assert list(dropped) == ["cpu_pct" if name == "host" else name]
    assert live.host.get("mem_used_mib") == 9.0
    kept = live.devices["GPU-1"]
    assert [q for q in QUANTITIES if getattr(kept, q) != 0.5] == [name] * (name in QUANTITIES)


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('dropped') / 'x.db'}")
    database.upgrade()
    yield database
    database.dispose()


class Site:
    """The ingest of slurm-gpudbd and its stored items."""

    def __init__(self, database: Database) -> None:
        empty(database)
        self.database, self.clock = database, FakeClock()
        view = SlurmView(MemorySlurm(jobs=[queued()]), self.clock, lambda name: frozenset({name}))
        self.intake = Intake(database, view, CLUSTER, self.clock)

    def ship(self, **kinds: Any) -> dict[str, Any]:
        body = json.dumps({"wire": 2, "node": "n1", **kinds}).encode()
        return self.intake.take(parse_shipment(body, ""), "127.0.1.1")

    def record(self) -> Record:
        with self.database.reading() as connection:
            (row,) = connection.execute(select(run_device)).mappings()
            return read_record(row)


def test_two_seconds_of_an_impossible_power_do_not_cost_a_job_its_record(lite: Database) -> None:
    site = Site(lite)
    wire = record(power_w=None).to_wire() | {"power_w": [10.0, 505_440.0, 80.0, 4_294_967.295]}
    answer = site.ship(records=[wire])
    why = "power_w: 505440.0 must be from 0 to 10000"
    assert (answer["stored"], answer["rejected"]) == (1, [])
    assert answer["dropped"] == [{"kind": "records", "field": "power_w", "n": 1, "index": 0, "why": why}]
    assert site.record() == record()


def test_a_maximum_that_stays_wrong_does_not_keep_out_the_rest_of_a_long_job(lite: Database) -> None:
    site = Site(lite)
    for seq in range(1, 4):
        wire = record(seq=seq, last_s=T0 + 10 * seq).to_wire() | {"temp_c": [9.0, 40.0, 30.0, 4e9]}
        assert site.ship(records=[wire])["stored"] == 1
        assert (site.record().seq, site.record().allocated_s, site.record().temp_c) == (seq, 10.0 * seq, None)


def test_each_dropped_field_of_many_records_is_named_once_with_its_count(lite: Database) -> None:
    site = Site(lite)
    good = record(device="GPU-9").to_wire()
    spoilt = [{**record(device=f"GPU-{n}").to_wire(), "power_w": [1.0, -1, -1, -1]} for n in (1, 2, 3)]
    answer = site.ship(records=[good, *spoilt])
    assert answer["stored"] == 4
    ((named),) = answer["dropped"]
    assert (named["field"], named["n"], named["index"]) == ("power_w", 3, 1)


def test_a_field_is_logged_once_an_hour_by_node_and_name(
    lite: Database, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(lite)
    caplog.set_level(logging.WARNING)

    def logged() -> list[str]:
        caplog.clear()
        site.ship(records=[record().to_wire() | {"temp_c": [9.0, 40.0, 30.0, 4e9]}])
        return [item.getMessage() for item in caplog.records]

    why = "temp_c: 4000000000.0 must be from 0 to 200"
    expected = [f"temp_c of records[0] from n1 is dropped; the rest is stored: {why}"]
    assert logged() == expected
    site.clock.now += 3000
    assert logged() == []
    site.clock.now += 1000
    assert logged() == expected


def test_a_value_of_a_window_that_cannot_be_is_a_gap() -> None:
    wire = Window(
        job_id=1,
        segment="0" * 16,
        device="GPU-1",
        start_s=5.0,
        width_s=1.0,
        series={"power_w": pack([100.0, 4_294_967.0, None]), "util_pct": pack([1.0, 2.0, 3.0])},
    ).to_wire()
    dropped: dict[str, str] = {}
    window = Window.from_wire(wire, dropped)
    assert window.values("power_w") == [100.0, None, None]
    assert window.values("util_pct") == [1.0, 2.0, 3.0]
    assert dropped == {"series.power_w": "series.power_w: 1 values like 4.29497e+06 must be from 0 to 10000"}


@pytest.mark.parametrize("kind", ["records", "hosts"])
def test_an_item_without_its_key_or_times_is_refused_still(kind: str) -> None:
    _, wire, key = WHOLE[kind]
    for name in sorted(key & set(wire)):
        shipment = parse_shipment(
            json.dumps({"wire": 2, "node": "n1", kind: [{**wire, name: [-1]}]}).encode(), ""
        )
        assert [name in item.why for item in shipment.rejected] == [True], name
