from typing import Any

import pytest
from sqlalchemy import event, select

from slurm_gpu.database.accounting.allocated_time import SHIPPED_WITHIN_S
from slurm_gpu.database.accounting.importer import store_changed_runs, unmatched
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import store_records
from slurm_gpu.database.queries.run_filter import RunFilter, SortOrder, conditions
from slurm_gpu.database.queries.run_queries import count_unmatched, find_job, find_runs, unmatched_jobs
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run, run_device
from slurm_gpu.database.storage.watermarks import set_watermark
from slurm_gpu.errors import UsageError
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire.answers.codec import from_json
from slurm_gpu.wire.answers.runs import Run, RunPage
from tests.database.samples import CLUSTER, T0, record, requeued, row, segment

ROOT = Caller(0, "root", sees_all=True, writes=True)
ALICE = Caller(1001, "alice", sees_all=False, writes=False)
BOB = Caller(1002, "bob", sees_all=False, writes=False)
NOBODY = Caller(4711, None, sees_all=False, writes=False)
NOW_S = T0 + 100.0


def fill(database: Database, *rows: AccountingRun) -> None:
    database.write(lambda connection: store_changed_runs(connection, [run_row(r, {}) for r in rows]))
    reconcile(database)


def runs(database: Database, caller: Caller = ROOT, **query: str) -> RunPage:
    with database.reading() as connection:
        return find_runs(connection, CLUSTER, RunFilter.from_query(query), caller, NOW_S)


def job(database: Database, name: str, caller: Caller = ROOT, now_s: float = NOW_S) -> list[Run]:
    with database.reading() as connection:
        return list(find_job(connection, CLUSTER, name, caller, now_s).runs)


def ids(page: RunPage) -> list[str]:
    return [item.id for item in page.runs]


def test_hours_are_those_of_the_contract(database: Database) -> None:
    fill(database, *requeued())
    second, first = runs(database).runs
    assert first.wait_h == 36 / 3600
    assert (second.wait_h, second.submit_wait_h) == (10 / 3600, 100 / 3600)
    assert (first.run_h, first.n_nodes, first.n_gpus) == (10 / 3600, 1, 1.0)


def test_a_running_job_runs_up_to_now_and_a_pending_one_not_at_all(database: Database) -> None:
    fill(
        database,
        row(job_id=1, state="RUNNING", end_s=None, elapsed_s=3, suspended_s=20),
        row(job_id=2, state="PENDING", start_s=None, end_s=None, elapsed_s=0, tres_allocated={}, nodes=""),
        row(job_id=3, state="SUSPENDED", end_s=None, elapsed_s=33),
    )
    by_id = {item.id: item for item in runs(database).runs}
    assert [by_id[n].elapsed_s for n in "123"] == [80, None, 33]
    pending = by_id["2"]
    assert (pending.wait_h, pending.run_h, pending.n_gpus, pending.n_gpus_requested) == (None, None, 1.0, 1.0)


def test_records_that_may_be_under_way_are_a_gap_and_no_0(database: Database) -> None:
    fill(database, row())
    assert job(database, "1", now_s=T0 + 15)[0].coverage is None
    assert runs(database).runs[0].coverage is None
    assert job(database, "1", now_s=T0 + 10 + SHIPPED_WITHIN_S + 1)[0].coverage == 0.0
    assert job(database, "1", BOB, T0 + 86400)[0].coverage is None


def test_a_job_that_ended_in_the_queue_never_started(database: Database) -> None:
    """Test a job that ended in the queue, to which Slurm gives the same start and end."""
    ended = {"state": "CANCELLED", "start_s": T0, "end_s": T0, "elapsed_s": 0}
    fill(
        database,
        row(job_id=1, **ended, nodes="", tres_allocated={}),
        row(job_id=2, **{**ended, "state": "FAILED"}),
        *(run._replace(job_id=3) for run in requeued()[:1]),
        row(job_id=3, submit_s=T0 + 11, **ended, nodes="", tres_allocated={}),
    )
    never, at_once = job(database, "1")[0], job(database, "2")[0]
    assert (never.start_s, never.end_s, never.elapsed_s, never.run_h) == (None, T0, None, None)
    assert (never.wait_h, never.submit_wait_h, never.n_gpus, never.n_gpus_requested) == (None, None, 1.0, 1.0)
    assert (at_once.start_s, at_once.elapsed_s, at_once.n_gpus, at_once.wait_h) == (T0, 0, 1.0, 36 / 3600)
    with database.reading() as connection:
        firsts = connection.execute(select(run.c.first_submit_s).where(run.c.job_id == 3)).scalars().all()
    assert firsts == [T0 - 60, T0 - 60], (
        "a wait in the queue after a requeue continues from the first submission"
    )


def test_tasks_of_an_array_are_in_the_order_of_their_numbers(database: Database) -> None:
    tasks = [
        row(job_id=job_id, array_job_id=5, array_task=task) for job_id, task in ((8, 10), (6, 2), (5, 9))
    ]
    fill(database, row(job_id=4), *tasks, row(job_id=9))
    assert ids(runs(database)) == ["9", "5_10", "5_9", "5_2", "4"]
    assert [item.id for item in job(database, "5")] == ["5_10", "5_9", "5_2"]


def test_json_spells_the_keys_as_the_accounting_table_does(database: Database) -> None:
    fill(database, row())
    value = runs(database).runs[0].to_json()
    assert {"nNODE", "nGPU", "WAIT_h", "SUBMIT_WAIT_h", "RUN_h", "uGPUcore", "uGPUmem", "coverage"} <= set(
        value
    )
    assert "devices" not in value
    assert from_json(Run, value).to_json() == value


@pytest.mark.parametrize(("caller", "sees"), [(ROOT, True), (ALICE, True), (BOB, False), (NOBODY, False)])
def test_only_the_occupancy_of_others_jobs_is_shown(database: Database, caller: Caller, sees: bool) -> None:
    database.write(lambda connection: store_records(connection, [record()]))
    fill(database, row(name="secret", admin_comment="also secret"))
    for shown in (runs(database, caller).runs[0], job(database, "1", caller)[0]):
        assert shown.full is sees
        assert (shown.user, shown.nodes, shown.n_gpus, shown.start_s) == ("alice", "n1", 1.0, T0)
        if sees:
            assert (shown.name, shown.ugpucore, shown.coverage) == ("secret", 40.0, 1.0)
        else:
            assert "secret" not in repr(shown.to_json())
            assert {shown.ugpucore, shown.ugpumem, shown.coverage, shown.energy_j, shown.exit_code} == {None}
    assert (job(database, "1", caller)[0].devices == [record()]) is sees


def test_a_name_that_another_uid_took_over_opens_nothing(database: Database) -> None:
    fill(database, row(uid=999))
    assert not runs(database, ALICE).runs[0].full
    assert runs(database, Caller(999, "alice2", sees_all=False, writes=False)).runs[0].full


def test_a_run_of_which_accounting_has_no_uid_is_operators_alone(database: Database) -> None:
    fill(database, row(uid=None))
    assert not runs(database, ALICE).runs[0].full
    assert runs(database, Caller(0, "root", sees_all=True, writes=True)).runs[0].full


def test_filters(database: Database) -> None:
    fill(
        database,
        row(job_id=1),
        row(job_id=2, user="bob", account="nlp", state="FAILED", submit_s=T0 + 50, end_s=T0 + 90),
        row(job_id=3, user="bob", account="nlp", state="RUNNING", submit_s=T0 + 60, end_s=None),
    )
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({}, ["3", "2", "1"]),
        ({"user": "bob"}, ["3", "2"]),
        ({"user": "BOB"}, []),
        ({"account": "vision"}, ["1"]),
        ({"state": "failed,RUNNING"}, ["3", "2"]),
        ({"since": str(T0 + 11)}, ["3", "2"]),
        ({"since": str(T0 + 91)}, ["3"]),
        ({"until": str(T0 + 50)}, ["1"]),
        ({"ended": "true"}, ["2", "1"]),
        ({"ended": "true", "sort": "end", "order": "asc"}, ["1", "2"]),
        ({"ended": "false"}, ["3", "2", "1"]),
        ({"limit": "1"}, ["3"]),
    ]
    for query, expected in cases:
        assert ids(runs(database, **query)) == expected, query


def test_pages_join_without_gap_or_repetition_while_jobs_arrive(database: Database) -> None:
    fill(database, *(row(job_id=n, submit_s=T0 + n // 3) for n in range(1, 21)))
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = runs(database, limit="3", **({} if cursor is None else {"cursor": cursor}))
        seen += ids(page)
        cursor = page.cursor
        if cursor is None:
            break
        fill(database, row(job_id=100 + len(seen), submit_s=T0 + 1000))
    assert sorted(seen, key=int) == [str(n) for n in range(1, 21)]
    assert len(seen) == 20


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "1001"},
        {"limit": "-1"},
        {"limit": "x"},
        {"limit": "١"},
        {"since": "1e3"},
        {"until": "9" * 30},
        {"cursor": ""},
        {"cursor": "AAAA"},
        {"cursor": "é"},
        {"nodes": "n1"},
        {"ended": "1"},
    ],
)
def test_a_query_that_is_wrong_is_refused_by_name(query: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(query))):
        RunFilter.from_query(query)


def test_a_job_is_found_by_each_of_its_names(database: Database) -> None:
    fill(
        database,
        *requeued(5),
        row(job_id=11, array_job_id=10, array_task=0),
        row(job_id=10, array_job_id=10, array_task=1),
        row(job_id=21, het_job_id=20, het_offset=1),
        row(job_id=20, het_job_id=20, het_offset=0),
    )
    for name, expected in (
        ("5", ["5", "5"]),
        ("10", ["10_1", "10_0"]),
        ("10_0", ["10_0"]),
        ("11", ["10_0"]),
        ("20", ["20+0", "20+1"]),
        ("20+1", ["20+1"]),
        ("6", []),
        ("10_7", []),
    ):
        assert sorted(item.id for item in job(database, name)) == sorted(expected), name
    assert [item.state for item in job(database, "5")] == ["COMPLETED", "REQUEUED"], "the newest first"


@pytest.mark.parametrize(
    "name", ["", "x", "1_", "_1", "1_2_3", "1.0", "-1", "1 ", "9" * 11, "'; DROP TABLE run"]
)
def test_an_invalid_job_is_refused(database: Database, name: str) -> None:
    with pytest.raises(UsageError, match="is not a job"):
        job(database, name)


def test_a_job_shows_both_of_a_double_watch(database: Database) -> None:
    twice = [record(), record(segment=segment(2), sampled_s=2.0, util_hist_ms={0: 2000})]
    database.write(lambda connection: store_records(connection, twice))
    fill(database, row())
    (shown,) = job(database, "1")
    assert shown.devices == twice
    assert shown.ugpucore == 40.0


def test_searches_use_an_index(database: Database) -> None:
    """Test that a page needs no scan of the table, which may have millions of runs."""
    if not database.is_sqlite:
        pytest.skip("MariaDB plans by the rows that are there")
    order = (run.c.submit_s.desc(), run.c.run_id.desc())
    plans: list[Any] = []
    with database.reading() as connection:
        for where in (run.c.user == "x", run.c.account == "x", run.c.submit_s < 5, run.c.array_job_id == 5):
            query = select(run).where(where).order_by(*order).limit(5)
            text = str(query.compile(connection.engine, compile_kwargs={"literal_binds": True}))
            plans += connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all()
    assert all("SCAN" not in str(plan) for plan in plans), plans


@pytest.mark.parametrize(
    ("wanted", "n_steps"),
    [
        (RunFilter(ended=True, since_s=T0, sort="RUN_h"), 2),
        (RunFilter(since_s=T0, having={"partition": "none"}), 1),
        (RunFilter(since_s=T0, qos="none"), 1),
        (RunFilter(since_s=T0, min_gpus=999), 1),
    ],
)
def test_recent_runs_are_found_by_their_end_even_if_few_have_the_value(
    database: Database, wanted: RunFilter, n_steps: int
) -> None:
    """In the order of another index, the whole table would be read until the page is full."""
    if not database.is_sqlite:
        pytest.skip("MariaDB plans by the rows that are there")
    plans: list[Any] = []
    with database.reading() as connection:
        for step in SortOrder.of(wanted, ROOT, T0).steps(None):
            query = select(run.c.run_id).where(*conditions(wanted, ROOT), *step.where).order_by(*step.order)
            text = str(query.limit(5).compile(connection.engine, compile_kwargs={"literal_binds": True}))
            plans.append(str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all()))
    assert len(plans) == n_steps
    assert all("USING INDEX run_end" in plan and "SCAN" not in plan for plan in plans), plans


def test_records_without_a_run_are_found_without_reading_those_of_the_cluster(database: Database) -> None:
    if not database.is_sqlite:
        pytest.skip("MariaDB plans by the rows that are there")
    database.write(lambda connection: set_watermark(connection, f"accounting:{CLUSTER}", T0))
    queries: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, sql: str, values: Any, *___: Any) -> None:
        queries.append((sql, values))

    with database.reading() as connection:
        event.listen(connection, "before_cursor_execute", note)
        count_unmatched(connection, CLUSTER)
        unmatched_jobs(connection, CLUSTER, T0)
        connection.execute(
            select(run_device.c.job_id).where(*unmatched(CLUSTER)).order_by(run_device.c.job_id)
        )
        event.remove(connection, "before_cursor_execute", note)
        plans = [
            str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all())
            for sql, values in queries
            if "run_device" in sql
        ]
    assert len(plans) == 3
    assert all("SEARCH run_device USING INDEX run_device_run (run_id=?)" in plan for plan in plans), plans
