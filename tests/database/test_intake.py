import dataclasses
import gzip
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.accounting.writer import read_record, store_records
from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.job_facts import job_facts
from slurm_gpu.database.ingest.shipment import (
    MAX_GROUPS,
    MAX_INFLATED_BYTES,
    MAX_ITEMS,
    MAX_VALUES,
    CheckedShipment,
    parse_shipment,
)
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run_device
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire import Event, Mean, Record, Total
from tests.database.samples import (
    CLUSTER,
    T0,
    FakeClock,
    MemorySlurm,
    node,
    queued,
    record,
    requeued,
    row,
    segment,
    timeline,
)

N1, N2 = "127.0.1.1", "127.0.1.2"


def body(**given: Any) -> bytes:
    return json.dumps({"wire": 1, "node": "n1", "boot_id": "boot", "records": [], **given}).encode()


def take(
    database: Database,
    slurm: MemorySlurm,
    *records: Any,
    address: str | None = N1,
    resolve: Any = None,
    **given: Any,
) -> dict[str, Any]:
    view = SlurmView(slurm, FakeClock(), resolve or (lambda name: frozenset({name})))
    wire = [item.to_wire() if isinstance(item, Record) else item for item in records]
    return Intake(database, view, CLUSTER, FakeClock()).take(
        parse_shipment(body(records=wire, **given), ""), address
    )


def reasons(answer: dict[str, Any]) -> dict[int, str]:
    return {item["index"]: item["why"] for item in answer["rejected"]}


def account(database: Database, *rows: AccountingRun) -> None:
    database.write(lambda connection: store_changed_runs(connection, [run_row(r, {}) for r in rows]))


def test_good_records_are_stored_and_bad_ones_named(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    bad = {**record(segment=segment(2)).to_wire(), "allocated_s": "long"}
    answer = take(database, MemorySlurm(), record(), bad, 5, record(segment=segment(3)), record())
    assert (answer["stored"], answer["stale"]) == (2, 1)
    assert list(reasons(answer)) == [1, 2]
    assert reasons(answer)[1] == "allocated_s: 'long' must be a number"
    assert answer["want"] == []
    assert "'n1' from 127.0.1.1: 2 items rejected, such as records[1]: allocated_s: 'long'" in caplog.text
    assert answer["wire"] == [1, 2]


def test_a_record_counts_only_from_its_nodes_address(database: Database) -> None:
    slurm = MemorySlurm()
    forged, own = record(node="n2", segment=segment(2)), record()
    assert reasons(take(database, slurm, own, forged)) == {
        1: "127.0.1.1 is not an address of n2, whose addresses are 127.0.1.2, n2"
    }
    assert reasons(take(database, slurm, record(node="nowhere"))) == {
        0: "nowhere is not a node of this cluster"
    }
    assert reasons(take(database, slurm, own, address="::ffff:127.0.1.1")) == {}


def test_an_event_counts_only_from_its_nodes_address(database: Database) -> None:
    events = [
        Event(node=name, boot_id="b", n=n, at_s=T0, kind="gpu_lost").to_wire()
        for n, name in enumerate(("n1", "n2"))
    ]
    answer = take(database, MemorySlurm(), events=events)
    assert [item["index"] for item in answer["rejected_events"]] == [1]


def test_missing_information_from_slurm_denies_nothing(database: Database) -> None:
    down = MemorySlurm()
    down.unavailable = True
    assert take(database, down, record(node="n2"))["stored"] == 1
    unresolved = take(
        database, MemorySlurm(), record(node="n2", segment=segment(2)), resolve=lambda name: frozenset()
    )
    assert unresolved["stored"] == 1
    assert take(database, MemorySlurm(), record(node="n2", segment=segment(3)), address=None)["stored"] == 1


def test_an_unknown_sender_waits_for_an_unreachable_slurmctld(database: Database) -> None:
    slurm, clock = MemorySlurm(), FakeClock()
    intake = Intake(database, SlurmView(slurm, clock, lambda name: frozenset({name})), CLUSTER, clock)
    shipment = parse_shipment(body(records=[record().to_wire()]), "")
    assert intake.take(shipment, N2)["rejected"]
    slurm.unavailable = True
    clock.now += 100
    with pytest.raises(SlurmError):
        intake.take(shipment, N2)
    assert intake.take(shipment, N1)["stored"] == 1


def test_a_job_that_was_never_on_the_node_is_denied_by_slurmctld(database: Database) -> None:
    slurm = MemorySlurm(jobs=[queued(nodes=("n2", "n3"))])
    assert reasons(take(database, slurm, record())) == {0: "job 1 was never on n1 according to Slurm"}
    assert take(database, slurm, record(restart=1))["stored"] == 1, "the next run may be anywhere"


@pytest.mark.parametrize(
    "given", [{"state": "COMPLETING"}, {"resized_s": T0 + 5}], ids=["it is completing", "it was resized"]
)
def test_slurmctld_denies_nothing_of_a_job_that_has_left_some_of_its_nodes(
    database: Database, given: dict[str, Any]
) -> None:
    slurm = MemorySlurm(jobs=[queued(nodes=("n2",), **given)])
    assert take(database, slurm, record())["stored"] == 1


def test_a_job_that_was_never_on_the_node_is_denied_by_accounting(database: Database) -> None:
    account(database, row(nodes="n2", end_s=T0 + 10_000, elapsed_s=10_000))
    inside = record(first_s=T0 + 5000, last_s=T0 + 5010)
    assert reasons(take(database, MemorySlurm(), inside)) == {0: "job 1 was never on n1 according to Slurm"}
    at_the_edge = record(first_s=T0 + 9900, last_s=T0 + 9950)
    assert take(database, MemorySlurm(), at_the_edge)["stored"] == 1


def test_the_rest_of_a_resized_job_denies_no_earlier_record(database: Database) -> None:
    """Test a row after a resize that has the whole run's start; the earlier row may arrive later."""
    resized_s = T0 + 5000
    account(database, row(nodes="n2", submit_s=resized_s, start_s=T0, end_s=T0 + 10_000, elapsed_s=10_000))
    before = record(first_s=T0 + 1000, last_s=resized_s)
    assert take(database, MemorySlurm(), before)["stored"] == 1
    after = record(segment=segment(2), first_s=T0 + 6000, last_s=T0 + 6010)
    assert reasons(take(database, MemorySlurm(), after)) == {0: "job 1 was never on n1 according to Slurm"}


def test_a_node_cannot_overwrite_what_another_shipped(database: Database) -> None:
    slurm = MemorySlurm()
    take(database, slurm, record())
    for forged in (record(node="n2", job_id=5, seq=9), record(node="n2", seq=9)):
        answer = take(database, slurm, forged, address=N2)
        assert answer["stored"] == 0
        assert reasons(answer)[0] == f"segment {segment(1)} does not belong to job {forged.job_id} on n2"
    assert take(database, slurm, record(seq=2))["stored"] == 1


def test_not_even_between_the_check_and_the_write(database: Database) -> None:
    database.write(lambda connection: store_records(connection, [record()]))
    forged = record(node="n2", seq=9, sampled_s=0.0)
    database.write(lambda connection: store_records(connection, [forged]))
    with database.reading() as connection:
        assert read_record(connection.execute(select(run_device)).mappings().one()) == record()


def test_doubt_counts_for_the_record(database: Database) -> None:
    first, _ = requeued()
    account(database, first)
    cases = {
        "its run is known": record(),
        "unknown job": record(job_id=9, segment=segment(9)),
        "a cluster without scheduler": record(cluster="host:n1", segment=segment(8)),
    }
    slurm = MemorySlurm(jobs=[queued(nodes=("n2",), restarts=1)])
    for why, item in cases.items():
        assert take(database, slurm, item)["rejected"] == [], why


def test_the_node_receives_its_jobs(database: Database) -> None:
    jobs = [
        queued(job_id=1, gpu_index={"n1": {"gpu": (0, 2)}}, tres_allocated={"gres/gpu": 2}, reason="Prolog"),
        queued(
            job_id=2,
            array_job_id=90,
            array_task="7",
            tres_allocated={"gres/shard": 1},
            gpu_index={"n1": {"shard": (1,)}},
        ),
        queued(
            job_id=3,
            nodes=("n1", "n2"),
            tres_allocated={"gres/shard": 4},
            gpu_index={"n1": {"shard": (1,)}, "n2": {"shard": (1,)}},
        ),
        queued(job_id=4, nodes=("n2",)),
    ]
    seen = take(database, MemorySlurm(jobs=jobs))["jobs"]
    assert set(seen) == {"1", "2", "3"}
    assert (seen["1"]["granted_mgpu"], seen["1"]["shards"]) == (1000, None)
    assert seen["1"]["gpu_index"] == {"gpu": [0, 2]}
    assert (seen["1"]["in_prolog"], seen["2"]["in_prolog"]) == (True, False)
    assert 0 <= seen["1"]["age_s"] < 2
    assert (seen["2"]["granted_mgpu"], seen["2"]["shards"], seen["2"]["array_task"]) == (
        250,
        1,
        "7",
    )
    assert (seen["3"]["granted_mgpu"], seen["3"]["shards"]) == (500, 2)


@pytest.mark.parametrize(
    ("tres", "nodes", "shards", "granted_mgpu"),
    [
        ({"gres/shard": 1}, 1, (2,), 250),
        ({"gres/shard": 4}, 1, (2,), 1000),
        ({"gres/shard": 8}, 1, (2, 3), 1000),
        ({"gres/shard": 8}, 2, (2,), 1000),
        ({"gres/shard": 6}, 1, (2, 3), None),
        ({"gres/shard": 3}, 1, (2, 3), None),
        ({"gres/shard": 6}, 1, (), None),
        ({"gres/shard": 3}, 2, (2,), None),
        ({"gres/shard": 2, "gres/gpu": 1}, 1, (2,), None),
        ({"gres/gpu": 2}, 1, (), 1000),
    ],
)
def test_the_granted_part_of_each_gpu_is_sent_only_if_known(
    tres: dict[str, float], nodes: int, shards: tuple[int, ...], granted_mgpu: int | None
) -> None:
    """Test GPUs of four shards; a job's shards may be on several GPUs and differ between nodes."""
    names = tuple(f"n{n + 1}" for n in range(nodes))
    index = dict.fromkeys(names, {"shard": shards} if shards else {"gpu": (0, 1)})
    job = queued(tres_allocated=tres, nodes=names, gpu_index=index)
    assert job_facts(job, "n1", node(1))["granted_mgpu"] == granted_mgpu


def test_a_job_that_is_completing_was_granted_what_it_was() -> None:
    """Test a completing job, for which slurmctld lists only its remaining nodes and no GPUs."""
    tres = {"node": 2, "gres/shard": 4}
    running = queued(tres_allocated=tres, nodes=("n1", "n2"), gpu_index={"n1": {"shard": (2,)}})
    completing = queued(tres_allocated=tres, nodes=("n1",), gpu_index={}, state="COMPLETING")
    for job in (running, completing):
        facts = job_facts(job, "n1", node(1))
        assert (facts["granted_mgpu"], facts["shards"]) == (500, 2)


def test_a_thousand_shipments_cost_slurmctld_one_question(database: Database) -> None:
    slurm, clock = MemorySlurm(jobs=[queued()]), FakeClock()
    intake = Intake(database, SlurmView(slurm, clock, lambda name: frozenset({name})), CLUSTER, clock)
    empty = parse_shipment(body(), "")
    for _ in range(1000):
        intake.take(empty, N1)
    assert slurm.job_calls == 1
    slurm.unavailable = True
    clock.now += 60
    assert set(intake.take(empty, N1)["jobs"]) == {"1"}, "an old answer is better than none"


def test_a_gzipped_shipment_is_the_same_shipment() -> None:
    sent = body(records=[record().to_wire()])
    assert parse_shipment(gzip.compress(sent), "gzip") == parse_shipment(sent, "")


@pytest.mark.parametrize(
    ("status", "sent", "encoding"),
    [
        (400, b"", ""),
        (400, b"\xff", ""),
        (400, b"[]", ""),
        (400, b"null", ""),
        (400, b'{"wire": 1, "node": "n1", "records": NaN}', ""),
        (400, b'{"wire": Infinity, "node": "n1"}', ""),
        (400, b'{"wire": 1, "node": "n1", "x": ' + b"9" * 5000 + b"}", ""),
        (400, b'{"wire": 1, "node": "n1", "x": ' + b"[" * 90_000, ""),
        (400, body(wire="1"), ""),
        (400, body(wire=True), ""),
        (400, body(wire=None), ""),
        (426, body(wire=3), ""),
        (426, body(wire=0), ""),
        (426, body(wire=-(10**300)), ""),
        (400, body(node=None), ""),
        (400, body(node=""), ""),
        (400, body(node=["n1"]), ""),
        (400, body(records={}), ""),
        (400, body(records="x"), ""),
        (400, body(events=7), ""),
        (400, body(), "gzip"),
        (400, body(), "br"),
        (400, gzip.compress(body(), mtime=0)[:-4], "gzip"),
        (400, gzip.compress(body(), mtime=0) + b"more", "gzip"),
        (413, gzip.compress(b" " * (MAX_INFLATED_BYTES + 1), mtime=0), "gzip"),
        (413, body(x=[0] * MAX_VALUES), ""),
        (413, body(x=[[]] * MAX_GROUPS), ""),
        (413, body(x=[{}] * MAX_GROUPS), ""),
        (413, body(x="[" * (MAX_GROUPS + 1)), ""),
        (413, gzip.compress(b"[" * MAX_INFLATED_BYTES, mtime=0), "gzip"),
        (400, b'{"wire": 1, "node": "n1", "x": ' + b"9" * 310 + b"}", ""),
    ],
)
def test_an_invalid_shipment_is_refused_as_a_whole(status: int, sent: bytes, encoding: str) -> None:
    with pytest.raises(ShipmentError) as caught:
        parse_shipment(sent, encoding)
    assert caught.value.status == status


@pytest.mark.parametrize(
    "data", [{"x": "y" * 5000}, {"x": 1e400}, {"x": {"y": {}}, "z": "\x00" * 3000}, ["no object"]]
)
def test_an_event_loses_data_that_cannot_be_stored(data: Any) -> None:
    event = {"node": "n1", "boot_id": "b", "n": 1, "at_s": T0, "kind": "odd", "data": data}
    sent = json.dumps({"wire": 1, "node": "n1", "events": [event]}).replace("Infinity", "1e400").encode()
    shipment = parse_shipment(sent, "")
    assert [(item.kind, item.data) for item in shipment.events.values()] == [("odd", {})]
    assert list(shipment.dropped.found) == [("events", "data")]
    assert not shipment.rejected


@pytest.mark.parametrize("before", [b'{"wire": ', b'{"wire": 1, "node": '])
def test_the_deepest_parseable_value_can_be_named(before: bytes) -> None:
    for depth in range(sys.getrecursionlimit()):
        with pytest.raises(ShipmentError, match=r"must be|not JSON"):
            parse_shipment(before + b"[" * depth + b"]" * depth + b"}", "")


def test_a_thousand_records_that_are_full_of_values_are_no_bomb() -> None:
    seconds = 1010.0
    full = record(
        last_s=T0 + 1010,
        util_hist_ms=dict.fromkeys(range(101), 10_000),
        mem_hist_ms=dict.fromkeys(range(101), 10_000),
        throttle_s={f"reason_{n}": 1.0 for n in range(10)},
        timeline=timeline(*[50.0] * 256),
        **{f.name: Mean(seconds, 0.5, 0.25, 1.0) for f in dataclasses.fields(Record) if "Mean" in f.type},
        **{f.name: Total(seconds, 1.5) for f in dataclasses.fields(Record) if "Total" in f.type},
    )
    sent = [{**full.to_wire(), "segment": segment(n)} for n in range(MAX_ITEMS)]
    parsed = parse_shipment(body(records=sent), "")
    assert (len(parsed.records), parsed.rejected) == (MAX_ITEMS, [])


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**400), max_value=10**400)
    | st.floats()
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.binary(max_size=200), st.sampled_from(["", "gzip", "identity", "x"]))
def test_no_bytes_do_more_than_be_refused(sent: bytes, encoding: str) -> None:
    with pytest.raises(ShipmentError):
        parse_shipment(sent, encoding)


@given(st.dictionaries(st.sampled_from([*record().to_wire(), "other"]), json_values, max_size=3))
def test_a_record_with_any_field_replaced_is_stored_or_rejected(
    shared_database: Database, fields: dict[str, Any]
) -> None:
    sent = json.dumps({"wire": 1, "node": "n1", "records": [{**record().to_wire(), **fields}]})
    try:
        shipment: CheckedShipment = parse_shipment(sent.encode(), "")
    except ShipmentError:  # NaN and Infinity are not JSON
        return
    view = SlurmView(MemorySlurm(), FakeClock(), lambda name: frozenset({name}))
    answer = Intake(shared_database, view, CLUSTER, FakeClock()).take(shipment, None)
    assert answer["stored"] + answer["stale"] + len(answer["rejected"]) == 1


@given(
    st.dictionaries(
        st.sampled_from(["node", "boot_id", "n", "at_s", "kind", "device", "job_id", "data"]), json_values
    )
)
def test_an_event_with_any_field_replaced_is_stored_or_rejected(
    shared_database: Database, fields: dict[str, Any]
) -> None:
    event = {"node": "n1", "boot_id": "b", "n": 1, "at_s": T0, "kind": "odd", **fields}
    try:
        shipment = parse_shipment(json.dumps({"wire": 1, "node": "n1", "events": [event]}).encode(), "")
    except ShipmentError:
        return
    view = SlurmView(MemorySlurm(), FakeClock(), lambda name: frozenset({name}))
    answer = Intake(shared_database, view, CLUSTER, FakeClock()).take(shipment, None)
    assert len(shipment.events) + len(answer["rejected_events"]) == 1
