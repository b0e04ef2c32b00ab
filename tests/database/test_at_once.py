"""Columns that are derived at the import equal those of a pass over the whole job."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_placement import RunPlacement
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import store_records
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run
from slurm_gpu.slurm.client import AccountingRun
from tests.database.conftest import empty
from tests.database.samples import T0, node, record, requeued, row, segment
from tests.examples import examples

NODES = {"n1": node(1), "n2": node(2)}
PLACES = Places({"n1": "a100x4", "n2": "a100x4"}, {"n1": "north", "n2": "south"})
_CONTINUED = "REQUEUED", "RESIZING", "NODE_FAIL"


def store(database: Database, rows: Sequence[AccountingRun]) -> None:
    def work(connection: Any) -> None:
        made = [run_row(reported, NODES) for reported in rows]
        store_changed_runs(connection, made, RunPlacement(connection, PLACES))

    database.write(work)


def n_due(database: Database) -> int:
    with database.reading() as connection:
        return connection.execute(select(func.count()).where(run.c.derive_due)).scalar_one()


def derived(database: Database) -> list[dict[str, Any]]:
    columns = [column for column in run.columns if column.name != "run_id"]
    with database.reading() as connection:
        rows = connection.execute(select(*columns).order_by(run.c.job_id, run.c.submit_s)).mappings()
        return [dict(found) for found in rows]


def is_what_a_pass_derives(database: Database) -> None:
    reconcile(database, places=PLACES)
    at_once = derived(database)
    database.write(lambda connection: connection.execute(update(run).values(derive_due=True)))
    reconcile(database, places=PLACES)
    assert at_once == derived(database)


@st.composite
def runs_of_a_job(draw: st.DrawFn, job_id: int) -> list[AccountingRun]:
    submits = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    rows = []
    for number, at in enumerate(sorted(submits)):
        last = number == len(submits) - 1
        state = draw(st.sampled_from(("COMPLETED", "PENDING", *_CONTINUED) if last else _CONTINUED))
        submit_s, nodes = T0 + 100 * at, draw(st.sampled_from(("n1", "n2", "n[1-2]", "")))
        # Slurm 22.05 gives each part of a resized run the start of the whole run.
        start_s = draw(st.sampled_from((submit_s, T0, None)))
        rows.append(
            row(
                job_id=job_id,
                state=state,
                submit_s=submit_s,
                start_s=None if state == "PENDING" else start_s,
                end_s=None if state == "PENDING" else submit_s + 50,
                nodes=nodes,
            )
        )
    return rows


@st.composite
def deliveries(draw: st.DrawFn) -> list[list[AccountingRun]]:
    """Draw batches of the accounting rows of three jobs, some duplicated or in an earlier version."""
    rows = [one for job_id in (1, 2, 3) for one in draw(runs_of_a_job(job_id))]
    rows += [one._replace(state="RUNNING", end_s=None) for one in rows if draw(st.booleans())]
    cut = draw(st.integers(1, len(rows)))
    shuffled = draw(st.permutations(rows))
    return [shuffled[begin : begin + cut] for begin in range(0, len(rows), cut)]


@settings(max_examples=examples())
@given(reported=deliveries(), recorded=st.sets(st.sampled_from((1, 2, 3)), max_size=1), between=st.booleans())
def test_at_once_or_in_a_pass(
    shared_database: Database, reported: list[list[AccountingRun]], recorded: set[int], between: bool
) -> None:
    empty(shared_database)
    records = [record(job_id=job_id, segment=segment(job_id)) for job_id in recorded]
    shared_database.write(partial(store_records, records=records))
    for rows in reported:
        store(shared_database, rows)
        if between:
            reconcile(shared_database, places=PLACES)
    is_what_a_pass_derives(shared_database)


def test_requeues_without_records_leave_nothing_to_a_pass(database: Database) -> None:
    first, second = requeued(1)
    store(database, [first, row(job_id=2), *requeued(3)])
    store(database, [second, row(job_id=4)])
    assert n_due(database) == 0
    assert [found["first_submit_s"] for found in derived(database)] == [T0 - 60] * 6
    is_what_a_pass_derives(database)


def test_a_run_that_comes_late_is_left_to_a_pass(database: Database) -> None:
    """Test a late run, which changes derived columns of stored rows of the same job."""
    first, second = requeued()
    store(database, [second])
    assert [found["first_submit_s"] for found in derived(database)] == [T0 + 11]
    store(database, [first])
    assert n_due(database) == 1
    reconcile(database, places=PLACES)
    assert [found["first_submit_s"] for found in derived(database)] == [T0 - 60] * 2
