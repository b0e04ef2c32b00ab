"""A long import reports its progress continually; otherwise the watchdog would kill it."""

import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from slurm_gpu.config.site import Retention
from slurm_gpu.database.accounting import importer as importing
from slurm_gpu.database.accounting import reconcile as reconciling
from slurm_gpu.database.accounting.importer import Importer, store_changed_runs
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.accounting.writer import store_records
from slurm_gpu.database.ingest.heartbeat import IMPORT_STEP_WITHIN_S
from slurm_gpu.database.maintenance import pruning
from slurm_gpu.database.maintenance.upkeep import Upkeep
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.slurm.client import AccountingRun
from tests.database.samples import CLUSTER, T0, FakeClock, MemorySlurm, record, row, segment, timeline

# An hour of work is split into steps of this length.
PIECE_S = 600.0
_AT_MOST_S = 2.0


class SlowSlurm(MemorySlurm):
    """A Slurm whose accounting answers just within the timeout, and lacks the requested jobs."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def accounting(
        self, since_s: int, until_s: int | None = None, job_ids: Iterable[int] | None = None
    ) -> Iterator[AccountingRun]:
        self._clock.now += PIECE_S
        return iter(())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def longest_s(clock: FakeClock, making: Importer) -> float:
    """Return the longest time of a pass without a sign of progress."""
    found = [0.0]
    real = clock.monotonic

    class Watched(FakeClock):
        def monotonic(self) -> float:
            found.append(real() - making.stepped_s)
            return real()

        def wall(self) -> float:
            return clock.wall()

    making._clock = Watched()
    making.stepped_s = real()
    making.run_once()
    found.append(real() - making.stepped_s)
    return max(found)


def ship(database: Database, *numbers: int, first_s: int = T0) -> None:
    for n in numbers:
        rows = [run_row(row(job_id=n), {})]
        database.write(partial(store_changed_runs, rows=rows))
        sent = record(job_id=n, segment=segment(n), first_s=first_s, timeline=timeline(1, start_s=first_s))
        database.write(partial(store_records, records=[sent]))


def test_jobs_unknown_to_sacct(database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_JOBS_PER_QUESTION", 1)
    for n in range(1, 10):
        sent = record(job_id=n, segment=segment(n))
        database.write(partial(store_records, records=[sent]))
    making = Importer(database, SlurmView(SlowSlurm(clock), clock), clock, CLUSTER, 60.0)
    assert longest_s(clock, making) <= PIECE_S < IMPORT_STEP_WITHIN_S
    assert clock.now >= T0 + 10 * PIECE_S


def test_all_jobs_of_a_first_import(
    database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = reconciling._reconcile_jobs

    def slowly(*given: Any, **more: Any) -> None:
        clock.now += PIECE_S
        right(*given, **more)

    monkeypatch.setattr(reconciling, "_JOBS_PER_TRANSACTION", 1)
    monkeypatch.setattr(reconciling, "_reconcile_jobs", slowly)
    ship(database, *range(1, 10))
    making = Importer(database, SlurmView(MemorySlurm(), clock), clock, CLUSTER, 60.0)
    assert longest_s(clock, making) <= PIECE_S
    assert clock.now >= T0 + 9 * PIECE_S


def test_jobs_that_are_done_one_by_one(
    database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        clock.now += PIECE_S
        raise ArithmeticError("of all these jobs")

    monkeypatch.setattr(reconciling, "_reconcile_jobs", never)
    ship(database, *range(1, 10))
    making = Importer(database, SlurmView(MemorySlurm(), clock), clock, CLUSTER, 60.0)
    assert longest_s(clock, making) <= PIECE_S
    assert clock.now >= T0 + 10 * PIECE_S


def test_years_of_timelines(database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    right = pruning._prune_some

    def slowly(*given: Any, **more: Any) -> Any:
        clock.now += PIECE_S
        return right(*given, **more)

    monkeypatch.setattr(pruning, "_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(pruning, "_prune_some", slowly)
    for n in range(1, 10):
        ship(database, n, first_s=T0 - (100 + n) * 86400)
    view = SlurmView(MemorySlurm(), clock)
    upkeep = Upkeep(database, clock, retention=Retention(timelines_s=90 * 86400.0))
    making = Importer(database, view, clock, CLUSTER, 60.0, upkeep=upkeep)
    assert longest_s(clock, making) <= PIECE_S
    assert clock.now >= T0 + 9 * PIECE_S


def test_it_rests_most_of_the_time_while_many_wait_for_an_answer(
    database: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = reconciling._reconcile_jobs

    def slowly(*given: Any, **more: Any) -> None:
        clock.now += 0.25
        right(*given, **more)

    class Stop(threading.Event):
        """An event that is set after a number of rests, which take no time."""

        def __init__(self) -> None:
            super().__init__()
            self.rests: list[float] = []

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.rests.append(timeout)
            clock.now += timeout
            if timeout > _AT_MOST_S:  # the pause between two passes
                self.set()
            return self.is_set()

    monkeypatch.setattr(reconciling, "_JOBS_PER_TRANSACTION", 1)
    monkeypatch.setattr(reconciling, "_reconcile_jobs", slowly)
    making = Importer(database, SlurmView(MemorySlurm(), clock), clock, CLUSTER, 60.0)
    ship(database, *range(1, 10))
    making.run_until(stop := Stop())
    assert len(stop.rests) == 1
    making.gives_way = lambda: True
    ship(database, *range(11, 20))
    making.run_until(stop := Stop())
    assert stop.rests.count(1.0) == 9  # for each quarter of a second of work
    assert sorted(stop.rests)[-2] <= _AT_MOST_S
