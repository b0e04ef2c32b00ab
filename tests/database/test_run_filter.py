"""Filters and orders of runs work page by page and reveal no hidden values of other users."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import store_hosts, store_records
from slurm_gpu.database.maintenance.node_periods import Places, store_node_periods
from slurm_gpu.database.queries.run_filter import SORTS, PageCursor, RunFilter
from slurm_gpu.database.queries.run_queries import find_runs
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.errors import UsageError
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire.answers.runs import Run
from tests.database.conftest import empty
from tests.database.samples import CLUSTER, T0, host, node, record, row, segment
from tests.examples import examples

ROOT = Caller(0, "root", sees_all=True, writes=True)
ALICE = Caller(1001, "alice", sees_all=False, writes=False)
NOW_S = T0 + 5000.0
PLACES = Places({"n1": "dgx", "n2": "dgx", "n3": "hgx"}, {"n1": "pod1", "n2": "pod2", "n3": "pod2"})


def fill(database: Database, *rows: AccountingRun) -> None:
    values = [run_row(one, {}) for one in rows]
    database.write(lambda connection: store_changed_runs(connection, values))
    reconcile(database, places=PLACES)


def ask(database: Database, caller: Caller = ROOT, **query: str) -> list[str]:
    with database.reading() as connection:
        return [
            run.id for run in find_runs(connection, CLUSTER, RunFilter.from_query(query), caller, NOW_S).runs
        ]


def pages(database: Database, caller: Caller, **query: str) -> Iterator[list[Run]]:
    """Yield all pages, each requested a minute after the previous one."""
    cursor: dict[str, str] = {}
    for n in itertools.count():
        with database.reading() as connection:
            wanted = RunFilter.from_query({**query, **cursor})
            page = find_runs(connection, CLUSTER, wanted, caller, NOW_S + 60 * n)
        yield list(page.runs)
        if page.cursor is None:
            return
        cursor = {"cursor": page.cursor}


@pytest.fixture
def filled(database: Database) -> Database:
    waiting = {
        "state": "PENDING",
        "start_s": None,
        "end_s": None,
        "elapsed_s": 0,
        "nodes": "",
        "tres_allocated": {},
    }
    fill(
        database,
        row(job_id=1, qos="high", partition="big", nodes="n1", account="a", uid=1001),
        row(
            job_id=2,
            user="bob",
            nodes="n[2-3]",
            account="b",
            n_nodes=2,
            tres_allocated={"gres/gpu": 8, "gres/gpu:h100": 8},
        ),
        row(job_id=3, nodes="n9", partition="gpu", account="c", tres_allocated={"cpu": 4}),
        row(job_id=4, partition="gpu,big", account="a", tres_requested={"gres/gpu": 4}, **waiting),
        row(job_id=5, account="under_score", tres_requested={"cpu": 4}, **waiting),
    )
    sent = [host(job_id=1, app="GROMACS"), host(job_id=2, node="n2", app="LAMMPS", segment=segment(2))]
    database.write(lambda connection: store_hosts(connection, sent))
    reconcile(database, places=PLACES)
    return database


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"qos": "high"}, "1"),
        ({"partition": "big"}, "41"),
        ({"partition": "bi"}, ""),
        ({"partition": "%"}, ""),
        ({"user": "bob"}, "2"),
        ({"user": "bob,alice"}, "54321"),
        ({"user": "bob,nobody"}, "2"),
        ({"user": ""}, ""),
        ({"account": "a"}, "41"),
        ({"account": "a,b"}, "421"),
        ({"account": "under_score"}, "5"),
        ({"app": "LAMMPS"}, "2"),
        ({"gpu_type": "a100"}, "1"),
        ({"gpu_type": "h100,a100"}, "21"),
        ({"zone": "pod2"}, "2"),
        ({"zone": "pod1,pod2"}, "21"),
        ({"server_type": "hgx"}, "2"),
        ({"server_type": "dgx"}, "21"),
        ({"min_gpus": "0"}, "54321"),
        ({"min_gpus": "0.25"}, "421"),
        ({"min_gpus": "4"}, "42"),
        ({"min_gpus": "8", "zone": "pod2", "state": "completed"}, "2"),
        ({"zone": "'; DROP TABLE run; --"}, ""),
    ],
)
def test_filters(filled: Database, query: dict[str, str], found: str) -> None:
    assert ask(filled, **query) == list(found)


def test_the_place_of_a_run_is_that_at_its_start(database: Database) -> None:
    """Test a node that moved to another zone; slurm-gpu.yaml applies to times without a recorded state."""
    before, after = Places({}, {"n1": "old"}), Places({}, {"n1": "new"})
    nodes = {"n1": node(1)}
    database.write(lambda connection: store_node_periods(connection, nodes, before, T0 - 1000))
    database.write(lambda connection: store_node_periods(connection, nodes, after, T0 + 1000))
    for job_id, start_s in ((1, T0), (2, T0 + 2000), (3, T0 - 5000)):
        fill(database, row(job_id=job_id, start_s=start_s, end_s=start_s + 10))
    assert ask(database, zone="old") == ["1"]
    assert ask(database, zone="new") == ["2"]
    assert ask(database, zone="pod1") == ["3"]


def test_pages_contain_each_run_once_in_order_with_gaps_last(filled: Database) -> None:
    sent = [record(job_id=1, util_hist_ms={33: 10_000}), record(job_id=2, node="n2", segment=segment(9))]
    filled.write(lambda connection: store_records(connection, sent))
    fill(filled, *(row(job_id=n, start_s=T0 + n % 3, end_s=T0 + 2 * n) for n in range(10, 16)))
    fill(filled, row(job_id=20, state="RUNNING", end_s=None, start_s=T0 + 10, elapsed_s=3))
    names = {"submit": "submit_s", "start": "start_s", "end": "end_s", "nNODE": "n_nodes", "nGPU": "n_gpus"}
    for sort, order, caller in itertools.product(SORTS, ("asc", "desc"), (ROOT, ALICE)):
        found = [run for page in pages(filled, caller, sort=sort, order=order, limit="5") for run in page]
        assert len({run.id for run in found}) == len(found) == 12
        if sort == "RUN_h":  # for running jobs, it grows from page to page
            found = [run for run in found if run.end_s is not None or run.start_s is None]
        values = [getattr(run, names.get(sort, sort.lower())) for run in found]
        there = [value for value in values if value is not None]
        assert there == sorted(there, reverse=order == "desc"), (sort, order)
        assert values == there + [None] * (len(values) - len(there)), (sort, order)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("sort", ["end", "start", "RUN_h", "WAIT_h"])
@settings(max_examples=examples(5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spans=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=9),
    ending=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=4),
)
def test_runs_that_end_meanwhile_neither_repeat_nor_hide_others(
    database: Database, sort: str, order: str, spans: list[tuple[int, int]], ending: list[tuple[int, int]]
) -> None:
    def run(job_id: int, start: int, length: int) -> AccountingRun:
        start_s = T0 + start
        return row(job_id=job_id, start_s=start_s, end_s=start_s + length, elapsed_s=length)

    empty(database)
    fill(database, *(run(n, *span) for n, span in enumerate(spans, 1)))
    for n, (start, _) in enumerate(ending, 101):
        fill(database, row(job_id=n, state="RUNNING", start_s=T0 + start, end_s=None, elapsed_s=0))
    left = list(enumerate(ending, 101))
    found: list[str] = []
    for page in pages(database, ROOT, ended="true", since=str(T0), sort=sort, order=order, limit="2"):
        found += [one.id for one in page]
        if left:
            n, span = left.pop()
            fill(database, run(n, *span))
    assert len(found) == len(set(found))
    assert set(found) >= {str(n) for n in range(1, 1 + len(spans))}


def test_values_of_others_runs_match_no_filter_and_no_order(filled: Database) -> None:
    assert ask(filled, ALICE, app="LAMMPS") == []
    assert ask(filled, ALICE, app="GROMACS") == ["1"]
    assert ask(filled, Caller(4711, None, sees_all=False, writes=False), app="GROMACS") == []
    sent = [record(job_id=n, node=f"n{n}", segment=segment(n), util_hist_ms={n * 10: 10_000}) for n in (1, 2)]
    filled.write(lambda connection: store_records(connection, sent))
    reconcile(filled, places=PLACES)
    assert ask(filled, ROOT, sort="uGPUcore") == ["2", "1", "5", "4", "3"]
    assert ask(filled, ALICE, sort="uGPUcore") == ["1", "5", "4", "3", "2"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"colour": "red"}, "'colour' is not a filter of runs; allowed: user, account"),
        ({"sort": "name"}, "sort: 'name' must be one of submit, start, end"),
        ({"order": "up"}, "order: 'up' must be one of desc, asc"),
        ({"min_gpus": "-1"}, "min_gpus: '-1' must be a number from 0 to 1000000"),
        ({"min_gpus": "nan"}, "min_gpus: 'nan'"),
        ({"cursor": "abc"}, "cursor: 'abc' is not the cursor of an earlier answer"),
    ],
)
def test_an_invalid_filter_is_named(query: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        RunFilter.from_query(query)


@given(value=st.none() | st.integers(-(2**63) + 1, 2**63 - 1), run_id=st.integers(0, 2**63 - 1))
def test_a_cursor_leads_back_to_its_place(value: int | None, run_id: int) -> None:
    place = PageCursor(value, run_id, T0)
    assert PageCursor.read(place.cursor()) == place


def test_a_cursor_of_no_time_is_refused_and_never_takes_the_database_for_dead(filled: Database) -> None:
    fill(filled, row(job_id=20, state="RUNNING", end_s=None, start_s=T0 + 10, elapsed_s=3))
    latest, before = 2**63 - 1, -(2**63) + 1
    assert ask(filled, sort="RUN_h", cursor=PageCursor(0, 0, latest).cursor()) == ["5", "4"]
    with pytest.raises(UsageError, match="is not the cursor of an earlier answer"):
        ask(filled, sort="RUN_h", cursor=PageCursor(0, 0, before).cursor())


@given(text=st.text())
def test_any_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(UsageError):
        PageCursor.read(text)
