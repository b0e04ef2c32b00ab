"""Host records, timelines and device facts in the tables."""

from typing import Any

import pytest
from sqlalchemy import select

from slurm_gpu.database.accounting.derived_columns import application
from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import (
    read_host,
    read_record,
    store_devices,
    store_hosts,
    store_records,
)
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import device, run, run_device, run_host
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire import DeviceFacts, Host
from tests.database.samples import T0, gpu, host, record, requeued, row, segment, timeline


def ship(database: Database, *hosts: Host) -> tuple[int, int]:
    fresh = database.write(lambda connection: store_hosts(connection, hosts))
    return sum(fresh), len(fresh) - sum(fresh)


def account(database: Database, *rows: AccountingRun) -> None:
    database.write(lambda connection: store_changed_runs(connection, [run_row(r, {}) for r in rows]))


def rows_of(database: Database, table: Any) -> list[Any]:
    with database.reading() as connection:
        return list(connection.execute(select(table)).mappings())


def test_a_host_record_comes_back_as_it_was_shipped(database: Database) -> None:
    for sent in (host(), host(segment=segment(2), cpu_s=None, app=None, app_params=None, container=None)):
        ship(database, sent)
        (stored,) = [r for r in rows_of(database, run_host) if r["segment"] == sent.segment]
        assert read_host(stored) == sent


def test_the_greater_seq_wins_and_another_jobs_never(database: Database) -> None:
    assert ship(database, host(seq=5, cpu_s=50.0)) == (1, 0)
    assert ship(database, host(seq=4, cpu_s=99.0)) == (0, 1)
    ship(database, host(seq=9, cpu_s=99.0, job_id=7))
    assert rows_of(database, run_host)[0]["cpu_s"] == 50.0


def test_a_runs_application_is_that_of_its_own_hosts(database: Database) -> None:
    later = {"restart": 1, "first_s": T0 + 40, "last_s": T0 + 50}
    ship(database, host(), host(segment=segment(2), app="LAMMPS", app_field="materials", **later))
    account(database, *requeued())
    assert reconcile(database) == 1
    assert [r["app"] for r in rows_of(database, run)] == ["GROMACS", "LAMMPS"]
    assert reconcile(database) == 0
    ship(database, host(seq=2, app="AMBER"))
    assert reconcile(database) == 1
    assert [r["app"] for r in rows_of(database, run)] == ["AMBER", "LAMMPS"]


def test_a_host_record_that_came_before_its_run_moves_to_it(database: Database) -> None:
    ship(database, host())
    reconcile(database)
    assert rows_of(database, run_host)[0]["run_id"] is None
    account(database, row())
    reconcile(database)
    assert rows_of(database, run_host)[0]["run_id"] == rows_of(database, run)[0]["run_id"]


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([], (None, None)),
        ([host(app=None)], (None, None)),
        ([host(app=None), host(app="A", app_field=None)], ("A", None)),
        ([host(app="A"), host(app="B"), host(app="B")], ("B", "molecular dynamics")),
        ([host(app="A", last_s=T0 + 99), host(app="B")], ("A", "molecular dynamics")),
        ([host(app="A"), host(app="B")], ("B", "molecular dynamics")),
    ],
)
def test_most_hosts_decide_what_the_application_is(hosts: list[Host], expected: Any) -> None:
    assert application(hosts) == application(hosts[::-1]) == expected


def test_the_timeline_is_stored_apart_from_the_statistics(database: Database) -> None:
    sent = record(timeline=timeline(0, 50, None, 100))
    database.write(lambda connection: store_records(connection, [sent]))
    (stored,) = rows_of(database, run_device)
    assert "timeline" not in stored["statistics"]
    assert read_record(stored) == sent


def test_the_newest_report_of_a_node_about_a_device_counts(database: Database) -> None:
    def store(*devices: DeviceFacts) -> tuple[int, int]:
        fresh = database.write(lambda connection: store_devices(connection, devices))
        return sum(fresh), len(fresh) - sum(fresh)

    assert store(gpu(), gpu(uuid="GPU-2", minor=1)) == (2, 0)
    assert store(gpu(node="n2", at_s=T0 + 60)) == (1, 0)
    assert store(gpu(driver="1")) == (0, 1)
    places = {(r["node"], r["uuid"]) for r in rows_of(database, device)}
    assert places == {("n1", "GPU-1"), ("n1", "GPU-2"), ("n2", "GPU-1")}
