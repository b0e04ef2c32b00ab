"""Connect to SQLite or MariaDB/MySQL, write in repeatable transactions, and upgrade the schema."""

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
from slurm_gpu.errors import DatabaseError, InputError
from slurm_gpu.files.owner import user_name

T = TypeVar("T")

# Maximum wait until another writer of SQLite has finished, and until a connection of the pool is free.
LOCK_WAIT_S = 30
# Maximum wait for rows that another session of MariaDB has locked. All shipments wait during this time.
ROW_LOCK_WAIT_S = 5
ANSWERS_WITHIN_S = 60
# Errors due to values that the database or driver rejects on every attempt. All other errors are
# DatabaseError: an unreachable, locked or full database, or a missing table, is not due to values.
REFUSED = StatementError, OverflowError, UnicodeError
_LOCK_WAIT_TIMEOUT, _DEADLOCK = 1205, 1213
# MariaDB errors due to values, which pymysql classifies as operational: a row too large, a packet too large,
# an invalid value, an invalid character.
_OF_VALUES = frozenset({1118, PACKET_TOO_LARGE, 1292, 1300})
# MariaDB errors due to the account: access denied to the server (wrong password) or to the database, or an
# unknown database.
_OF_ACCOUNT = frozenset({1044, 1045, 1049, 1698})
# MariaDB errors due to the address: no server listens at the socket, or at the host and port.
_OF_ADDRESS = frozenset({2002, 2003, 2005})
# SQLite's messages if this user may not use the file or its directory.
_OF_ACCESS = ("unable to open database file", "readonly database")
_URL = "url in slurm-gpudbd.yaml"
_TRIES = 5
_WRITE = "slurm_gpu_write"
# Starlette answers requests in up to 40 threads. The other connections are for the import, shipments and
# their answers.
_POOL: dict[str, Any] = {"pool_size": 10, "max_overflow": 40, "pool_timeout": LOCK_WAIT_S}


class UnusableDatabaseError(DatabaseError):
    """Raised if the database is unusable in its current state, and waiting does not help."""


class InvalidUrlError(UnusableDatabaseError):
    """Raised if `url` in slurm-gpudbd.yaml is invalid; systemd then does not restart slurm-gpudbd."""

    exit_code = InputError.exit_code

    def __init__(self, message: str) -> None:
        super().__init__(f"{_URL}: {message}")


class LockedError(DatabaseError):
    """Raised if other sessions have locked rows that a transaction changes; the database may still work."""


class LockWait(enum.Enum):
    """Whether to wait ROW_LOCK_WAIT_S for locked rows several times, once or never."""

    PATIENT = enum.auto()
    ONCE = enum.auto()
    NONE = enum.auto()


class Database:
    """An engine with two kinds of transactions: `reading()`, and `write(work)`, which may repeat `work`."""

    def __init__(self, url: str, *, answers_within_s: int | None = ANSWERS_WITHIN_S) -> None:
        """Create the engine; raise DatabaseError if the URL is unusable.

        Connections are opened later. `answers_within_s` is the time limit of each statement on MariaDB; None
        if a statement may take hours.
        """
        self.url = _checked_url(url)
        self.engine = _engine(self.url, answers_within_s)
        self.is_sqlite = self.engine.dialect.name == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction for reading; raise DatabaseError if the database is unreachable."""
        with _translated(self.url), self.engine.connect() as connection, connection.begin():
            yield connection

    def write(self, work: Callable[[Connection], T], lock_wait: LockWait = LockWait.PATIENT) -> T:
        """Run `work` in one transaction and commit it; on a deadlock, roll back and repeat.

        Raise LockedError if rows remain locked for longer than the limit, and DatabaseError if the database
        is unreachable. In both cases, either nothing or everything was stored.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                with _translated(self.url), self.engine.connect() as connection:
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
        """Upgrade the tables to this version's schema, without a backup, unless they are current.

        An upgrade that was killed is continued. Raise DatabaseError if the database is unreachable, and
        UnusableDatabaseError if a newer slurm-gpu created its schema.
        """
        self._make_file()
        with _translated(self.url), self.engine.connect() as connection, _one_upgrader(connection):
            self._require_known(connection)
            connection.commit()  # Alembic does not end a transaction that was open before
            alembic.command.upgrade(_alembic(connection), "head")

    def is_due(self) -> bool:
        """Return whether an upgrade is needed, as for a new database; raise the same errors as `upgrade`."""
        self._make_file()
        with self.reading() as connection:
            self._require_known(connection)
            return self._revision(connection) != head_revision()

    def has_data(self) -> bool:
        """Return whether any table contains a row, except the table of the schema version."""
        with self.reading() as connection:
            names = set(inspect(connection).get_table_names()) & set(metadata.tables)
            first = (select(literal(1)).select_from(table(name)).limit(1) for name in sorted(names))
            return any(connection.execute(query).first() is not None for query in first)

    def _make_file(self) -> None:
        """Create an empty SQLite file owned by the owner of its folder, since the caller may be root."""
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
                f"the database has the schema {revision}, made by a newer slurm-gpu; {__version__} "
                f"supports schemas up to {head_revision()}. Install that release or a later one, or restore "
                "the backup that was made before its upgrade"
            )

    def schema(self) -> str | None:
        """Return the schema revision of the tables, or None before the first upgrade."""
        with self.reading() as connection:
            return self._revision(connection)

    @staticmethod
    def _revision(connection: Connection) -> str | None:
        return MigrationContext.configure(connection).get_current_revision()

    def server(self) -> str:
        """Return the server's name and version, such as "SQLite 3.40.1" or "MariaDB 10.11.6"."""
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
    """Return all schema revisions from the first one to the current one."""
    scripts = alembic.script.ScriptDirectory.from_config(_alembic(None))
    return [script.revision for script in scripts.walk_revisions()][::-1]


def head_revision() -> str:
    """Return the schema revision of this version of slurm-gpu."""
    return known_revisions()[-1]


def shown_url(url: str) -> str:
    """Return the URL without any password."""
    parsed = _checked_url(url)
    secret = [name for name in parsed.query if "passw" in name]
    return parsed.difference_update_query(secret).render_as_string(hide_password=True)


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite database; None for other databases; raise DatabaseError for a bad URL."""
    parsed = _checked_url(url)
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database
    return Path(str(parsed.database)) if is_file else None


def _checked_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    is_server = parsed is not None and parsed.get_backend_name() in ("mysql", "mariadb")
    if parsed is None or "@" in f"{parsed.host}{parsed.database if is_server else ''}":
        # A / or @ ends the password, so the rest of the password would appear in messages about the port or
        # host.
        raise InvalidUrlError(
            "cannot be read; write sqlite:////var/lib/slurm-gpu/slurm-gpu.db or "
            "mysql+pymysql://USER:PASSWORD@localhost/slurm_gpu?unix_socket=/run/mysqld/mysqld.sock; "
            "in the password, write letters, digits, - and _ unchanged and other characters as %XX"
        )
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "mysql", "mariadb"):
        raise InvalidUrlError(f"{backend!r} is not supported; use sqlite or mysql+pymysql")
    if is_server and not parsed.database:
        raise InvalidUrlError(
            "the database name is missing; append it to the host, as in localhost/slurm_gpu"
        )
    # A relative path would be wrong, because commands do not run in slurm-gpudbd's directory.
    if backend == "sqlite" and not (parsed.database or "").startswith("/"):
        raise InvalidUrlError(
            "a SQLite database requires an absolute path, and thus four slashes, as in "
            "sqlite:////var/lib/slurm-gpu/slurm-gpu.db"
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
            pool_pre_ping=True,  # after a restart of MariaDB, the next request gets a new connection
            pool_recycle=1800,
            # The mode is strict, regardless of the server's default: a value that does not fit causes an
            # error and is never truncated.
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
        has_other_driver = not url.drivername.endswith("+pymysql")
        raise InvalidUrlError(
            f"write mysql+pymysql:// instead of {url.drivername}://"
            if has_other_driver
            else f"{error}; install slurm-gpu-db, or slurm-gpu[db] with pip"
        ) from error
    if engine.dialect.driver == "pymysql":
        event.listen(engine, "connect", measure_statements)
    if answers_within_s is not None:  # statements that may take hours use the server's lock timeout
        event.listen(engine, "connect", _prepare_mariadb)
    return engine


def _tls(url: URL) -> dict[str, bool]:
    """Return the TLS options of pymysql: disable TLS over a Unix socket, unless the URL has TLS options.

    By default, pymysql reads all trusted certificate authorities of this host for each connection, which
    takes 20 ms of processor time and 0.8 MB, although they are rarely needed.
    """
    chosen = any(name.startswith("ssl") for name in url.query)
    is_pymysql = url.drivername.endswith("+pymysql")
    return {"ssl_disabled": True} if is_pymysql and "unix_socket" in url.query and not chosen else {}


def _prepare_mariadb(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", (ROW_LOCK_WAIT_S,))


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # _begin_sqlite begins transactions, because the driver would begin them too late for a consistent read.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    # A write transaction that begins by reading fails immediately, without waiting, if another transaction
    # has written since.
    writing = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@contextmanager
def _translated(url: URL) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        code = _code(error)
        if isinstance(error, DataError | IntegrityError) or code in _OF_VALUES:
            raise
        if code in (_LOCK_WAIT_TIMEOUT, _DEADLOCK):
            raise LockedError(f"rows of the database are locked by other sessions: {error.orig}") from error
        if code in _OF_ACCOUNT:
            raise UnusableDatabaseError(
                f"the database refuses slurm-gpudbd: {error.orig}; check user, password and database of "
                f"{_URL}, and that the server has both, with GRANT ALL"
            ) from error
        raise DatabaseError(f"the database does not answer: {error.orig}{_hint(url, error)}") from error
    except PoolTimeoutError as error:
        raise DatabaseError("the database is too busy: no connection became free") from error


def _hint(url: URL, error: DBAPIError) -> str:
    """Return what the driver's message omits: the SQLite file and its owner, or MariaDB's address."""
    if url.get_backend_name() == "sqlite":
        if not any(message in str(error.orig) for message in _OF_ACCESS):
            return ""
        path = Path(str(url.database))
        parts = [part for part in (path, path.parent) if part.exists()]
        owners = [f"{part} belongs to {user_name(part.stat().st_uid)}" for part in parts] or [str(path)]
        return f" ({', '.join(owners)}; this process runs as {user_name(os.geteuid())})"
    if _code(error) not in _OF_ADDRESS:
        return ""
    address = url.query.get("unix_socket")
    where = f"{url.host}:{url.port or 3306}" if address is None else f"unix_socket={address}"
    return f" ({where} is from {_URL})"


def why_refused(error: BaseException) -> str:
    """Describe an error in REFUSED without the statement, which may be long."""
    reason = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    return f"{type(reason).__name__}: {reason}"


def _code(error: BaseException | None) -> int | None:
    """Return MariaDB's error number, or None if there is none."""
    first = error.orig.args[:1] if isinstance(error, DBAPIError) and error.orig is not None else ()
    return first[0] if first and isinstance(first[0], int) else None


@contextmanager
def _one_upgrader(connection: Connection) -> Iterator[None]:
    """Allow only one upgrade at a time, since MariaDB commits each DDL statement separately."""
    if connection.dialect.name == "sqlite":
        connection.execution_options(**{_WRITE: True})
        yield
        return
    if connection.execute(text("SELECT GET_LOCK('slurm_gpu_upgrade', 60)")).scalar_one() != 1:
        raise DatabaseError(
            "another process has been upgrading the database for a minute, or MariaDB is still executing a "
            "statement of an upgrade that was killed: try again later"
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
