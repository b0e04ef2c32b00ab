"""The schema's upgrade: killed at each statement and run again, refused where it must be, with a backup."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import sqlite3
import stat
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import alembic.command
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from click.testing import CliRunner, Result
from sqlalchemy import event, inspect, make_url, select, text

from slurm_gpu.cli.main import cli
from slurm_gpu.database import engine as engine_module
from slurm_gpu.database.backup import back_up
from slurm_gpu.database.engine import Database, UnusableDatabaseError, head_revision, known_revisions
from slurm_gpu.database.schema import metadata, run_device
from slurm_gpu.database.store import read_record
from slurm_gpu.database.upgrading import Upgraded, make_ready, upgrade_database
from slurm_gpu.errors import UsageError
from slurm_gpu.records import Mean, Record
from tests.database.samples import T0, record, segment, timeline
from tests.database.servers import MariaDB
from tests.upgrade import write_state

DATA = Path(__file__).parent / "data"
READS = ("SELECT", "PRAGMA", "SHOW", "DESCRIBE", "SET")
KILLED = 9


def made(url: str, revision: str) -> Database:
    """A database of that schema; only its folder where that is ""."""
    database = Database(url)
    if database.is_sqlite:
        Path(str(database.url.database)).parent.mkdir(exist_ok=True)
    if revision:
        with database.engine.connect() as connection:
            alembic.command.upgrade(engine_module._alembic(connection), revision)
    return database


def killed_at(number: int, url: str) -> int:
    """Upgrade in a process that dies like by kill -9 before its nth change or commit; its exit code."""
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
    """Tables, columns and indexes are those that the program works with, and nothing is left over."""
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        names = set(inspect(connection).get_table_names())
    assert names == {*metadata.tables, "alembic_version"}


def done_so_far(database: Database) -> Any:
    """Differs with each statement that changed the schema, or said that it did."""
    if database.is_sqlite:
        return database.schema()
    query = " UNION ALL ".join(
        f"SELECT count(*) FROM information_schema.{view} WHERE table_schema = database()"
        for view in ("tables", "columns", "statistics")
    )
    with database.reading() as connection:
        return connection.execute(text(query)).scalars().all(), database.schema()


def fill(database: Database) -> None:
    """Rows that an upgrade has to keep."""
    with database.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO event (node, boot_id, n, at_s, kind, data) VALUES ('n1', 'b', 1, 5, 'xid', '{}')"
            )
        )


def test_an_upgrade_killed_at_each_statement_goes_on_with_the_next(url: str) -> None:
    """Each run is killed as soon as it has done anything that stays: on MariaDB a statement, else a step."""
    database = Database(url)
    first = "0002" if database.is_sqlite else "0001"
    made(url, first).dispose()
    fill(database)
    number, runs, reached = 2, 1, done_so_far(database)
    while killed_at(number, url) == KILLED:
        runs += 1
        done = done_so_far(database)
        number = number + 1 if done == reached else 2
        reached = done
    assert database.schema() == head_revision()
    assert runs > 3 * (len(known_revisions()) - int(first))
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
    """Some like one another and some not, in no order."""
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
    """A record as rows of `run_device` were up to 0004."""
    wire = sent.to_wire()
    texts = {name: wire.pop(name, None) for name in ("util_hist_ms", "mem_hist_ms", "timeline")}
    columns = {c.name: wire.pop(c.name) for c in run_device.columns if c.name in wire}
    texts["statistics"] = wire
    dumped = {name: None if value is None else json.dumps(value) for name, value in texts.items()}
    return {**columns, **dumped, "run_id": sent.job_id, "match_due": False}


def filled(url: str, records: Sequence[Record]) -> Database:
    """A database of schema 0004 that holds these."""
    database = made(url, "0004")
    rows = list(map(old_row, records))
    names = list(rows[0])
    values = ", ".join(f":{name}" for name in names)
    with database.engine.begin() as connection:
        connection.execute(text(f"INSERT INTO run_device ({', '.join(names)}) VALUES ({values})"), rows)
    database.dispose()
    return database


def stored(database: Database) -> list[Record]:
    """In the order in which they lie there."""
    with database.reading() as connection:
        rows = connection.execute(select(run_device).order_by(run_device.c.row_id)).mappings()
        return [read_record(row) for row in rows]


def test_records_are_carried_over_whenever_the_upgrade_is_killed(url: str) -> None:
    sent = [nth(n) for n in range(1100)]
    database = filled(url, sent)
    # On MariaDB before its table is committed, twice between batches of rows, and while it takes its place.
    # SQLite begins again each time.
    numbers = itertools.chain((2, 4, 4), itertools.count(4) if not database.is_sqlite else (7, 100))
    while killed_at(next(numbers), url) == KILLED:
        pass
    assert database.is_sqlite or next(numbers) > 6
    require_shape(database)
    assert stored(database) == sorted(sent, key=lambda r: (r.last_s, r.segment, r.device))
    with database.reading() as connection:
        query = select(run_device.c.run_id, run_device.c.job_id, run_device.c.match_due).distinct()
        assert sorted(connection.execute(query)) == [(n, n, False) for n in range(40)]
    database.dispose()


def test_what_a_daemon_that_was_not_stopped_stored_meanwhile_is_carried_over(mariadb: MariaDB) -> None:
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


# What is done when


def test_a_daemon_makes_the_tables_of_an_empty_database_and_is_content_with_its_own_schema(url: str) -> None:
    database = Database(url)
    make_ready(database)
    fill(database)
    make_ready(database)
    assert database.schema() == head_revision()
    database.dispose()


def test_a_daemon_changes_no_schema_of_a_database_that_holds_something(url: str) -> None:
    database = made(url, "0003")
    fill(database)
    with pytest.raises(
        UnusableDatabaseError, match=r"has the schema 0003.*needs \d+: run `slurm-gpu db upgrade`"
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
        with pytest.raises(
            UnusableDatabaseError, match="has the schema 9999, made by a newer slurm-gpu than"
        ):
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


# The backup


def backups(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.exists() else []


def test_a_backup_is_whole_and_private_and_named_by_what_it_was_before(url: str, tmp_path: Path) -> None:
    database = made(url, "0003")
    fill(database)
    said: list[str] = []
    place = tmp_path / "backups"
    done = upgrade_database(url, backup_to=place, report=said.append, now=lambda: 1_780_000_000.0)
    assert (done.before, done.after) == ("0003", head_revision())
    (backup,) = backups(place)
    assert backup == done.backup
    assert f"-before-{head_revision()}-20260528T202640Z." in backup.name
    assert (stat.S_IMODE(backup.stat().st_mode), stat.S_IMODE(place.stat().st_mode)) == (0o600, 0o700)
    assert said[-1] == f"backup: {backup}"
    database.dispose()
    if database.is_sqlite:
        with closing(sqlite3.connect(backup)) as copy:
            assert copy.execute("SELECT kind FROM event").fetchall() == [("xid",)]
            assert copy.execute("SELECT version_num FROM alembic_version").fetchall() == [("0003",)]
            assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    else:
        dumped = gzip.decompress(backup.read_bytes()).decode()
        assert "INSERT INTO `event` VALUES" in dumped
        assert "'0003'" in dumped


def test_where_there_is_nothing_to_do_or_to_lose_no_backup_is_made(url: str, tmp_path: Path) -> None:
    assert upgrade_database(url, backup_to=tmp_path / "b") == Upgraded(None, head_revision())
    database = Database(url)
    fill(database)
    database.dispose()
    assert upgrade_database(url, backup_to=tmp_path / "b") == Upgraded(head_revision(), head_revision())
    assert backups(tmp_path / "b") == []


def test_a_backup_of_sqlite_lies_beside_it_and_slurm_gpudbd_may_go_on_writing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'slurm-gpu.db'}"
    database = made(url, "0003")
    with database.engine.connect() as reader:
        fill(database)
        reader.execute(text("SELECT * FROM event")).all()
        backup = back_up(database.url, "before-0004", None)
    assert backup == tmp_path / "slurm-gpu-before-0004.db"
    database.dispose()


def test_without_a_backup_nothing_is_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    database = made(url, "0003")
    fill(database)
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableDatabaseError, match=r"so nothing was changed.*--backup-to.*--no-backup"):
        upgrade_database(url, backup_to=tmp_path / "file")
    assert database.schema() == "0003"
    database.dispose()
    assert upgrade_database(url, backup=False).after == head_revision()


def test_without_a_dump_program_mariadb_is_not_upgraded(
    mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = mariadb.fresh()
    database = made(url, "0003")
    fill(database)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnusableDatabaseError, match=r"neither mariadb-dump nor mysqldump .*--no-backup"):
        upgrade_database(url, backup_to=tmp_path)
    assert (database.schema(), backups(tmp_path)) == ("0003", [])
    database.dispose()
    mariadb.drop(url)


FAKE_DUMP = """#!/bin/sh
tr '\\0' ' ' </proc/$$/cmdline >{seen}/cmdline
tr '\\0' '\\n' </proc/$$/environ >{seen}/environ
file=${{1#--defaults-file=}}
/bin/cp "$file" {seen}/options
/usr/bin/stat -c %a "$file" >{seen}/mode
{end}
"""


def dump_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> Path:
    """A mariadb-dump that writes down how it was called, in the directory given back."""
    seen, programs = tmp_path / "seen", tmp_path / "bin"
    for directory in (seen, programs):
        directory.mkdir()
    program = programs / "mariadb-dump"
    program.write_text(FAKE_DUMP.format(seen=seen, end=end))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return seen


def test_no_password_is_seen_by_others_while_mariadb_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = dump_with(tmp_path, monkeypatch, "echo '-- Dump completed on 2026-11-22'")
    url = make_url("mysql+pymysql://u:x@localhost:3307/slurm_gpu?ssl_ca=/ca.pem").set(password='se"cr\\et #1')
    backup = back_up(url, "before-0004", tmp_path / "b")
    assert gzip.decompress(backup.read_bytes()) == b"-- Dump completed on 2026-11-22\n"
    assert (seen / "mode").read_text() == "600\n"
    for name in ("cmdline", "environ"):
        assert 'se"cr' not in (seen / name).read_text()
    command = (seen / "cmdline").read_text()
    options = (seen / "options").read_text()
    assert 'password = "se\\"cr\\\\et #1"\n' in options
    for line in ('host = "localhost"', 'port = "3307"', 'user = "u"', 'ssl-ca = "/ca.pem"'):
        assert f"{line}\n" in options
    assert command.split()[-1] == "slurm_gpu"
    assert not Path(command.split("--defaults-file=")[1].split()[0]).exists()


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("echo half; echo 'Got error: 1045' >&2; exit 2", "ended with 2: Got error: 1045"),
        ("echo half", "its output is not complete"),
    ],
)
def test_half_a_dump_is_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, why: str
) -> None:
    dump_with(tmp_path, monkeypatch, end)
    url = make_url("mysql+pymysql://u:x@localhost/slurm_gpu")
    with pytest.raises(UnusableDatabaseError, match=why):
        back_up(url, "before-0004", tmp_path / "b")
    assert backups(tmp_path / "b") == []


# The command


def command(tmp_path: Path, url: str, *arguments: str) -> Result:
    settings = tmp_path / "slurm-gpudbd.yaml"
    settings.write_text(f"url: {url}\n")
    settings.chmod(0o600)
    return CliRunner().invoke(cli, ["db", "upgrade", f"--database-config={settings}", *arguments])


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    database = made(url, "0003")
    fill(database)
    database.dispose()
    told = command(tmp_path, url)
    assert told.exit_code == 0
    making, backup, done = told.output.splitlines()
    assert (making, done) == ("making a backup …", f"{url} has schema {head_revision()}, had 0003")
    assert Path(backup.removeprefix("backup: ")).exists()
    assert command(tmp_path, url).output == f"{url} has schema {head_revision()}\n"


def test_the_command_takes_no_contradiction(tmp_path: Path) -> None:
    told = command(tmp_path, "sqlite:////nowhere/x.db", "--no-backup", f"--backup-to={tmp_path}")
    assert isinstance(told.exception, UsageError)
