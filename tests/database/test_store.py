"""The tables do not depend on the order and repetition of shipments and imports."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import read_record, store_events, store_hosts, store_records
from slurm_gpu.database.queries.run_queries import count_unmatched, find_job, unmatched_jobs
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import event, run, run_device, run_host
from slurm_gpu.database.storage.watermarks import set_watermark
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire import Event, Mean, Record
from tests.database.samples import CLUSTER, T0, host, record, requeued, row, segment


def ship(database: Database, *records: Record) -> tuple[int, int]:
    fresh = database.write(lambda connection: store_records(connection, records))
    return sum(fresh), len(fresh) - sum(fresh)


def account(database: Database, *rows: AccountingRun) -> int:
    return database.write(lambda connection: store_changed_runs(connection, [run_row(r, {}) for r in rows]))


def table(database: Database) -> dict[str, Any]:
    """Return the relevant parts of the tables: runs by key, records with their run's key, and events."""
    with database.reading() as connection:
        runs = {r["run_id"]: r for r in connection.execute(select(run)).mappings()}
        keys = {run_id: (r["cluster"], r["job_id"], r["submit_s"]) for run_id, r in runs.items()}
        records = [
            ({**r, "run_id": keys.get(r["run_id"])})
            for r in connection.execute(select(run_device)).mappings()
        ]
        events = [dict(r) for r in connection.execute(select(event)).mappings()]
    return {
        "runs": sorted(
            ({**r, "run_id": None} for r in runs.values()), key=lambda r: (r["job_id"], r["submit_s"])
        ),
        "records": sorted(records, key=lambda r: (r["segment"], r["device"])),
        "events": sorted(events, key=lambda e: (e["node"], e["boot_id"], e["n"])),
    }


def test_a_record_comes_back_as_it_was_shipped(database: Database) -> None:
    sent = record(
        throttle_s={"sw_power_cap": 1.5},
        power_w=Mean(10.0, 123.456789012345, 0.0, 700.0),
        no_process_s=0.0,
        mem_hist_ms={},
        granted_mgpu=None,
    )
    ship(database, sent)
    with database.reading() as connection:
        assert read_record(connection.execute(select(run_device)).mappings().one()) == sent


def test_the_greater_seq_wins_and_the_others_are_stale(database: Database) -> None:
    assert ship(database, record(seq=5, allocated_s=50.0)) == (1, 0)
    assert ship(database, record(seq=5, allocated_s=99.0), record(seq=4, allocated_s=99.0)) == (0, 2)
    assert ship(database, record(seq=6, allocated_s=60.0), record(seq=7, allocated_s=70.0)) == (1, 1)
    assert table(database)["records"][0]["allocated_s"] == 70.0


def test_records_lie_in_the_order_in_which_they_first_came(database: Database) -> None:
    ship(database, record(segment=segment(9)), record(segment=segment(9), device="GPU-2"))
    ship(database, record(segment=segment(3)))
    ship(database, record(segment=segment(9), seq=2))
    with database.reading() as connection:
        query = select(run_device.c.segment, run_device.c.device, run_device.c.seq)
        rows = [tuple(r) for r in connection.execute(query.order_by(run_device.c.row_id))]
    assert rows == [(segment(9), "GPU-1", 2), (segment(9), "GPU-2", 1), (segment(3), "GPU-1", 1)]


def test_devices_that_differ_only_in_case_are_two(database: Database) -> None:
    ship(database, record(device="GPU-ab"), record(device="GPU-AB"))
    assert len(table(database)["records"]) == 2


def test_events_are_kept_once(database: Database) -> None:
    happened = Event(
        node="n1", boot_id="b", n=1, at_s=T0, kind="gpu_lost", data={"text": "Ω \ud800 \x00", "deep": [[[]]]}
    )
    for _ in range(2):
        database.write(lambda connection: store_events(connection, [happened]))
    (stored,) = table(database)["events"]
    assert stored["data"] == happened.data


def test_many_writers_of_one_record_leave_the_newest(database: Database) -> None:
    def write(numbers: Iterator[int]) -> None:
        for seq in numbers:
            ship(database, record(seq=seq, allocated_s=float(1000 + seq)), record(device="GPU-2", seq=seq))

    threads = [threading.Thread(target=write, args=(iter(range(start, 40, 4)),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = table(database)["records"]
    assert [(r["seq"], r["allocated_s"]) for r in stored] == [(39, 1039.0), (39, 10.0)]


def test_writers_that_wait_for_each_other_are_run_again(database: Database) -> None:
    both_hold_one = threading.Barrier(2)
    tries: list[str] = []

    def write(name: str, order: tuple[int, int]) -> None:
        def work(connection: Connection) -> None:
            tries.append(name)
            store_records(connection, [record(segment=segment(order[0]), seq=len(tries))])
            if tries.count(name) == 1 and not database.is_sqlite:  # SQLite has one writer at a time
                both_hold_one.wait(10)
            store_records(connection, [record(segment=segment(order[1]), seq=len(tries))])

        database.write(work)

    ship(database, record(segment=segment(1), seq=0), record(segment=segment(2), seq=0))
    threads = [threading.Thread(target=write, args=each) for each in (("a", (1, 2)), ("b", (2, 1)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tries) == (2 if database.is_sqlite else 3)
    assert all(r["seq"] > 0 for r in table(database)["records"])


def test_a_requeued_jobs_runs_have_their_own_records(database: Database) -> None:
    ship(
        database,
        record(util_hist_ms={10: 10_000}),
        record(restart=1, segment=segment(2), first_s=T0 + 40, last_s=T0 + 50, util_hist_ms={90: 10_000}),
    )
    account(database, *requeued())
    reconcile(database)
    first, second = table(database)["runs"]
    assert (first["ugpucore"], second["ugpucore"]) == (10.0, 90.0)
    assert (first["coverage"], second["coverage"]) == (1.0, 1.0)
    assert second["first_submit_s"] == first["submit_s"]


def test_a_record_that_came_before_its_run_moves_to_it(database: Database) -> None:
    first, second = requeued()
    account(database, first)
    ship(database, record(restart=1, segment=segment(2), first_s=T0 + 40, last_s=T0 + 50))
    reconcile(database)
    assert [r["run_id"] for r in table(database)["records"]] == [None], "it does not belong to the first run"
    account(database, second)
    reconcile(database)
    assert [r["run_id"][2] for r in table(database)["records"]] == [second.submit_s]
    assert table(database)["runs"][0]["ugpucore"] is None


def test_records_of_a_run_missing_in_accounting_count_for_no_other(database: Database) -> None:
    """Test the records of the first of three runs that follow each other within seconds."""
    runs = [row(submit_s=T0 + n, start_s=T0 + 110 * n, end_s=T0 + 110 * n + 100) for n in range(3)]
    runs = [item._replace(state="REQUEUED" if n < 2 else "COMPLETED") for n, item in enumerate(runs)]
    for n in range(3):
        span = {"first_s": T0 + 110 * n, "last_s": T0 + 110 * n + 100, "restart": n, "segment": segment(n)}
        ship(database, record(**span, util_hist_ms={30 * n: 100_000}))
        database.write(lambda connection, span=span: store_hosts(connection, [host(**span)]))
    account(database, *runs[1:])
    reconcile(database)
    second, third = table(database)["runs"]
    assert (second["ugpucore"], third["ugpucore"]) == (30.0, 60.0)
    with database.reading() as connection:
        assert count_unmatched(connection, CLUSTER) == 1
        of_hosts = select(run_host.c.run_id).order_by(run_host.c.segment)
        assert connection.execute(of_hosts).scalars().all()[0] is None
    account(database, runs[0])
    reconcile(database)
    assert [r["ugpucore"] for r in table(database)["runs"]] == [0.0, 30.0, 60.0]


def test_a_job_that_slurm_lost_is_listed_from_an_hour_to_a_week_after_its_records(database: Database) -> None:
    account(database, row(job_id=1))
    ship(
        database,
        record(job_id=1),
        record(job_id=7, segment=segment(7)),
        record(job_id=22, segment=segment(22)),
    )
    ship(database, record(job_id=9, segment=segment(9), final=False))
    reconcile(database)
    last_s = T0 + 10
    read_accounting_until(database, T0 + 30 * 86400)
    with database.reading() as connection:
        page = find_job(connection, CLUSTER, "22", Caller(0, "root", True, True), last_s)
        assert (page.runs, page.unmatched) == ([], 1)
        assert find_job(connection, CLUSTER, "1", Caller(0, "root", True, True), last_s).unmatched == 0
        listed = {
            age_s: unmatched_jobs(connection, CLUSTER, last_s + age_s)
            for age_s in (3599, 3600, 7 * 86400, 7 * 86400 + 1)
        }
        assert unmatched_jobs(connection, "another", last_s + 3600) == []
    assert listed == {3599: [], 3600: [22, 7], 7 * 86400: [22, 7], 7 * 86400 + 1: []}


def read_accounting_until(database: Database, at_s: int) -> None:
    database.write(lambda connection: set_watermark(connection, f"accounting:{CLUSTER}", at_s))


def test_a_job_is_not_called_lost_until_slurms_accounting_was_read_an_hour_further(
    database: Database,
) -> None:
    """Test a slurmdbd that is down for a day, and a database without Slurm, which reads no accounting."""
    ship(database, record(job_id=7))
    now_s, last_s = T0 + 86400, T0 + 10
    listed = []
    with database.reading() as connection:
        listed.append(unmatched_jobs(connection, CLUSTER, now_s))
    for until_s in (last_s - 60, last_s + 3599, last_s + 3600):
        read_accounting_until(database, until_s)
        with database.reading() as connection:
            listed.append(unmatched_jobs(connection, CLUSTER, now_s))
    assert listed == [[], [], [], [7]]


def test_a_job_that_slurm_has_is_not_called_lost_though_a_record_fits_none_of_its_runs(
    database: Database,
) -> None:
    """Test a wrong clock of a node, a record from another node, and a job that never started."""
    read_accounting_until(database, T0 + 86400)
    account(database, row(job_id=1), row(job_id=2), row(job_id=3, start_s=None, state="CANCELLED"))
    ship(
        database,
        record(job_id=1, first_s=T0 + 4000, last_s=T0 + 4010),
        record(job_id=2, segment=segment(2), node="n9"),
        record(job_id=3, segment=segment(3)),
    )
    reconcile(database)
    with database.reading() as connection:
        assert count_unmatched(connection, CLUSTER) == 3
        assert unmatched_jobs(connection, CLUSTER, T0 + 86400) == []


def test_a_double_watch_counts_once_and_is_reported(database: Database) -> None:
    account(database, row())
    ship(database, record(), record(segment=segment(2), sampled_s=5.0, util_hist_ms={100: 5000}))
    reconcile(database)
    state = table(database)
    assert state["runs"][0]["ugpucore"] == 40.0
    assert state["runs"][0]["energy_j"] == 1000.0
    (reported,) = state["events"]
    assert (reported["kind"], reported["device"], reported["job_id"]) == ("double_watch", "GPU-1", 1)
    assert reported["data"] == {"segments": [segment(1), segment(2)]}


def test_a_row_that_cannot_be_read_any_more_keeps_out_no_other(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    account(database, row(), row(job_id=2))
    ship(database, record(), record(segment=segment(2), first_s=T0 + 11, last_s=T0 + 20))
    ship(database, record(job_id=2, segment=segment(3)))
    spoil = update(run_device).where(run_device.c.segment == segment(1)).values(allocated_s=1e300)
    database.write(lambda connection: connection.execute(spoil))
    assert reconcile(database) == 2
    assert [r["ugpucore"] for r in table(database)["runs"]] == [40.0, 40.0]
    assert f"segment {segment(1)} of n1 is skipped: allocated_s: 1e+300 must be from 0" in caplog.text
    with database.reading() as connection:
        (shown,) = find_job(connection, CLUSTER, "1", Caller(0, "root", True, True), T0).runs
    assert [item.segment for item in shown.devices or ()] == [segment(2)]


def test_a_jobs_means_agree_with_its_records_before_the_next_pass(database: Database) -> None:
    account(database, row())
    ship(database, record(seq=1, sampled_s=1.0, util_hist_ms={0: 1000}))
    reconcile(database)
    ship(database, record(seq=2, final=True))
    with database.reading() as connection:
        (shown,) = find_job(connection, CLUSTER, "1", Caller(0, "root", True, True), T0).runs
    assert [item.seq for item in shown.devices or ()] == [2]
    assert (shown.ugpucore, shown.coverage, shown.energy_j) == (40.0, 1.0, 1000.0)


def test_nothing_is_due_after_a_pass(database: Database) -> None:
    account(database, row())
    ship(database, record(), record(job_id=77, segment=segment(7)))
    assert reconcile(database) == 2
    assert reconcile(database) == 0
    account(database, row())
    assert reconcile(database) == 0, "the same row again is no change"
    account(database, row(end_s=T0 + 20, elapsed_s=20))
    assert reconcile(database) == 1
    assert table(database)["runs"][0]["coverage"] == 0.5
