"""On a full disk, items are neither accepted nor rejected; nodes send them again later."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from slurm_gpu.cli.doctor.checks.daemons.outages import daemon_that_is_down
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run_device, run_host
from slurm_gpu.errors import DatabaseError
from tests.database.intake_without_http import Gate
from tests.database.samples import host, record, segment
from tests.database.servers import MariaDB

Limit = Callable[[bool], None]


@pytest.fixture(params=["sqlite", "mariadb"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Database, Limit]]:
    """Return a database and a function that limits its disk space or removes the limit."""
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'x.db'}")
        pages = [1_000_000]
        event.listen(database.engine, "connect", lambda c, _: c.execute(f"PRAGMA max_page_count={pages[0]}"))

        def limit(is_full: bool) -> None:
            pages[0] = 1 if is_full else 1_000_000  # used pages remain
            database.dispose()

        database.upgrade()
        yield database, limit
        database.dispose()
        return
    server: MariaDB = request.getfixturevalue("mariadb")
    url = server.fresh()
    database = Database(url)
    database.upgrade()

    def fill(is_full: bool) -> None:
        """Let inserts raise InnoDB's error for a full disk, because tests cannot fill a real one."""
        with database.engine.begin() as connection:
            connection.execute(text("DROP TRIGGER IF EXISTS no_room"))
            if is_full:
                connection.execute(
                    text(
                        "CREATE TRIGGER no_room BEFORE INSERT ON run_host FOR EACH ROW SIGNAL SQLSTATE "
                        "'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table ''run_host'' is full'"
                    )
                )

    yield database, fill
    database.dispose()
    server.drop(url)


def test_data_of_the_meantime_waits_on_its_node_and_is_stored_later(small: tuple[Database, Limit]) -> None:
    database, fill = small
    gate = Gate(database)
    admitted: dict[str, Any] = {
        "records": [record(segment=segment(n)) for n in range(50)],
        "hosts": [host(segment=segment(n), app_params={"input": "x" * 250}) for n in range(50)],
    }
    fill(True)
    for _ in range(3):
        with pytest.raises(DatabaseError) as failed:
            gate.ship(**admitted)
    assert gate.count(run_device) == gate.count(run_host) == 0, "a part of the items was stored"
    assert gate.memory.rejections.by_kind() == {}
    assert "no space left" in str(daemon_that_is_down(str(failed.value)))
    fill(False)
    answer = gate.ship(**admitted)
    assert (answer["stored"], answer["rejected"], answer["rejected_hosts"]) == (100, [], [])
