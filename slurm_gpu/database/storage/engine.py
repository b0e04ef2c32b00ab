"""The connection to SQLite or MariaDB/MySQL: made alike, written to safely, brought up to date."""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import alembic.command
import alembic.config
import alembic.script
from alembic.runtime.migration import MigrationContext
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    create_engine,
    event,
    inspect,
    literal,
    make_url,
    select,
    table,
    text,
)
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from slurm_gpu import __version__
from slurm_gpu.database.storage.mariadb import PACKET_TOO_LARGE, measure_statements, wait_for_locks
from slurm_gpu.database.storage.schema import metadata
from slurm_gpu.errors import DatabaseError

T = TypeVar("T")

LOCK_WAIT_S = 30
"""For SQLite, which has one writer at a time, and for a connection."""
ROW_LOCK_WAIT_S = 5
"""On MariaDB, for rows that another session holds: all that nodes ship waits for it meanwhile."""
ANSWERS_WITHIN_S = 60
REFUSED = StatementError, OverflowError, UnicodeError
"""What values bring about that the database, or the way there, does not take, however often it is tried.

All else is DatabaseError: that the database is away, locked, full, or lacks a table is no fault of theirs.
"""
_LOCK_WAIT_TIMEOUT, _DEADLOCK = 1205, 1213
# Of MariaDB's errors that pymysql holds for operational: a row too large, a packet too large, a wrong value,
# a wrong character.
_OF_VALUES = frozenset({1118, PACKET_TOO_LARGE, 1292, 1300})
_TRIES = 5
_WRITE = "slurm_gpu_write"
# Starlette answers from up to 40 threads; the import, what nodes ship and what they are told have the rest.
_POOL: dict[str, Any] = {"pool_size": 10, "max_overflow": 40, "pool_timeout": LOCK_WAIT_S}


class UnusableDatabaseError(DatabaseError):
    """The database cannot be used as it is; waiting will not help."""


class LockedError(DatabaseError):
    """Others hold rows that this transaction is to change; the database itself may be well."""


class LockWait(enum.Enum):
    """How long to wait for rows that others hold: several times ROW_LOCK_WAIT_S, once, or not at all."""

    PATIENT = enum.auto()
    ONCE = enum.auto()
    NONE = enum.auto()


class Database:
    """One engine and the two ways to use it: `reading()`, and `write(work)`, which may run `work` again."""

    def __init__(self, url: str, *, answers_within_s: int | None = ANSWERS_WITHIN_S) -> None:
        """Raises DatabaseError when the URL is not one that can be used; connects only later.

        `answers_within_s` is for each statement on MariaDB; None where one may take hours.
        """
        self.url = _checked_url(url)
        self.engine = _engine(self.url, answers_within_s)
        self.is_sqlite = self.engine.dialect.name == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One transaction to read in; raises DatabaseError when the database is away."""
        with _translated(), self.engine.connect() as connection, connection.begin():
            yield connection

    def write(self, work: Callable[[Connection], T], lock_wait: LockWait = LockWait.PATIENT) -> T:
        """Run `work` in one transaction and commit it; on a deadlock roll back and run it again.

        Raises LockedError where others hold its rows for longer than is waited, and DatabaseError when the
        database is away; then nothing was stored, or all was.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                with _translated(), self.engine.connect() as connection:
                    connection = connection.execution_options(**{_WRITE: True})
                    with connection.begin():
                        waits = lock_wait is not LockWait.NONE
                        wait_for_locks(connection, ROW_LOCK_WAIT_S if waits else None, ROW_LOCK_WAIT_S)
                        return work(connection)
            except LockedError as error:
                again = lock_wait is LockWait.PATIENT or _code(error.__cause__) == _DEADLOCK
                if attempt == _TRIES or not again:
                    raise
                time.sleep(0.02 * attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def upgrade(self) -> None:
        """Bring the tables to this version's schema, without a backup; harmless when they are there.

        It goes on where one that was killed stopped. Raises DatabaseError when the database is away, and
        UnusableDatabaseError where it was made by a newer slurm-gpu.
        """
        self._make_file()
        with _translated(), self.engine.connect() as connection, _one_upgrader(connection):
            self._require_known(connection)
            connection.commit()  # Alembic would take what was begun for somebody else's to commit
            alembic.command.upgrade(_alembic(connection), "head")

    def is_due(self) -> bool:
        """Does it need an upgrade? So does one that is not there yet. Raises as `upgrade` does."""
        self._make_file()
        with self.reading() as connection:
            self._require_known(connection)
            return self._revision(connection) != head_revision()

    def holds_anything(self) -> bool:
        """Is there any row but the schema's own?"""
        with self.reading() as connection:
            names = set(inspect(connection).get_table_names()) & set(metadata.tables)
            first = (select(literal(1)).select_from(table(name)).limit(1) for name in sorted(names))
            return any(connection.execute(query).first() is not None for query in first)

    def _make_file(self) -> None:
        """An empty one of SQLite. Root may be the first to come, and slurm-gpudbd is the folder's owner."""
        if not (self.is_sqlite and self.url.database):
            return
        path = Path(self.url.database)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                if os.geteuid() == 0:
                    owner = path.parent.stat()
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
                os.close(descriptor)
        except OSError as error:
            raise UnusableDatabaseError(f"cannot make {path}: {error.strerror}") from error

    def _require_known(self, connection: Connection) -> None:
        revision = self._revision(connection)
        if revision is not None and revision not in known_revisions():
            raise UnusableDatabaseError(
                f"the database has the schema {revision}, made by a newer slurm-gpu than {__version__}, "
                f"which knows schemas up to {head_revision()}: install that release or a later one, or "
                "restore the backup that was made before its upgrade"
            )

    def schema(self) -> str | None:
        """The revision of the tables, None before the first upgrade."""
        with self.reading() as connection:
            return self._revision(connection)

    @staticmethod
    def _revision(connection: Connection) -> str | None:
        return MigrationContext.configure(connection).get_current_revision()

    def server(self) -> str:
        """What answers, for people: "SQLite 3.40.1" or "MariaDB 10.11.6"."""
        if self.is_sqlite:
            return f"SQLite {sqlite3.sqlite_version}"
        with self.reading() as connection:
            version = str(connection.execute(text("SELECT VERSION()")).scalar_one())
        return f"MariaDB {version.split('-')[0]}" if "MariaDB" in version else f"MySQL {version}"

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()


@functools.cache
def known_revisions() -> Sequence[str]:
    """All schemas from the first to the one that this version of slurm-gpu works with."""
    scripts = alembic.script.ScriptDirectory.from_config(_alembic(None))
    return [script.revision for script in scripts.walk_revisions()][::-1]


def head_revision() -> str:
    """The schema that this version of slurm-gpu works with."""
    return known_revisions()[-1]


def shown_url(url: str) -> str:
    """The URL as people may read it, without any password in it."""
    parsed = _checked_url(url)
    secret = [name for name in parsed.query if "passw" in name]
    return parsed.difference_update_query(secret).render_as_string(hide_password=True)


def _checked_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    is_server = parsed is not None and parsed.get_backend_name() in ("mysql", "mariadb")
    if parsed is None or "@" in f"{parsed.host}{parsed.database if is_server else ''}":
        # A / or @ of the password ends it, and the rest stands in what others would say of the port or host.
        raise UnusableDatabaseError(
            "url: cannot be read; write sqlite:////var/lib/slurm-gpu/slurm-gpu.db or "
            "mysql+pymysql://USER:PASSWORD@localhost/slurm_gpu?unix_socket=/run/mysqld/mysqld.sock, "
            "and of a password letters, digits, - and _ as they are, other signs as %XX"
        )
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "mysql", "mariadb"):
        raise UnusableDatabaseError(f"url: {backend!r} is not supported; use sqlite or mysql+pymysql")
    if is_server and not parsed.database:
        raise UnusableDatabaseError(
            "url: names no database; behind the host stands /slurm_gpu, or what else you have made for it"
        )
    if backend == "sqlite" and not parsed.database:
        raise UnusableDatabaseError(
            "url: a SQLite database needs a file, such as sqlite:////var/lib/slurm-gpu/slurm-gpu.db"
        )
    return parsed


def _engine(url: URL, answers_within_s: int | None) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url, connect_args={"timeout": LOCK_WAIT_S}, **_POOL)
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        engine = create_engine(
            url,
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,  # MariaDB was restarted: the next request simply gets a new connection
            pool_recycle=1800,
            # Strict, whatever the server's default: a value that does not fit is an error, never cut.
            connect_args={
                "sql_mode": "TRADITIONAL",
                "connect_timeout": 5,
                "read_timeout": answers_within_s,
                "write_timeout": answers_within_s,
                **_tls(url),
            },
            **_POOL,
        )
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise UnusableDatabaseError(
            f"url: {error}; mysql+pymysql:// goes by pymysql, which slurm-gpu-db brings"
        ) from error
    if engine.dialect.driver == "pymysql":
        event.listen(engine, "connect", measure_statements)
    if answers_within_s is not None:  # what may take hours waits for locks as long as the server says
        event.listen(engine, "connect", _prepare_mariadb)
    return engine


def _tls(url: URL) -> dict[str, bool]:
    """Options of pymysql: none over a Unix socket, if the URL does not say otherwise.

    It would read all authorities that this host trusts for each connection, which takes 20 ms of processor
    time and 0.8 MB, and then seldom use them.
    """
    chosen = any(name.startswith("ssl") for name in url.query)
    is_pymysql = url.drivername.endswith("+pymysql")
    return {"ssl_disabled": True} if is_pymysql and "unix_socket" in url.query and not chosen else {}


def _prepare_mariadb(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", (ROW_LOCK_WAIT_S,))


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # Transactions are begun by _begin_sqlite: the driver's own begin too late for a consistent read.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    # A write transaction that begins by reading fails at once, without waiting, if another wrote since.
    writing = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        code = _code(error)
        if isinstance(error, DataError | IntegrityError) or code in _OF_VALUES:
            raise
        if code in (_LOCK_WAIT_TIMEOUT, _DEADLOCK):
            raise LockedError(f"others hold rows of the database: {error.orig}") from error
        raise DatabaseError(f"the database does not answer: {error.orig}") from error
    except PoolTimeoutError as error:
        raise DatabaseError("the database is too busy: no connection became free") from error


def why_refused(error: BaseException) -> str:
    """One of REFUSED in words: without the statement, which may be long."""
    reason = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    return f"{type(reason).__name__}: {reason}"


def _code(error: BaseException | None) -> int | None:
    """MariaDB's number of an error."""
    first = error.orig.args[:1] if isinstance(error, DBAPIError) and error.orig is not None else ()
    return first[0] if first and isinstance(first[0], int) else None


@contextmanager
def _one_upgrader(connection: Connection) -> Iterator[None]:
    """MariaDB commits each DDL statement by itself, so two daemons must not upgrade at once."""
    if connection.dialect.name == "sqlite":
        connection.execution_options(**{_WRITE: True})
        yield
        return
    if connection.execute(text("SELECT GET_LOCK('slurm_gpu_upgrade', 60)")).scalar_one() != 1:
        raise DatabaseError(
            "another process has been upgrading the database for a minute, or MariaDB still works on what "
            "one that was killed had asked for: try again later"
        )
    connection.commit()
    try:
        yield
    finally:
        connection.execute(text("SELECT RELEASE_LOCK('slurm_gpu_upgrade')"))
        connection.commit()


def _alembic(connection: Connection | None) -> alembic.config.Config:
    config = alembic.config.Config(attributes={"connection": connection})
    place = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", place.replace("%", "%%"))
    return config
