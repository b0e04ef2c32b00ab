"""Nodes report runs on machines without Slurm, which are stored next to runs of Slurm's accounting."""

import json
from dataclasses import replace
from typing import Any

import pytest

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.shipment import parse_shipment
from slurm_gpu.database.queries.run_filter import RunFilter
from slurm_gpu.database.queries.run_queries import find_job, find_runs
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.errors import RecordError
from slurm_gpu.http.identity import Caller
from slurm_gpu.wire import HostRun, Record
from slurm_gpu.wire.answers.runs import Run
from tests.database.samples import CLUSTER, T0, FakeClock, MemorySlurm, record, row, segment

ROOT = Caller(0, "root", sees_all=True, writes=True)
ALICE = Caller(1001, "alice", sees_all=False, writes=False)
BOB = Caller(1002, "bob", sees_all=False, writes=False)

RUN = HostRun(
    cluster="host:ws1",
    job_id=1,
    node="ws1",
    seq=1,
    uid=1002,  # alice's on that machine
    user="alice",
    start_s=T0,
    devices=["GPU-0"],
)


def ship(database: Database, *runs: HostRun | dict[str, Any], records: list[Record] | None = None) -> Any:
    wire = [item if isinstance(item, dict) else item.to_wire() for item in runs]
    own = [item.to_wire() for item in records or []]
    body = json.dumps({"wire": 1, "node": "ws1", "boot_id": "b", "records": own, "runs": wire})
    slurm = MemorySlurm()
    view = SlurmView(slurm, FakeClock(), lambda name: frozenset({name}))
    return Intake(database, view, CLUSTER, FakeClock()).take(parse_shipment(body.encode(), ""), None)


def test_a_node_of_slurm_invents_no_runs(database: Database) -> None:
    answer = ship(database, replace(RUN, node="n1", cluster="host:n1"), RUN)
    assert answer["rejected_runs"] == [
        {"index": 0, "why": "n1 is a Slurm node, whose runs are read from accounting"}
    ]
    assert [run.cluster for run in found(database)] == ["host:ws1"]


def host_metrics(**given: Any) -> Record:
    own = {"cluster": "host:ws1", "node": "ws1", "job_id": 1, "restart": 0, "device": "GPU-0"}
    return record(**{**own, "first_s": T0, "last_s": T0 + 10, "prolog_s": T0, **given})


def found(database: Database, caller: Caller = ROOT, **query: str) -> list[Run]:
    with database.reading() as connection:
        return list(find_runs(connection, CLUSTER, RunFilter.from_query(query), caller, T0 + 100.0).runs)


def test_a_run_is_shown_with_its_records(database: Database) -> None:
    answer = ship(database, RUN, records=[host_metrics()])
    assert (answer["rejected"], answer["rejected_runs"]) == ([], [])
    reconcile(database)
    (run,) = found(database)
    assert (run.cluster, run.id, run.user, run.state) == ("host:ws1", "1", "alice", "RUNNING")
    assert (run.n_gpus, run.nodes, run.wait_h, run.elapsed_s) == (1.0, "ws1", None, 100)
    assert run.ugpucore is not None
    ship(database, RUN.ended(T0 + 10), records=[host_metrics(seq=9, final=True)])
    reconcile(database)
    (run,) = found(database)
    assert (run.state, run.end_s, run.elapsed_s) == ("COMPLETED", T0 + 10, 10)
    with database.reading() as connection:
        (shown,) = find_job(connection, CLUSTER, "1", ROOT, T0 + 100.0).runs
    assert [device.segment for device in shown.devices or ()] == [segment(1)]


def test_an_ended_run_may_be_resumed(database: Database) -> None:
    ship(database, RUN.ended(T0 + 10))
    ship(database, RUN.ended(T0 + 10).resumed())
    (run,) = found(database)
    assert (run.state, run.end_s) == ("RUNNING", None)


def test_an_outdated_report_is_ignored(database: Database) -> None:
    over = RUN.ended(T0 + 10)
    ship(database, over, RUN)
    ship(database, RUN)
    (run,) = found(database)
    assert (run.state, run.end_s) == ("COMPLETED", T0 + 10)


@pytest.mark.parametrize("end_s", [None, T0 + 100])
def test_an_id_that_came_round_again_after_a_node_lost_its_memory_is_the_new_runs(
    database: Database, end_s: int | None
) -> None:
    """Test an old run whose end was reported minutes before, or never."""
    old = RUN if end_s is None else RUN.ended(end_s)
    ship(database, old, records=[host_metrics(last_s=T0 + 100, util_hist_ms={5: 100_000})])
    again_s = T0 + 340 if end_s is not None else T0 + 86400
    new = replace(RUN, user="bob", start_s=again_s).ended(again_s + 1000)
    seen = {"segment": segment(2), "first_s": again_s, "last_s": again_s + 1000, "prolog_s": again_s}
    ship(database, new, records=[host_metrics(**seen, util_hist_ms={95: 1_000_000})])
    reconcile(database)
    assert {run.user: run.ugpucore for run in found(database)} == {"alice": 5.0, "bob": 95.0}


def test_a_run_gets_the_uid_of_the_name_here_when_it_is_reported(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test access by user name, whatever the machine's uid, except for a later user with the same name."""
    uids = {"alice": ALICE.uid}
    monkeypatch.setattr("slurm_gpu.database.ingest.intake.uid_of", uids.get)
    ship(database, RUN)
    uids["alice"] = 2001
    ship(database, replace(RUN, job_id=2), replace(RUN, job_id=3, user="nobody-here"))
    shown = {
        uid: [run.id for run in found(database, Caller(uid, "alice", False, False)) if run.full]
        for uid in (ALICE.uid, 2001, BOB.uid)
    }
    assert shown == {ALICE.uid: ["1"], 2001: ["2"], BOB.uid: []}
    assert len(found(database, ROOT)) == 3


def test_devices_that_cannot_be_read_cost_the_number_of_gpus_and_not_the_run(database: Database) -> None:
    answer = ship(database, {**RUN.to_wire(), "devices": "GPU-0"})
    assert answer["rejected_runs"] == []
    (run,) = found(database)
    assert (run.user, run.n_gpus) == ("alice", None)


def test_the_same_number_in_slurm_is_another_job(database: Database) -> None:
    database.write(lambda connection: store_changed_runs(connection, [run_row(row(job_id=1), {})]))
    ship(database, RUN, records=[host_metrics(segment=segment(7))])
    reconcile(database)
    clusters = sorted(run.cluster for run in found(database))
    assert clusters == sorted([CLUSTER, "host:ws1"])
    with database.reading() as connection:
        shown = find_job(connection, CLUSTER, "1", ROOT, T0 + 100.0).runs
    devices = {run.cluster: [d.segment for d in run.devices or ()] for run in shown}
    assert devices == {CLUSTER: [], "host:ws1": [segment(7)]}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"cluster": CLUSTER}, "must be host:ws1; the runs of Slurm clusters are imported"),
        ({"cluster": "host:other"}, "must be host:ws1"),
        ({"user": None}, "user is missing"),
        ({"end_s": T0 - 1}, "is before start_s"),
    ],
)
def test_an_invalid_host_run_is_rejected_with_a_reason(
    database: Database, wrong: dict[str, Any], why: str
) -> None:
    answer = ship(database, {**RUN.to_wire(), **wrong})
    (rejected,) = answer["rejected_runs"]
    assert why in rejected["why"]
    assert found(database) == []


def test_it_comes_back_from_the_wire_as_it_was() -> None:
    over = replace(RUN, devices=("GPU-0",)).ended(T0 + 5)
    assert HostRun.from_wire(json.loads(json.dumps(over.to_wire()))) == over
    with pytest.raises(RecordError, match="must be an object"):
        HostRun.from_wire(5)
