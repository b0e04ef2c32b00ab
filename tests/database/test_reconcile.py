"""A job that cannot be computed or stored does not block the others."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import select

from slurm_gpu.database.accounting import reconcile as reconciling
from slurm_gpu.database.accounting.derived_columns import Derived
from slurm_gpu.database.accounting.importer import Importer, store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.resized import Row
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.accounting.writer import store_records
from slurm_gpu.database.maintenance.upkeep import Upkeep
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run, run_device
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire import Record
from tests.database.samples import CLUSTER, FakeClock, MemorySlurm, record, row, segment


def _store(database: Database) -> None:
    """Store jobs 1, 7 and 9 with one record each, and with shards that only nodes can convert."""
    for job_id in (1, 7, 9):
        rows = [run_row(row(job_id=job_id, tres_allocated={"gres/shard": 2.0}), {})]
        database.write(partial(store_changed_runs, rows=rows))
        reported = record(job_id=job_id, segment=segment(job_id))
        database.write(partial(store_records, records=[reported]))


def _derived(database: Database) -> dict[int, float | None]:
    with database.reading() as connection:
        rows = connection.execute(select(run.c.job_id, run.c.ugpucore)).all()
    return {row.job_id: row.ugpucore for row in rows}


def _huge_for_seven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the result of job 7 a number that no database accepts."""
    right = reconciling.derive_run

    def derive_run(parts: Sequence[Row], records: Sequence[Record], min_coverage: float) -> Derived:
        derived = right(parts, records, min_coverage)
        return replace(derived, granted_mgpu=2**64) if parts[0]["job_id"] == 7 else derived

    monkeypatch.setattr(reconciling, "derive_run", derive_run)


def test_a_job_that_cannot_be_stored_is_skipped_and_the_others_continue(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _store(database)
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        _huge_for_seven(patched)
        assert reconcile(database) == 3
        assert reconcile(database) == 0, "tried again only when something about it changes"
    assert _derived(database) == {1: 40.0, 7: None, 9: 40.0}
    assert [item.message.split(":")[0] for item in caplog.records] == ["job 7 of lab is skipped"]
    more = record(job_id=7, segment=segment(7), seq=2)
    database.write(lambda connection: store_records(connection, [more]))
    assert reconcile(database) == 1
    assert _derived(database)[7] == 40.0


def test_a_grant_that_an_older_version_took_does_not_stop_reconciling(database: Database) -> None:
    _store(database)
    huge = [
        record(job_id=7, segment=segment(7), granted_mgpu=2**63 - 1, seq=2),
        record(job_id=7, segment=segment(8), granted_mgpu=2**63 - 1, device="GPU-2"),
    ]
    database.write(lambda connection: store_records(connection, huge))
    reconcile(database)
    # Only the number of granted GPUs is omitted; the measurements count.
    assert _derived(database) == {1: 40.0, 7: 40.0, 9: 40.0}
    with database.reading() as connection:
        assert not connection.execute(select(run_device.c.device).where(run_device.c.match_due)).all()


def test_upkeep_runs_even_if_reconciliation_fails(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> int:
        raise DatabaseError("the database does not answer")

    monkeypatch.setattr("slurm_gpu.database.accounting.importer.reconcile", unreachable)
    clock, passes = FakeClock(), []
    view = SlurmView(MemorySlurm(), clock)
    upkeep = Upkeep(database, clock)
    monkeypatch.setattr(upkeep, "run_once", lambda *_: passes.append(1))
    with pytest.raises(DatabaseError):
        Importer(database, view, clock, CLUSTER, 60.0, upkeep=upkeep).run_once()
    assert passes == [1]


def _store_job(database: Database, n_jobs: int, job_id: int) -> None:
    """Store `n` jobs from the given id on, each with a record and a new run."""
    ids = range(job_id, job_id + n_jobs)
    reported = [record(job_id=n, segment=segment(n)) for n in ids]
    database.write(partial(store_records, records=reported))
    rows = [run_row(row(job_id=n), {}) for n in ids]
    database.write(partial(store_changed_runs, rows=rows))


def test_each_record_gets_its_run_however_many_are_due_and_few_statements_are_kept(
    database: Database,
) -> None:
    """Test that statements do not depend on the number of rows, which would fill SQLAlchemy's cache."""
    job_id, kept = 1, []
    for n_jobs in (1, 2, 3, 4, 5, 8, 11, 12, 13, 14, 15, 16, 9, 7, 6):
        _store_job(database, n_jobs, job_id)
        job_id += n_jobs
        assert reconcile(database) == n_jobs
        kept.append(len(database.engine._compiled_cache or ()))
    matched = select(run_device.c.job_id, run.c.job_id).where(run_device.c.run_id == run.c.run_id)
    with database.reading() as connection:
        found = connection.execute(matched).all()
    assert sorted(map(tuple, found)) == [(n, n) for n in range(1, job_id)]
    # After the sixth round of 8 rows, only statements for sixteen rows are still to be compiled.
    assert kept[-1] - kept[5] <= 2
