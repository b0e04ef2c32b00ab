"""Test answers and log if the database is unreachable, hangs, is locked, or refuses an item."""

import base64
import logging
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from slurm_gpu.daemon.outage_log import AGAIN_S
from slurm_gpu.database.ingest import intake, storing
from slurm_gpu.database.ingest.heartbeat import ANSWERED_WITHIN_S
from slurm_gpu.database.storage import engine
from slurm_gpu.database.storage.engine import Database, LockedError, LockWait
from slurm_gpu.database.storage.schema import device, event, run_device, run_host
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire import Event
from tests.database.intake_without_http import N2, Gate, whys
from tests.database.samples import T0, MemorySlurm, gpu, host, record, segment
from tests.database.servers import MariaDB


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, is_refused: Callable[[Any], bool]) -> None:
    """Let the database refuse each transaction that contains a matching item."""
    right = getattr(storing, name)

    def store(connection: Any, items: Iterable[Any]) -> Any:
        if any(map(is_refused, items)):
            raise OverflowError("Python int too large to convert to SQLite INTEGER")
        return right(connection, items)

    monkeypatch.setattr(storing, name, store)


def test_an_item_that_the_database_refuses_is_rejected_and_keeps_out_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(monkeypatch, "store_hosts", lambda item: item.segment in (segment(3), segment(8)))
    refuse(monkeypatch, "store_devices", lambda item: item.uuid == "GPU-2")
    gate = Gate(database)
    answer = gate.ship(
        records=[record(segment=segment(n)) for n in range(5)],
        hosts=[host(segment=segment(n)) for n in range(10)],
        devices=[gpu(), gpu(uuid="GPU-2"), gpu(uuid="GPU-3")],
        events=[Event(node="n1", boot_id="b", n=1, at_s=T0, kind="gpu_lost")],
    )
    why = "the database rejects it: OverflowError: Python int too large to convert to SQLite INTEGER"
    assert whys(answer, "hosts") == {3: why, 8: why}
    assert whys(answer, "devices") == {1: why}
    assert (answer["stored"], answer["stale"], answer["rejected"]) == (13, 0, [])
    assert [gate.count(table) for table in (run_device, run_host, device, event)] == [5, 8, 2, 1]
    assert "'n1' from 127.0.1.1: 3 items rejected, such as hosts[" in caplog.text
    assert gate.memory.rejections.by_kind() == {"hosts": 2, "devices": 1}
    assert gate.memory.rejections.last_s == gate.clock.wall()


def test_a_record_that_cannot_even_be_packed_is_rejected_and_keeps_out_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(records: Iterable[Any]) -> None:
        if any(item.segment == segment(2) for item in records):
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    monkeypatch.setattr(intake, "prepare", prepare)
    answer = Gate(database).ship(records=[record(segment=segment(n)) for n in range(4)])
    assert answer["stored"] == 3
    assert [item["index"] for item in answer["rejected"]] == [2]


def test_parameters_that_fit_into_no_column_are_rejected_where_that_is_so(database: Database) -> None:
    """32 of 255 characters are allowed, which JSON may write with twelve bytes each."""
    long = {f"p{n}": "🚀" * 255 for n in range(32)}
    answer = Gate(database).ship(hosts=[host(), host(segment=segment(2), app_params=long)])
    refused = whys(answer, "hosts")
    assert answer["stored"] + len(refused) == 2
    assert set(refused) <= {1}
    assert all(why.startswith("the database rejects it: DataError: (1406, ") for why in refused.values())


def test_a_value_too_long_for_a_statement_is_rejected_without_the_others(mariadb: MariaDB) -> None:
    """Test a value for which MariaDB closes the connection; its node must not resend it indefinitely."""
    url = mariadb.fresh()
    Database(url).upgrade()
    with mariadb.with_most_bytes(16_384):
        database = Database(url)
        gate = Gate(database)
        floats = {name: base64.b64encode(bytes(4 * n)).decode() for name, n in (("a", 100), ("b", 4096))}
        windows = [
            {
                "job_id": 1,
                "segment": segment(n),
                "device": "GPU-1",
                "start_s": T0,
                "width_s": 1.0,
                "series": {"x": x},
            }
            for n, x in enumerate(floats.values())
        ]
        hosts = [host(segment=segment(n), app_params={"p": "x" * 200}) for n in range(100)]
        answer = gate.ship(windows=windows, hosts=hosts)
        database.dispose()
    mariadb.drop(url)
    (why,) = whys(answer, "windows").values()
    assert "bytes are too many for one statement of MariaDB: its max_allowed_packet is 16384" in why
    assert (answer["stored"], answer["rejected"], answer["rejected_hosts"]) == (100, [], [])


def test_a_database_without_a_table_refuses_nothing_for_good(fresh_database: Database) -> None:
    run_host.drop(fresh_database.engine)
    with pytest.raises(DatabaseError):
        Gate(fresh_database).ship(hosts=[host()])


@pytest.fixture
def locked(mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a MariaDB database that does not wait for locks."""
    monkeypatch.setattr(engine, "ROW_LOCK_WAIT_S", 0)
    url = mariadb.fresh()
    database = Database(url)
    database.upgrade()
    yield database
    database.dispose()
    mariadb.drop(url)


def test_a_locked_row_blocks_only_items_that_change_it(
    locked: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(engine, "time", SimpleNamespace(sleep=pauses.append))
    gate = Gate(locked)
    gate.ship(records=[record()])
    with locked.engine.connect() as session:
        session.execute(select(run_device.c.seq).with_for_update())
        with pytest.raises(LockedError, match="rows of the database are locked by other sessions"):
            gate.ship(records=[record(seq=2)])
        other = record(node="n2", segment=segment(2))
        assert gate.ship(node="n2", address=N2, records=[other])["stored"] == 1
    assert gate.ship(records=[record(seq=2)])["stored"] == 1
    assert pauses == [], "it is not tried again while all others wait"
    assert [item.getMessage().partition(": rows of")[0] for item in caplog.records] == [
        "a shipment cannot be stored and waits on its node: n1"
    ]


def test_patient_writers_retry_for_a_lock_and_shipments_do_not(locked: Database) -> None:
    locked.write(lambda connection: storing.store_records(connection, [record()]))
    tries: list[LockWait] = []

    def write(lock_wait: LockWait) -> None:
        def work(connection: Any) -> None:
            tries.append(lock_wait)
            storing.store_records(connection, [record(seq=2)])

        with pytest.raises(LockedError):
            locked.write(work, lock_wait)

    with locked.engine.connect() as session:
        session.execute(select(run_device.c.seq).with_for_update())
        for lock_wait in LockWait:
            write(lock_wait)
    assert [tries.count(lock_wait) for lock_wait in LockWait] == [5, 1, 1]


def test_without_waiting_a_lock_fails_at_once_and_the_next_one_waits(mariadb: MariaDB) -> None:
    url = mariadb.fresh()
    database = Database(url)
    database.upgrade()
    waits: list[int] = []

    def work(connection: Any) -> None:
        waits.append(connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one())
        storing.store_records(connection, [record(seq=2)])

    database.write(lambda connection: storing.store_records(connection, [record()]))
    with database.engine.connect() as session:
        session.execute(select(run_device.c.seq).with_for_update())
        with pytest.raises(LockedError):
            database.write(work, LockWait.NONE)
    for lock_wait in (LockWait.ONCE, LockWait.NONE, LockWait.PATIENT):
        database.write(work, lock_wait)
    database.dispose()
    mariadb.drop(url)
    assert waits == [0, engine.ROW_LOCK_WAIT_S, 0, engine.ROW_LOCK_WAIT_S]


def test_locks_are_awaited_for_seconds_or_for_the_server_s_time_by_upgrades(mariadb: MariaDB) -> None:
    def waits_s(database: Database) -> int:
        with database.reading() as connection:
            found = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one()
        database.dispose()
        return int(found)

    url = mariadb.fresh()
    assert waits_s(Database(url)) == engine.ROW_LOCK_WAIT_S < 10
    assert waits_s(Database(url, answers_within_s=None)) >= 50
    mariadb.drop(url)


def unreachable(*_: object, **__: object) -> Any:
    raise DatabaseError("the database does not answer: gone")


def test_stored_items_are_acknowledged_though_nothing_more_can_be_read(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(database)
    with monkeypatch.context() as broken:
        broken.setattr(database, "reading", unreachable)
        answer = gate.ship(hosts=[host()], open=[2])
    assert (answer["stored"], answer["ended"]) == (1, {})
    assert [item.getMessage() for item in caplog.records] == [
        "nodes cannot be notified of their ended jobs: the database does not answer: gone"
    ]


def test_reporting_ended_jobs_takes_a_bounded_number_of_connections(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "ENDS_AT_ONCE", 2)
    gate = Gate(database)
    gate.ship()  # Slurm is queried now
    reading, go_on = threading.Semaphore(0), threading.Event()

    def slowly(*_: object) -> Any:
        reading.release()
        assert go_on.wait(20)
        return {}

    monkeypatch.setattr(intake, "run_ends", slowly)
    slow = [threading.Thread(target=gate.ship, kwargs={"open": [2]}) for _ in range(2)]
    for thread in slow:
        thread.start()
        assert reading.acquire(timeout=20)
    assert gate.ship(open=[2], hosts=[host()])["stored"] == 1, "it does not wait for them"
    go_on.set()
    for thread in slow:
        thread.join(20)
    gate.ship(open=[2])
    assert reading.acquire(timeout=0), "and the next one is read again"


def test_storing_that_hangs_is_seen_though_live_values_are_answered(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(database)
    under_way, go_on = threading.Event(), threading.Event()

    def hanging(*_: object, **__: object) -> list[tuple[int, int]]:
        under_way.set()
        assert go_on.wait(20)
        return [(1, 0)]

    monkeypatch.setattr(database, "write", hanging)
    thread = threading.Thread(target=gate.ship, kwargs={"hosts": [host()]})
    thread.start()
    assert under_way.wait(20)
    gate.clock.now += ANSWERED_WITHIN_S + 1
    gate.ship(live={"at_s": T0})
    reported = gate.intake.storing.hangs(gate.clock.monotonic(), ANSWERED_WITHIN_S)
    assert reported == "1 shipments are waiting for the database; none has been stored or rejected for 601 s"
    go_on.set()
    thread.join(20)
    assert gate.intake.storing.hangs(gate.clock.monotonic(), ANSWERED_WITHIN_S) is None


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gate = Gate(database, MemorySlurm())
    with monkeypatch.context() as broken:
        broken.setattr(database, "write", unreachable)
        for _ in range(3):
            with pytest.raises(DatabaseError):
                gate.ship(hosts=[host()], live={"at_s": T0})
        gate.clock.now += AGAIN_S
        with pytest.raises(DatabaseError):
            gate.ship(hosts=[host()])
    assert gate.ship(hosts=[host()])["stored"] == 1
    assert gate.ship(hosts=[host()])["stale"] == 1
    why = "shipments cannot be stored and wait on their nodes: the database does not answer: gone"
    assert [item.getMessage() for item in caplog.records if item.name.endswith("intake")] == [
        why,
        "shipments are stored again",
    ]


def test_live_values_are_shown_though_nothing_can_be_stored(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(database)
    monkeypatch.setattr(database, "write", unreachable)
    with pytest.raises(DatabaseError):
        gate.ship(hosts=[host()], live={"at_s": T0})
    assert list(gate.board.values()) == ["n1"]
