"""Test the complete and private copy of the database before a schema change, and its command."""

from __future__ import annotations

import gzip
import os
import sqlite3
import stat
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import make_url, text

from slurm_gpu.cli.main import cli
from slurm_gpu.database.storage.backup import back_up
from slurm_gpu.database.storage.engine import Database, UnusableDatabaseError, head_revision
from slurm_gpu.database.storage.upgrade import Upgraded, upgrade_database
from slurm_gpu.errors import UsageError
from tests.database.servers import MariaDB
from tests.upgrade.databases import fill, made


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


def test_no_backup_is_made_without_data_or_changes(url: str, tmp_path: Path) -> None:
    assert upgrade_database(url, backup_to=tmp_path / "b") == Upgraded(None, head_revision())
    database = Database(url)
    fill(database)
    database.dispose()
    assert upgrade_database(url, backup_to=tmp_path / "b") == Upgraded(head_revision(), head_revision())
    assert backups(tmp_path / "b") == []


def test_a_backup_of_sqlite_is_next_to_it_and_slurm_gpudbd_may_keep_writing(tmp_path: Path) -> None:
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
/usr/bin/stat -L -c %a "$file" >{seen}/mode
ls {seen}/../tmp >{seen}/files
{end}
"""


def dump_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> Path:
    """Install a mariadb-dump that records its calls in the returned directory."""
    seen, programs = tmp_path / "seen", tmp_path / "bin"
    for directory in (seen, programs, tmp_path / "tmp"):
        directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
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
    assert (seen / "files").read_text() == "", "a kill -9 would leave a file"


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("echo half; echo 'Got error: 1045' >&2; exit 2", "ended with 2: Got error: 1045"),
        ("echo half", "the output is incomplete"),
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


@pytest.mark.parametrize("directory", [None, "b"])
def test_a_partial_backup_of_a_killed_upgrade_is_removed_by_the_next(
    tmp_path: Path, directory: str | None
) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    fill(made(url, "0001"))
    place = tmp_path if directory is None else tmp_path / directory
    place.mkdir(exist_ok=True)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    left = place / f".x-before-0002-20261122T000000Z.db.{ended.pid}.unfinished"
    own = place / f".mine.db.{ended.pid}.unfinished"
    for path in (left, own):
        path.write_text("half of it")
    upgrade_database(url, backup_to=None if directory is None else place)
    assert (left.exists(), own.exists()) == (False, True)


# The command


def command(tmp_path: Path, url: str, *arguments: str) -> Result:
    settings = tmp_path / "slurm-gpudbd.yaml"
    settings.write_text(f"url: {url}\n")
    settings.chmod(0o600)
    return CliRunner().invoke(cli, ["db", "upgrade", f"--database-config={settings}", *arguments])


def test_the_command_reports_its_actions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    database = made(url, "0003")
    fill(database)
    database.dispose()
    reported = command(tmp_path, url)
    assert reported.exit_code == 0
    making, backup, done = reported.output.splitlines()
    assert (making, done) == ("making a backup …", f"{url} has schema {head_revision()}, had 0003")
    assert Path(backup.removeprefix("backup: ")).exists()
    assert command(tmp_path, url).output == f"{url} has schema {head_revision()}\n"


def test_the_command_takes_no_contradiction(tmp_path: Path) -> None:
    reported = command(tmp_path, "sqlite:////nowhere/x.db", "--no-backup", f"--backup-to={tmp_path}")
    assert isinstance(reported.exception, UsageError)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give files away")
def test_a_database_that_root_makes_belongs_to_whom_its_folder_does(tmp_path: Path) -> None:
    """Run `slurm-gpu db upgrade` as root before the first start of slurm-gpudbd, which is not root."""
    folder = tmp_path / "slurm-gpu"
    folder.mkdir()
    os.chown(folder, 64030, 64031)
    upgrade_database(f"sqlite:///{folder / 'slurm-gpu.db'}")
    found = {path.name: path.stat() for path in folder.iterdir()}
    assert found.keys() >= {"slurm-gpu.db"}
    assert {(status.st_uid, status.st_gid) for status in found.values()} == {(64030, 64031)}
    assert {stat.S_IMODE(status.st_mode) for status in found.values()} == {0o600}
