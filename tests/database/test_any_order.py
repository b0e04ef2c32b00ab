"""The final tables do not change if shipments are interleaved, lost and resent, duplicated or reordered."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.shipment import parse_shipment
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import device, event, run, run_device, run_host, run_window
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire import DeviceFacts, Event, Host, HostRun, Record, Window
from tests.database.conftest import empty
from tests.database.samples import (
    CLUSTER,
    T0,
    FakeClock,
    MemorySlurm,
    gpu,
    host,
    record,
    requeued,
    row,
    segment,
    timeline,
)
from tests.database.servers import MariaDB
from tests.database.test_node_shipment import window
from tests.examples import examples

Delivery = Record | Host | DeviceFacts | Event | Window | HostRun | AccountingRun
_LISTS = {
    Record: "records",
    Host: "hosts",
    DeviceFacts: "devices",
    Event: "events",
    Window: "windows",
    HostRun: "runs",
}


def _story() -> list[Delivery]:
    """Records of one day, in growing versions: a requeued job, one on two nodes, and one watched twice.

    Meanwhile, a GPU gets a new driver and moves to another node.
    """
    found: list[Delivery] = []
    for seq, seconds in ((1, 3), (2, 6), (3, 10)):
        for restart, offset in ((0, 0), (1, 40)):
            span = {"first_s": T0 + offset, "last_s": T0 + offset + seconds, "seq": seq}
            busy = 20 + 60 * restart
            course = timeline(*[busy] * seconds, start_s=T0 + offset)
            watch = {"segment": segment(10 + restart), "restart": restart, **span}
            found.append(record(**watch, util_hist_ms={busy: seconds * 1000}, timeline=course))
            found.append(host(**watch, cpu_s=float(seconds), app=None if seq == 1 else f"App{restart}"))
        for n in (1, 2):
            watch = {"job_id": 2, "node": f"n{n}", "segment": segment(20 + n), "seq": seq}
            found.append(record(**watch, device=f"GPU-{n}", last_s=T0 + seconds))
            found.append(host(**watch, last_s=T0 + seconds, rss_max_mib=100.0 * seconds))
            found.append(
                Event(node=f"n{n}", boot_id="b", n=seq, at_s=T0 + seq, kind="xid", data={"code": 79})
            )
        found.append(record(job_id=3, segment=segment(30), seq=seq, last_s=T0 + seconds))
        found.append(gpu(at_s=T0 + 100 * seq, driver=str(seq)))
        found.append(gpu(at_s=T0 + 100 * seq, driver=str(seq), node="n2", uuid="GPU-2"))
    # The last window to arrive counts, because a node has one window at a time and never resends it.
    found.append(window(job_id=3, segment=segment(30)))
    alone = {"cluster": "host:ws1", "node": "ws1", "job_id": 1}
    begun = HostRun(**alone, seq=1, uid=1001, user="alice", start_s=T0, devices=("GPU-7",))
    found += [begun, begun.ended(T0 + 5), begun.ended(T0 + 5).resumed().ended(T0 + 10)]
    found.append(record(**alone, segment=segment(40), device="GPU-7"))
    found.append(record(job_id=3, segment=segment(31), sampled_s=4.0, util_hist_ms={7: 4000}))
    return [
        *found,
        *requeued(),
        row(job_id=2, nodes="n[1-2]", n_nodes=2, tres_allocated={"gres/gpu": 2}),
        row(job_id=3),
    ]


_STORY = _story()


def _key(item: Delivery) -> tuple[Any, ...]:
    """Return the key of an item."""
    match item:
        case Record() | Window():
            return type(item), item.segment, item.device
        case Host():
            return type(item), item.segment
        case DeviceFacts():
            return type(item), item.node, item.uuid
        case Event():
            return type(item), item.node, item.n
        case HostRun():
            return type(item), item.cluster, item.job_id
    return type(item), item.job_id, item.submit_s


# Only replaced versions may be lost: the node sends the newest until it is acknowledged.
_NEWEST = set({_key(item): index for index, item in enumerate(_STORY)}.values())
_MAY_BE_LOST = sorted(set(range(len(_STORY))) - _NEWEST)


def deliver(database: Database, items: Sequence[Delivery]) -> None:
    """Import the items of Slurm's accounting, and ship all others in one shipment of each node."""
    rows = [run_row(item, {}) for item in items if isinstance(item, AccountingRun)]
    if rows:
        database.write(lambda connection: store_changed_runs(connection, rows))
    by_node: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if not isinstance(item, AccountingRun):
            node = "n1" if isinstance(item, Window) else item.node
            by_node[node][_LISTS[type(item)]].append(item.to_wire())
    clock = FakeClock()
    intake = Intake(database, SlurmView(MemorySlurm(), clock), CLUSTER, clock)
    for node, lists in by_node.items():
        answer = intake.take(
            parse_shipment(json.dumps({"wire": 1, "node": node, **lists}).encode(), ""), None
        )
        assert not any(value for name, value in answer.items() if name.startswith("rejected"))


def tables(database: Database) -> dict[str, Any]:
    """Return the tables, with keys of runs instead of row numbers."""
    with database.reading() as connection:

        def rows(table: Any) -> list[dict[str, Any]]:
            return [dict(r) for r in connection.execute(select(table)).mappings()]

        runs = {r["run_id"]: r for r in rows(run)}
        keys = {run_id: (r["cluster"], r["job_id"], r["submit_s"]) for run_id, r in runs.items()}
        keyed = {
            table.name: sorted(
                ({**r, "row_id": None, "run_id": keys.get(r["run_id"])} for r in rows(table)),
                key=lambda r: (r["segment"], r.get("device", "")),
            )
            for table in (run_device, run_host)
        }
        others = {table.name: sorted(map(repr, rows(table))) for table in (device, run_window)}
        events = sorted(map(tuple, connection.execute(select(event.c.node, event.c.n, event.c.kind))))
    in_order = sorted(runs.values(), key=lambda r: keys[r["run_id"]])
    return {"run": [{**r, "run_id": None} for r in in_order], "event": events, **keyed, **others}


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('lite') / 'x.db'}")
    database.upgrade()
    yield database
    database.dispose()


@pytest.fixture(scope="module")
def maria(mariadb: MariaDB) -> Iterator[Database]:
    database = Database(mariadb.fresh())
    database.upgrade()
    yield database
    database.dispose()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the tables after the story arrived once, in order."""
    path: Path = tmp_path_factory.mktemp("story")
    database = Database(f"sqlite:///{path / 'x.db'}")
    database.upgrade()
    deliver(database, _STORY)
    reconcile(database)
    state = tables(database)
    database.dispose()
    assert [r["ugpucore"] for r in state["run"]] == [40.0, 20.0, 80.0, 40.0, 40.0]
    assert [r["app"] for r in state["run"]] == [None, "App0", "App1", "GROMACS", None]
    assert [r["coverage"] for r in state["run"]] == [1.0] * 5
    assert len(state["event"]) == 7
    assert ["n2" in text for text in state["device"]] == [False, True]
    return state


@st.composite
def deliveries_of(draw: st.DrawFn) -> list[tuple[list[int], bool]]:
    """Yield all shipments of the story except lost ones, each with or without an import after it."""
    lost = draw(st.sets(st.sampled_from(_MAY_BE_LOST)))
    order = draw(st.permutations([index for index in range(len(_STORY)) if index not in lost]))
    again = draw(st.lists(st.integers(0, len(_STORY) - 1), max_size=10))
    items = [*order, *again]
    shipments: list[tuple[list[int], bool]] = []
    while items:
        size = draw(st.integers(1, 8))
        shipments.append((items[:size], draw(st.booleans())))
        items = items[size:]
    return shipments


def _deliver(database: Database, shipments: Sequence[tuple[list[int], bool]]) -> dict[str, Any]:
    empty(database)
    for indexes, reconciles in shipments:
        deliver(database, [_STORY[index] for index in indexes])
        if reconciles:
            reconcile(database)
    reconcile(database)
    assert reconcile(database) == 0
    return tables(database)


_SLOW_FIXTURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=examples(8), suppress_health_check=_SLOW_FIXTURE)
@given(shipments=deliveries_of())
def test_any_interleaving_loss_duplication_and_reordering_ends_the_same(
    lite: Database, expected: dict[str, Any], shipments: list[tuple[list[int], bool]]
) -> None:
    assert _deliver(lite, shipments) == expected


@settings(max_examples=examples(3), suppress_health_check=_SLOW_FIXTURE)
@given(shipments=deliveries_of())
def test_on_mariadb_too(
    maria: Database, expected: dict[str, Any], shipments: list[tuple[list[int], bool]]
) -> None:
    assert _deliver(maria, shipments) == expected
