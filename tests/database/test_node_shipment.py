"""Test shipments, except their records and events: other parts, the sender's permissions, the answer."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from sqlalchemy import select

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.shipment import MAX_ITEMS, parse_shipment
from slurm_gpu.database.live import node_memory as nodememory
from slurm_gpu.database.live.node_memory import LATE_S, WANTED_FOR_S
from slurm_gpu.database.queries.run_detail import node_reports
from slurm_gpu.database.queries.run_queries import find_job
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import device, event, run_device, run_host, run_window
from slurm_gpu.http.identity import Caller
from slurm_gpu.wire import Event, Window
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S
from slurm_gpu.wire.window import pack
from tests.database.intake_without_http import N1, N2, Gate, whys
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
    timeline,
)
from tests.wire.strategies import JSON


def window(**given: Any) -> Window:
    values: dict[str, Any] = {
        "job_id": 1,
        "segment": segment(1),
        "device": "GPU-1",
        "start_s": float(T0),
        "width_s": 1.0,
        "series": {"util_pct": pack([0.0, None, 50.0])},
    }
    return Window(**{**values, **given})


def test_each_kind_is_stored_and_counted(database: Database) -> None:
    gate = Gate(database)
    everything: dict[str, Any] = {
        "records": [record(timeline=timeline(0, 100))],
        "hosts": [host()],
        "devices": [gpu(), gpu(uuid="GPU-2")],
        "windows": [window()],
        "live": {"at_s": T0, "devices": {"GPU-1": {"util_pct": 3}}},
    }
    answer = gate.ship(**everything)
    assert (answer["stored"], answer["stale"]) == (2, 0)
    assert not any(value for name, value in answer.items() if name.startswith("rejected"))
    tables = run_device, run_host, device, run_window
    assert [gate.count(table) for table in tables] == [1, 1, 2, 1]
    again = gate.ship(**everything)
    assert (again["stored"], again["stale"]) == (0, 2)
    assert [gate.count(table) for table in tables] == [1, 1, 2, 1]


def test_a_malformed_item_is_named_and_the_others_count(database: Database) -> None:
    gate = Gate(database)
    answer = gate.ship(
        hosts=[5, host()],
        devices=[gpu(), {**gpu().to_wire(), "memory_mib": "80G"}],
        windows=[{**window().to_wire(), "series": {"util_pct": "x"}}],
        live={"devices": {}},
    )
    assert whys(answer, "hosts") == {0: "a host record must be an object, not int"}
    assert whys(answer, "devices") == {}
    assert answer["dropped"] == [
        {
            "kind": "devices",
            "field": "memory_mib",
            "n": 1,
            "index": 1,
            "why": "memory_mib: '80G' must be a number",
        }
    ]
    assert whys(answer, "windows") == {0: "series.util_pct: 'x' is not base64 of 4-byte numbers"}
    assert whys(answer, "live") == {0: "at_s is missing"}
    assert answer["stored"] == 1
    assert gate.board.values() == {}


def test_a_node_can_report_only_about_itself(database: Database) -> None:
    gate = Gate(database)
    answer = gate.ship(hosts=[host(node="n2")], devices=[gpu(node="n2")])
    why = "127.0.1.1 is not an address of n2, whose addresses are 127.0.1.2, n2"
    assert whys(answer, "hosts") == whys(answer, "devices") == {0: why}
    answer = gate.ship(node="n2", windows=[window()], live={"at_s": T0})
    assert whys(answer, "windows") == whys(answer, "live") == {0: why}
    assert gate.count(run_window) == 0
    assert gate.board.values() == {}


def test_a_segment_belongs_to_one_job_on_one_node(database: Database) -> None:
    gate = Gate(database)
    gate.ship(records=[record()])
    other = {"node": "n2", "segment": segment(1), "seq": 9}
    answer = gate.ship(node="n2", address=N2, hosts=[host(**other)], windows=[window()])
    assert whys(answer, "hosts") == {0: f"segment {segment(1)} does not belong to job 1 on n2"}
    assert whys(answer, "windows") == {0: f"segment {segment(1)} does not belong to job 1 on n2"}
    answer = gate.ship(hosts=[host(job_id=7)], records=[record(job_id=7, device="GPU-9")])
    assert answer["stored"] == 0
    assert answer["rejected"][0]["why"] == f"segment {segment(1)} does not belong to job 7 on n1"


def test_slurm_denies_a_host_record_as_it_denies_a_record(database: Database) -> None:
    gate = Gate(database, MemorySlurm(jobs=[queued(nodes=("n2",))]))
    assert whys(gate.ship(hosts=[host()]), "hosts") == {0: "job 1 was never on n1 according to Slurm"}


def _nodes_and_events(database: Database) -> tuple[dict[str, set[str]], list[dict[str, Any]]]:
    with database.reading() as connection:
        reports = node_reports(connection, {})
        events = [dict(row) for row in connection.execute(select(event)).mappings()]
    return {report.node: {item.uuid for item in report.devices} for report in reports}, events


def test_a_gpu_reported_by_two_nodes_is_recorded(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(database)
    gate.ship(devices=[gpu(), gpu(uuid="GPU-2")])
    claimed = gpu(node="n2", at_s=T0 + 3600, name="a cheap one")
    for _ in range(2):
        gate.ship(node="n2", address=N2, devices=[claimed])
    nodes, events = _nodes_and_events(database)
    assert nodes == {"n1": {"GPU-1", "GPU-2"}, "n2": {"GPU-1"}}
    (reported,) = events
    assert (reported["kind"], reported["node"], reported["device"], reported["at_s"]) == (
        "device_elsewhere",
        "n2",
        "GPU-1",
        T0,
    )
    assert reported["data"] == {"nodes": ["n1"]}
    assert "n2 reports the device GPU-1, as does n1" in caplog.text
    gate.ship(records=[record()])
    accounted = [run_row(row(), {})]
    database.write(lambda connection: store_changed_runs(connection, accounted))
    reconcile(database)
    with database.reading() as connection:
        (run,) = find_job(connection, CLUSTER, "1", Caller(0, "root", True, True), T0).runs
    assert run.device_facts == {"GPU-1": gpu()}, "the report of its own node counts"


def test_a_gpu_that_was_moved_is_where_it_was_put(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(database)
    gate.ship(devices=[gpu(), gpu(uuid="GPU-2")])
    gate.ship(devices=[gpu(uuid="GPU-2", at_s=T0 + 60)])
    gate.ship(node="n2", address=N2, devices=[gpu(node="n2", at_s=T0 + 90)])
    assert _nodes_and_events(database) == ({"n1": {"GPU-2"}, "n2": {"GPU-1"}}, [])
    assert not caplog.records


def test_an_event_from_the_future_is_not_kept_indefinitely(database: Database) -> None:
    gate = Gate(database)
    happened = Event(node="n1", boot_id="b", n=1, at_s=T0 + 86_401, kind="gpu_lost")
    answer = gate.ship(events=[happened, replace(happened, n=2, at_s=T0 + 86_400)])
    assert whys(answer, "events") == {
        0: f"at_s: {T0 + 86_401} is more than a day in the future; set the clock of n1"
    }
    assert gate.count(event) == 1


def test_a_node_cannot_fill_the_database(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodememory, "AT_ONCE_ITEMS", 3)
    gate = Gate(database)

    def ship(first: int, node: str = "n1", address: str = N1) -> int:
        some = [host(node=node, segment=segment(first + n)) for n in range(3)]
        return int(gate.ship(node=node, address=address, hosts=some)["stored"])

    assert [ship(0), ship(10)] == [3, 3], "some are left until there are none"
    with pytest.raises(ShipmentError, match=r"n1 from 127\.0\.1\.1 sent more than") as caught:
        ship(20)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1)
    assert ship(30, "n2", N2) == 3, "the others have their own"
    assert gate.count(run_host) == 9
    gate.clock.now += 3 / nodememory.ITEMS_PER_S
    assert ship(20) == 3
    gate.clock.now += 60
    assert [ship(40), ship(50)] == [3, 3]


def test_a_sender_does_not_use_up_another_nodes_allowance(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodememory, "AT_ONCE_ITEMS", 0)
    gate = Gate(database)
    for _ in range(3):
        assert gate.ship(address=N2, hosts=[host()])["stored"] == 0
    assert gate.ship(hosts=[host()])["stored"] == 1


def test_the_name_on_a_shipment_neither_spends_what_another_may_send_nor_adds_to_ones_own(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodememory, "AT_ONCE_ITEMS", 3)
    gate = Gate(database)

    def ship(first: int, node: str) -> int:
        own = [host(segment=segment(first + n)) for n in range(4)]
        return int(gate.ship(node=node, hosts=own)["stored"])

    assert ship(0, "n2") == 4
    for name in ("n2", "invented", "n1"):
        with pytest.raises(ShipmentError, match=r"from 127\.0\.1\.1 sent more than"):
            ship(10, name)
    assert gate.ship(node="n2", address=N2, hosts=[host(node="n2", segment=segment(90))])["stored"] == 1


def test_a_report_from_the_future_is_rejected(database: Database) -> None:
    answer = Gate(database).ship(devices=[gpu(at_s=T0 + 90_000)])
    assert whys(answer, "devices") == {
        0: f"at_s: {T0 + 90_000} is more than a day in the future; set the clock of n1"
    }


def test_a_shipment_has_a_maximum_number_of_items() -> None:
    many = {"records": [1] * 400, "hosts": [1] * 300, "events": [1] * 300}
    body = json.dumps({"wire": 1, "node": "n1", **many, "open": [1] * 5000}).encode()
    assert len(parse_shipment(body, "").rejected) == MAX_ITEMS
    body = json.dumps({"wire": 1, "node": "n1", **many, "windows": [1]}).encode()
    with pytest.raises(ShipmentError, match="1001 items exceed the maximum of 1000") as caught:
        parse_shipment(body, "")
    assert caught.value.status == 413


def test_live_values_are_kept_until_the_next_are_late_and_late_ones_not_at_all(database: Database) -> None:
    gate = Gate(database)
    gate.ship(live={"at_s": T0 + 10, "devices": {"GPU-1": {"util_pct": 50}}})
    gate.ship(live={"at_s": T0})
    assert gate.board.values()["n1"].devices["GPU-1"].util_pct == 50
    gate.clock.now += LATE_S + IDLE_LIVE_INTERVAL_S - 1
    assert list(gate.board.values()) == ["n1"]
    gate.clock.now += 1
    assert gate.board.values() == {}
    gate.ship(live={"at_s": T0})
    assert list(gate.board.values()) == ["n1"], "the node's clock was set back"


def test_a_window_is_wanted_until_each_node_has_sent_it(database: Database) -> None:
    gate = Gate(database)
    assert gate.ship()["want"] == []
    for node in ("n1", "n2"):
        gate.wants.ask(node, 1)
    assert gate.ship()["want"] == [1]
    assert gate.ship(windows=[window()])["want"] == []
    assert gate.ship(node="n2", address=N2)["want"] == [1]
    assert gate.ship(node="n3", address="127.0.1.3")["want"] == [], "it has no such job"
    gate.clock.now += WANTED_FOR_S
    assert gate.ship(node="n2", address=N2)["want"] == []


def test_the_newest_window_stays(database: Database) -> None:
    gate = Gate(database)
    grown = window(series={"util_pct": pack([0.0, None, 50.0, 60.0])})
    moved = window(start_s=T0 + 1.0)
    set_back = window(start_s=T0 - 3600.0)
    for sent in (window(), grown, moved, set_back):
        gate.ship(windows=[sent])
        with database.reading() as connection:
            stored = connection.execute(select(run_window)).mappings().one()
        assert (Window.from_wire(dict(stored)), stored["at_s"]) == (sent, gate.clock.now)
        gate.clock.now += 10


def test_a_node_receives_which_of_its_open_jobs_have_ended(database: Database) -> None:
    account = [run_row(row(job_id=2, end_s=T0 - 500), {}), run_row(row(job_id=3, end_s=None), {})]
    database.write(lambda connection: store_changed_runs(connection, account))
    jobs = [queued(), queued(job_id=4, state="COMPLETED", end_s=T0 - 200, restarts=1)]
    gate = Gate(database, MemorySlurm(jobs=jobs))
    answer = gate.ship(open=[1, 2, 3, 4, 5, "x", -1, True, 2**70])
    assert answer["ended"] == {
        "2": {"restart": None, "end_s": T0 - 500},
        "4": {"restart": 1, "end_s": T0 - 200},
    }
    assert gate.ship()["ended"] == {}
    assert gate.ship(node="ws1", address=None, open=[2, 4])["ended"] == {}, "ws1 counts its own jobs"


def test_the_version_of_the_sender_is_read_and_an_odd_one_ignored() -> None:
    def version(value: Any) -> str | None:
        return parse_shipment(json.dumps({"wire": 1, "node": "n1", "version": value}).encode(), "").version

    assert version("0.2.0") == "0.2.0"
    assert [version(odd) for odd in (None, "", 5, "x" * 65, "\x1b[31m")] == [None] * 5


@given(JSON)
def test_no_live_values_stop_a_shipment(shared_database: Database, value: Any) -> None:
    body = json.dumps({"wire": 1, "node": "n1", "live": value}).encode()
    try:
        shipment = parse_shipment(body, "")
    except ShipmentError:  # NaN and Infinity are not JSON
        return
    clock = FakeClock()
    view = SlurmView(MemorySlurm(), clock, lambda name: frozenset({name}))
    answer = Intake(shared_database, view, CLUSTER, clock).take(shipment, None)
    assert len(answer["rejected_live"]) == (value is not None)
