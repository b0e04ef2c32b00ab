import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete, event

from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import metadata
from tests.database.oldsqlite import require_old
from tests.database.running_server import Running, running_server
from tests.database.servers import MariaDB, running_mariadb, running_munged


@pytest.fixture(scope="session", autouse=True)
def _old_sqlite() -> Iterator[None]:
    """Fail on statements that the oldest supported SQLite cannot read."""
    event.listen(Engine, "before_cursor_execute", require_old)
    yield
    event.remove(Engine, "before_cursor_execute", require_old)


@pytest.fixture(scope="session")
def short_path() -> Iterator[Path]:
    """Return a directory with a path short enough for Unix sockets, which other users may enter."""
    root = Path(tempfile.mkdtemp(prefix="sgdb-"))
    root.chmod(0o755)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb(short_path: Path) -> Iterator[MariaDB]:
    if not MariaDB.installed():
        pytest.skip("mariadbd is not installed")
    root = short_path / "maria"
    root.mkdir()
    with running_mariadb(root) as server:
        yield server


@pytest.fixture(scope="session")
def munge_socket(short_path: Path) -> Iterator[str]:
    if shutil.which("munged") is None:
        pytest.skip("munged is not installed")
    root = short_path / "munge"
    root.mkdir(mode=0o755)
    with running_munged(root) as path:
        yield str(path)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, short_path: Path, munge_socket: str
) -> Iterator[Running]:
    """Start slurm-gpudbd's HTTP server on TCP and on a Unix socket."""
    with running_server(tmp_path_factory.mktemp("http"), short_path / "gpudbd.sock", munge_socket) as running:
        yield running


@pytest.fixture(params=["sqlite", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of an empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'database' / 'test.db'}"
    else:
        server: MariaDB = request.getfixturevalue("mariadb")
        fresh = server.fresh()
        yield fresh
        server.drop(fresh)


@pytest.fixture
def fresh_database(url: str) -> Iterator[Database]:
    """Return a database of each kind with tables that a test may damage."""
    made = Database(url)
    made.upgrade()
    yield made
    made.dispose()


@pytest.fixture(scope="session")
def shared_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Database]]:
    """Keep the databases of `shared_database`, because pytest ends a fixture when its parameter changes."""
    made: dict[str, Database] = {}
    yield made
    for database in made.values():
        database.dispose()


@pytest.fixture(scope="session", params=["sqlite", "mariadb"])
def shared_database(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shared_databases: dict[str, Database],
) -> Database:
    """Return a database of each kind with tables, for tests that do not depend on its content."""
    kind: str = request.param
    if kind not in shared_databases:
        if kind == "sqlite":
            made = Database(f"sqlite:///{tmp_path_factory.mktemp('shared_database') / 'x.db'}")
        else:
            server: MariaDB = request.getfixturevalue("mariadb")
            made = Database(server.fresh())
        made.upgrade()
        shared_databases[kind] = made
    return shared_databases[kind]


@pytest.fixture
def database(shared_database: Database) -> Database:
    """Return a database of each kind with empty tables."""
    empty(shared_database)
    return shared_database


def empty(database: Database) -> None:
    """Delete every row."""
    with database.engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(delete(table))
