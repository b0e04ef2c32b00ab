"""An import that is killed at any point and then repeated leaves the same table as an uninterrupted one."""

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event, select

from slurm_gpu.database.accounting import importer as importing
from slurm_gpu.database.accounting.importer import Importer, read_until_s
from slurm_gpu.database.accounting.periods import LONGEST_S
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.accounting.writer import store_records
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import AccountingRun
from tests.database.conftest import empty
from tests.database.samples import CLUSTER, T0, FakeClock, MemorySlurm, record, requeued, row, segment

_DAY_S = 86400


def history(days: int = 2) -> list[AccountingRun]:
    """Return jobs over `days` × 40 days, including a requeued one and some that are pending or running."""
    rows = requeued(1000)
    for n in range(1, 41):
        start_s = T0 - days * n * _DAY_S
        times = {"submit_s": start_s - 60, "eligible_s": start_s - 60, "start_s": start_s}
        rows.append(row(job_id=n, **times, end_s=start_s + 3600 * n, elapsed_s=3600 * n))
    rows += [row(job_id=2000 + n, state="RUNNING", end_s=None) for n in range(5)]
    rows += [row(job_id=3000, state="PENDING", eligible_s=T0 + 50, start_s=None, end_s=None, nodes="")]
    return rows


def importer(database: Database, slurm: MemorySlurm) -> Importer:
    clock = FakeClock(T0 + 100)
    return Importer(database, SlurmView(slurm, clock), clock, CLUSTER, 60.0)


def ship(database: Database) -> None:
    """Store records that arrive before the import of their runs."""
    reported = [record(job_id=n, segment=segment(n)) for n in (1000, 2001)]
    database.write(lambda connection: store_records(connection, reported))


def contents(database: Database) -> list[dict[str, Any]]:
    """Return all rows without their numbers."""
    columns = [column for column in run.columns if column.name != "run_id"]
    with database.reading() as connection:
        rows = connection.execute(select(*columns).order_by(run.c.job_id, run.c.submit_s)).mappings()
        return [dict(found) for found in rows]


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_ROWS_PER_TRANSACTION", 30)


@pytest.fixture
def untouched(database: Database) -> list[dict[str, Any]]:
    """Return the table of an import that is not killed."""
    ship(database)
    importer(database, MemorySlurm(history())).run_once()
    found = contents(database)
    empty(database)
    return found


def on_write(database: Database, do: Callable[[], None]) -> None:
    """Call `do` when a writing transaction begins, and just before its commit."""

    def at(connection: Connection) -> None:
        if connection.get_execution_options().get("slurm_gpu_write"):
            do()

    event.listen(database.engine, "begin", at)
    event.listen(database.engine, "commit", at)


def in_child(database: Database, do: Callable[[], None], rows: list[AccountingRun]) -> int:
    """Import in a child process that calls `do` at each begin and commit of a write; return its ID."""
    database.dispose()  # SQLite's locks must not be inherited by a fork
    pid = os.fork()
    if pid == 0:
        try:
            on_write(database, do)  # only in this process; its statements are already compiled
            importer(database, MemorySlurm(rows)).run_once()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


def killing_itself(point: int) -> Callable[[], None]:
    points: Iterator[int] = iter(range(point))

    def do() -> None:
        if next(points, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    return do


def test_killed_before_or_after_any_of_its_transactions(
    database: Database, untouched: list[dict[str, Any]]
) -> None:
    for point in range(1000):
        empty(database)
        ship(database)
        _, status = os.waitpid(in_child(database, killing_itself(point), history()), 0)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        importer(database, MemorySlurm(history())).run_once()
        assert contents(database) == untouched, f"killed at point {point}"
    assert point > 8


@pytest.mark.parametrize("n_steps", [1, 6, 13])
def test_killed_by_others_whenever(database: Database, untouched: list[dict[str, Any]], n_steps: int) -> None:
    ship(database)
    many = history() + [row(job_id=10_000 + n, submit_s=T0 - n) for n in range(400)]
    for _ in range(2):
        reading, writing = os.pipe()
        pid = in_child(database, lambda end=writing: os.write(end, b"."), many)  # type: ignore[misc]
        os.close(writing)
        reported = 0
        while reported < n_steps and (some := os.read(reading, 1)):
            reported += len(some)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
    importer(database, MemorySlurm(many)).run_once()
    found = contents(database)
    assert [item for item in found if item["job_id"] < 10_000] == untouched
    assert len(found) == len(untouched) + 400


def test_a_period_that_was_read_is_not_read_again(database: Database) -> None:
    class Failing(MemorySlurm):
        until_s = T0 - 100 * _DAY_S

        def accounting(self, since_s: int, *given: Any, **more: Any) -> Iterator[AccountingRun]:
            if since_s > self.until_s:
                raise SlurmError("slurmdbd is down")
            return super().accounting(since_s, *given, **more)

    slurm = Failing(history(9))
    making = importer(database, slurm)
    with pytest.raises(SlurmError):
        making.run_once()
    n_stored = len(contents(database))
    with database.reading() as connection:
        watermark_s = read_until_s(connection, CLUSTER)
    assert watermark_s is not None
    assert slurm.until_s - LONGEST_S <= watermark_s <= slurm.until_s + LONGEST_S
    assert 0 < n_stored < len(history())
    slurm.periods.clear()
    slurm.until_s = 2 * T0
    making.run_once()
    assert slurm.periods[0][0] == watermark_s - _DAY_S
    assert len(contents(database)) == len(history())
