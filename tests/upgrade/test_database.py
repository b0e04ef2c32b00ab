"""Test schema upgrades that are killed at each statement and run again, and upgrades to refuse."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, inspect, select, text

from slurm_gpu.database.accounting.writer import read_record
from slurm_gpu.database.storage.engine import Database, UnusableDatabaseError, head_revision, known_revisions
from slurm_gpu.database.storage.schema import audit, decision, metadata, run_device
from slurm_gpu.database.storage.upgrade import make_ready, upgrade_database
from slurm_gpu.wire import Mean, Record
from slurm_gpu.wire.record import as_of_wire_1
from tests.database.samples import T0, record, segment, timeline
from tests.database.servers import MariaDB
from tests.upgrade import write_state
from tests.upgrade.databases import fill, made

DATA = Path(__file__).parent / "data"
READS = ("SELECT", "PRAGMA", "SHOW", "DESCRIBE", "SET")
KILLED = 9
# The schema of the first release; `make soak` begins with an earlier schema.
FIRST = os.environ.get("SLURM_GPU_TEST_FIRST_SCHEMA", "0004")


def killed_at(number: int, url: str) -> int:
    """Upgrade in a process that exits abruptly before its nth change or commit; return its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there may be threads; the child has none
        child = os.fork()
    if not child:
        code = 1
        try:
            left, changed = number, False

            def step() -> None:
                nonlocal left
                left -= 1
                if not left:
                    os._exit(KILLED)

            def statement(_: Any, __: Any, sql: str, *___: Any) -> None:
                nonlocal changed
                if not sql.lstrip().upper().startswith(READS):
                    step()
                    changed = True

            def commit(_: Any) -> None:
                nonlocal changed
                if changed:
                    step()
                changed = False

            database = Database(url)
            event.listen(database.engine, "before_cursor_execute", statement)
            event.listen(database.engine, "commit", commit)
            database.upgrade()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def require_shape(database: Database) -> None:
    """Check that the database has exactly the tables, columns and indexes of the program."""
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        names = set(inspect(connection).get_table_names())
    assert names == {*metadata.tables, "alembic_version"}


def done_so_far(database: Database) -> Any:
    """Return a value that differs after each statement that changed the schema or its version."""
    if database.is_sqlite:
        return database.schema()
    query = " UNION ALL ".join(
        f"SELECT count(*) FROM information_schema.{view} WHERE table_schema = database()"
        for view in ("tables", "columns", "statistics")
    )
    with database.reading() as connection:
        return connection.execute(text(query)).scalars().all(), database.schema()


def test_an_upgrade_killed_at_each_statement_continues_with_the_next(url: str) -> None:
    """Kill each run after its first permanent change: a statement on MariaDB, otherwise a step."""
    database = Database(url)
    made(url, FIRST).dispose()
    fill(database)
    number, runs, reached = 2, 1, done_so_far(database)
    while killed_at(number, url) == KILLED:
        runs += 1
        done = done_so_far(database)
        number = number + 1 if done == reached else 2
        reached = done
    assert database.schema() == head_revision()
    assert runs > 3 * (len(known_revisions()) - int(FIRST))
    require_shape(database)
    with database.reading() as connection:
        assert connection.execute(text("SELECT node, n, kind FROM event")).all() == [("n1", 1, "xid")]
    database.dispose()


def test_tables_that_were_made_in_part_are_made_by_the_next_start(url: str) -> None:
    database = made(url, "")
    for number in (3, 9, 17):
        assert killed_at(number, url) == KILLED
    make_ready(database)
    assert database.schema() == head_revision()
    require_shape(database)
    database.dispose()


# Records


def nth(n: int) -> Record:
    """Return the nth of several records, some of which are similar, in no order."""
    last_s = T0 + 10 + n * 7919 % 1000 // 4
    return record(
        job_id=n % 40,
        segment=segment(n * 2654435761 % 2**64),
        device=f"GPU-{n % 3}",
        seq=n + 1,
        last_s=last_s,
        util_hist_ms=None if n % 5 == 0 else {n % 101: 1000, 100: 2000},
        mem_hist_ms={} if n % 7 == 0 else {n % 50: 10},
        power_w=Mean(1.0, float(n), 0.0, float(n + 1)),
        timeline=None if n % 4 == 0 else timeline(n % 100, None, 50, start_s=T0),
    )


def old_row(sent: Record) -> dict[str, Any]:
    """Return a record as a row of `run_device` up to schema 0004."""
    wire = as_of_wire_1(sent.to_wire())
    texts = {name: wire.pop(name, None) for name in ("util_hist_ms", "mem_hist_ms", "timeline")}
    names = as_of_wire_1(run_device.columns)
    columns = {name: wire.pop(name) for name in names if name in wire}
    texts["statistics"] = wire
    dumped = {name: None if value is None else json.dumps(value) for name, value in texts.items()}
    return {**columns, **dumped, "run_id": sent.job_id, "match_due": False}


def filled(url: str, records: Sequence[Record]) -> Database:
    """Return a database of schema 0004 with the given rows."""
    database = made(url, "0004")
    rows = list(map(old_row, records))
    names = list(rows[0])
    values = ", ".join(f":{name}" for name in names)
    with database.engine.begin() as connection:
        connection.execute(text(f"INSERT INTO run_device ({', '.join(names)}) VALUES ({values})"), rows)
    database.dispose()
    return database


def stored(database: Database) -> list[Record]:
    """Return the rows in storage order."""
    with database.reading() as connection:
        rows = connection.execute(select(run_device).order_by(run_device.c.row_id)).mappings()
        return [read_record(row) for row in rows]


def test_records_are_carried_over_whenever_the_upgrade_is_killed(url: str) -> None:
    sent = [nth(n) for n in range(1100)]
    database = filled(url, sent)
    # On MariaDB, kill it before the new table is committed, twice between batches of rows, and while the new
    # table replaces the old one. SQLite starts over each time.
    numbers = itertools.chain((2, 4, 4), itertools.count(4) if not database.is_sqlite else (7, 10_000))
    while killed_at(next(numbers), url) == KILLED:
        pass
    assert database.is_sqlite or next(numbers) > 6
    require_shape(database)
    assert stored(database) == sorted(sent, key=lambda r: (r.last_s, r.segment, r.device))
    with database.reading() as connection:
        query = select(run_device.c.run_id, run_device.c.job_id, run_device.c.match_due).distinct()
        assert sorted(connection.execute(query)) == [(n, n, False) for n in range(40)]
    database.dispose()


def test_data_that_a_running_daemon_stored_meanwhile_is_migrated(mariadb: MariaDB) -> None:
    url = mariadb.fresh()
    sent = [nth(n) for n in range(600)]
    database = filled(url, sent)
    assert killed_at(4, url) == KILLED  # after the first 500
    first = min(sent, key=lambda r: (r.last_s, r.segment, r.device))
    change = text("UPDATE run_device SET seq = 9999, last_s = :at_s WHERE segment = :segment")
    with database.engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM run_device_copy")).scalar_one() == 500
        connection.execute(change, {"segment": first.segment, "at_s": T0 + 5000})
    database.upgrade()
    require_shape(database)
    assert len(stored(database)) == 600
    assert (stored(database)[-1].segment, stored(database)[-1].seq) == (first.segment, 9999)
    database.dispose()
    mariadb.drop(url)


# The action at a point in time.


def test_runs_with_records_or_nodes_are_derived_again_and_others_are_not(url: str) -> None:
    """Test an upgrade from 0005, which lacks server types and the time without processes on the GPUs."""
    database = made(url, "0005")
    values = ", ".join(
        f"('c', {number}, 1, '', 'u', 'a', 'q', 'p', 'COMPLETED', '0:0', 1, 0, 1, '{nodes}', '{{}}', "
        f"'{{}}', '', {coverage}, 0)"
        for number, nodes, coverage in ((1, "", "0.5"), (2, "", "NULL"), (3, "", "0"), (4, "n1", "NULL"))
    )
    with database.engine.begin() as connection:
        names = (
            "cluster, job_id, submit_s, name, user, account, qos, `partition`, state, exit_code, elapsed_s, "
            "suspended_s, n_nodes, nodes, tres_requested, tres_allocated, admin_comment, coverage, derive_due"
        )
        connection.execute(text(f"INSERT INTO run ({names}) VALUES {values}"))
    database.upgrade()
    with database.reading() as connection:
        query = "SELECT job_id, derive_due, no_process_mgpu_s FROM run ORDER BY job_id"
        rows = connection.execute(text(query)).all()
    assert rows == [(1, 1, None), (2, 0, None), (3, 1, None), (4, 1, None)]
    database.dispose()


def test_renamed_columns_keep_their_values(url: str) -> None:
    database = made(url, "0016")
    with database.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO audit (audit_id, at_s, who, host, act, subject, why) "
                "VALUES ('a', 1, 'root', 'head', 'limit moved', 'share', 'w')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO decision (decision_id, cluster, at_s, host, asked, verdict, uid, job) "
                "VALUES ('d', 'c', 1, 'head', 'submit', 'deny', 7, '{}')"
            )
        )
    database.upgrade()
    with database.reading() as connection:
        assert connection.execute(select(audit.c.reported_by, audit.c.action)).all() == [
            ("root", "limit moved")
        ]
        assert connection.execute(select(decision.c.operation)).scalars().all() == ["submit"]
    database.dispose()


def test_a_daemon_makes_the_tables_of_an_empty_database_and_is_content_with_its_own_schema(url: str) -> None:
    database = Database(url)
    make_ready(database)
    fill(database)
    make_ready(database)
    assert database.schema() == head_revision()
    database.dispose()


def test_a_daemon_changes_no_schema_of_a_database_with_data(url: str) -> None:
    database = made(url, "0003")
    fill(database)
    with pytest.raises(
        UnusableDatabaseError, match=r"has the schema 0003.*requires \d+: run `slurm-gpu db upgrade`"
    ):
        make_ready(database)
    assert database.schema() == "0003"
    database.dispose()


def test_a_newer_schema_is_refused_by_all(url: str, tmp_path: Path) -> None:
    database = made(url, "0002")
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for act in (
        database.upgrade,
        database.is_due,
        lambda: make_ready(database),
        lambda: upgrade_database(url),
    ):
        with pytest.raises(UnusableDatabaseError, match="has the schema 9999, made by a newer slurm-gpu"):
            act()
    database.dispose()


def test_the_database_of_an_older_release_is_brought_up_with_all_that_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript((DATA / "0.1.0" / "database.sql").read_text())
    done = upgrade_database(f"sqlite:///{path}")
    assert (done.before, done.after) == ("0004", head_revision())
    database = Database(f"sqlite:///{path}")
    with database.reading() as connection:
        stored = connection.execute(select(run_device)).mappings().one()
        assert read_record(stored) == write_state.record(1, 9, final=True)
        assert [
            connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            for table in ("run_host", "run_window", "device", "event")
        ] == [1, 1, 1, 1]
    database.dispose()
