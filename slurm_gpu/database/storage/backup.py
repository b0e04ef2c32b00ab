"""Back up the whole database before its schema changes."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from sqlalchemy import URL

from slurm_gpu.database.storage.engine import UnusableDatabaseError
from slurm_gpu.files.atomic import whole_file

DUMP_PROGRAMS = ("mariadb-dump", "mysqldump")
MARIADB_BACKUPS = Path("/var/lib/slurm-gpu/backup")
_WITHOUT = "make a backup by other means and run `slurm-gpu db upgrade --no-backup`"
# Matches the names of backups made before upgrades, to find the partial files of interrupted backups. These
# files may be large, and new backups do not replace them, because each name contains the time.
_BACKUPS = "*-before-*"
_COMPLETE = b"-- Dump completed"
_TAIL_BYTES = 256
# Connection arguments that are written unchanged to a client's options file.
_OPTIONS = {
    "host": "host",
    "port": "port",
    "user": "user",
    "password": "password",
    "passwd": "password",
    "unix_socket": "socket",
}
_SSL_OPTIONS = ("ca", "capath", "cert", "key", "cipher")


def back_up(url: URL, name: str, directory: Path | None) -> Path:
    """Write a copy of the whole database to a file with mode 0600, and return its path.

    The file name consists of the database's name, `name` and an extension. `directory` is created with mode
    0700. By default, this is the directory of the database file, or MARIADB_BACKUPS for MariaDB. Writers need
    not stop, but later writes are not contained in the copy. If UnusableDatabaseError is raised, the file
    does not exist.
    """
    try:
        if url.get_backend_name() == "sqlite":
            path = Path(str(url.database))
            place = path.parent if directory is None else directory
            return _copy_sqlite(path, place / f"{path.stem}-{name}.db")
        place = MARIADB_BACKUPS if directory is None else directory
        return _dump_mariadb(url, place / f"{url.database}-{name}.sql.gz")
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        where = directory or (error.filename if isinstance(error, OSError) else None) or "the backup"
        raise UnusableDatabaseError(
            f"no backup of the database could be made, so nothing was changed: {where}: {why}; use "
            f"--backup-to to name a directory with enough space, or {_WITHOUT}"
        ) from error


def _place_of(target: Path) -> Path:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return target


def _copy_sqlite(database: Path, target: Path) -> Path:
    with whole_file(_place_of(target), _BACKUPS) as unfinished:
        with (
            contextlib.closing(sqlite3.connect(database)) as source,
            contextlib.closing(sqlite3.connect(unfinished)) as copy,
        ):
            source.backup(copy)
            # In the journal mode DELETE, the copy is a single file, which an admin may move.
            copy.execute("PRAGMA journal_mode=DELETE").close()
        if os.geteuid() == 0:  # slurm-gpudbd's own user must be able to restore the copy
            owner = database.stat()
            # slurm-gpudbd's user owns the folder, and could have replaced the file with a symbolic link.
            os.chown(unfinished, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return target


def _dump_mariadb(url: URL, target: Path) -> Path:
    program = next(filter(None, map(shutil.which, DUMP_PROGRAMS)), None)
    if program is None:
        raise UnusableDatabaseError(
            f"no backup of the database can be made: neither {' nor '.join(DUMP_PROGRAMS)} is installed; "
            f"install MariaDB's client programs, or {_WITHOUT}"
        )
    with whole_file(_place_of(target), _BACKUPS) as unfinished, _options(url) as options:
        command = [
            program,
            f"--defaults-file=/dev/fd/{options}",  # must come first; other files could name another server
            "--single-transaction",
            "--quick",
            "--skip-lock-tables",
            "--no-tablespaces",
            "--hex-blob",
            "--default-character-set=utf8mb4",
            str(url.database),
        ]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=(options,),
            ) as process,
            gzip.open(unfinished, "wb", compresslevel=1) as packed,
        ):
            assert process.stdout is not None
            try:
                tail = _copy(process.stdout, packed)
            except BaseException:
                process.kill()
                raise
            code = process.wait()
            errors.seek(0)
            complaint = errors.read(2000).decode(errors="replace").strip()
        if code != 0 or _COMPLETE not in tail:
            raise UnusableDatabaseError(
                f"no backup of the database could be made, so nothing was changed: {program} ended with "
                f"{code}: {complaint or 'the output is incomplete'}; fix that, or {_WITHOUT}"
            )
    return target


def _copy(source: IO[bytes], target: gzip.GzipFile) -> bytes:
    """Copy `source` to `target`, and return the last bytes copied."""
    tail = b""
    while piece := source.read(1 << 20):
        target.write(piece)
        tail = (tail + piece)[-_TAIL_BYTES:]
    return tail


@contextlib.contextmanager
def _options(url: URL) -> Iterator[int]:
    """Write client options to an anonymous file, and yield its descriptor.

    The file disappears with this process. A password on the command line would be visible to all users of
    this host.
    """
    given: Mapping[str, Any] = url.get_dialect()().create_connect_args(url)[1]
    with os.fdopen(os.memfd_create("options"), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)  # MariaDB ignores world-writable options files
        if "read_default_file" in given:
            file.write(f"!include {given['read_default_file']}\n")
        file.write("[client]\n")
        for argument, option in _OPTIONS.items():
            if given.get(argument) is not None:
                file.write(f"{option} = {_quoted(str(given[argument]))}\n")
        ssl = given.get("ssl") or {}
        for option in _SSL_OPTIONS:
            if option in ssl:
                file.write(f"ssl-{option} = {_quoted(str(ssl[option]))}\n")
        file.flush()
        yield file.fileno()


def _quoted(value: str) -> str:
    """Quote a value for an options file."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
