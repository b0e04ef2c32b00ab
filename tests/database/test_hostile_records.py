"""Arbitrary values in one node's records do not change the runs of other jobs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.shipment import parse_shipment
from slurm_gpu.database.queries.run_filter import RunFilter
from slurm_gpu.database.queries.run_queries import find_job, find_runs, find_timelines
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run
from slurm_gpu.http.identity import Caller
from tests.database.conftest import empty
from tests.database.samples import CLUSTER, T0, FakeClock, MemorySlurm, queued, record, row, segment, timeline
from tests.examples import examples

ROOT = Caller(0, "root", sees_all=True, writes=True)
ADDRESS = {"n1": "127.0.1.1", "n2": "127.0.1.2"}

GOOD = [record(job_id=n, segment=segment(n), device=f"GPU-{n}", timeline=timeline(40, 40)) for n in (1, 3)]
# The optional fields of a record; with them every field is present.
FULL: dict[str, Any] = {
    **record(job_id=2, segment=segment(2), node="n2", uptime_s=500.0, granted_mgpu=1000).to_wire(),
    "no_process_s": 1.0,
    "suspended_s": 1.0,
    "mem_hist_ms": {"20": 9000},
    "power_w": [9.0, 100.0, 50.0, 200.0],
    "processes": [9.0, 1, 0, 2],
    "pcie_rx_bytes": [9.0, 1e6],
    "throttle_s": {"sw_power_cap": 1.0},
    "timeline": timeline(10, 20).to_wire(),
}
WRONG = st.one_of(
    st.sampled_from(
        [0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 10**300, 1e308, -1e308, 5e-324, 1e15, 1e24, 0.5]
    ),
    st.sampled_from(
        [None, True, "", "x", "n1", segment(1), "GPU-1", "\ud800", "0" * 16, [], {}, [[]], {"": 1}]
    ),
    st.sampled_from([T0, T0 - 10**6, T0 + 10**6, T0 + 5]),
    st.floats(),
    st.integers(),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths of all values in a record, such as ("power_w", 2) or ("timeline", "width_s")."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(item, (*path, key))


def _with(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    if not path:
        return wrong
    if not isinstance(value, dict | list):
        return value
    copy = dict(value) if isinstance(value, dict) else list(value)
    if path[0] in copy if isinstance(copy, dict) else path[0] < len(copy):
        copy[path[0]] = _with(copy[path[0]], path[1:], wrong)
    return copy


@st.composite
def hostile(draw: st.DrawFn) -> tuple[dict[str, Any], set[str]]:
    """Draw a record of job 2 on n2 with arbitrary values, and the names of the changed fields."""
    wire, names = FULL, set()
    for path in draw(st.lists(st.sampled_from(sorted(_places(FULL), key=str)), min_size=1, max_size=3)):
        wire = _with(wire, path, draw(WRONG))
        names.add(path[0])
    return wire, names


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'x.db'}")
    database.upgrade()
    yield database
    database.dispose()


def _ship(intake: Intake, node: str, *records: Any) -> list[str]:
    """Return the reasons for the rejection of items or of their shipment."""
    body = json.dumps({"wire": 1, "node": node, "records": records}).encode()
    try:
        shipment = parse_shipment(body, "")
    except ShipmentError as error:  # NaN is not JSON
        return [f"{error.status} {error}"]
    answer = intake.take(shipment, ADDRESS[node])
    return [item["why"] for item in answer["rejected"]]


def _others(database: Database) -> list[dict[str, Any]]:
    with database.reading() as connection:
        rows = connection.execute(select(run).where(run.c.job_id != 2).order_by(run.c.job_id)).mappings()
        return [{**row, "run_id": None} for row in rows]


@settings(max_examples=examples(), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hostile())
def test_a_hostile_record_is_refused_by_its_field_or_does_no_harm(
    lite: Database, lie: tuple[dict[str, Any], set[str]]
) -> None:
    empty(lite)
    wire, names = lie
    clock = FakeClock()
    slurm = MemorySlurm(jobs=[queued(job_id=2, nodes=("n2",))])
    intake = Intake(
        lite, SlurmView(slurm, clock, lambda name: frozenset({ADDRESS.get(name, name)})), CLUSTER, clock
    )
    rows = [row(job_id=n, nodes="n2" if n == 2 else "n1") for n in (1, 2, 3)]
    lite.write(lambda connection: store_changed_runs(connection, [run_row(item, {}) for item in rows]))
    assert _ship(intake, "n1", *(item.to_wire() for item in GOOD)) == []
    reconcile(lite)
    before = _others(lite)
    assert [(item["ugpucore"], item["coverage"]) for item in before] == [(40.0, 1.0)] * 2

    for why in _ship(intake, "n2", wire):
        # If two fields are inconsistent, either may be named. Jobs and nodes are checked against Slurm.
        reported = any(name in why for name in names) or why.startswith("400 the body is not JSON")
        assert reported or (names & {"job_id", "node", "segment", "cluster"}), why
    reconcile(lite)
    assert _others(lite) == before
    with lite.reading() as connection:
        everything = find_runs(connection, CLUSTER, RunFilter(), ROOT, T0 + 100)
        assert len(everything.runs) == 3
        for n in ("1", "2", "3"):
            (shown,) = find_job(connection, CLUSTER, n, ROOT, T0 + 100).runs
            json.dumps(shown.to_json(), allow_nan=False)
            find_timelines(connection, CLUSTER, n, ROOT)
