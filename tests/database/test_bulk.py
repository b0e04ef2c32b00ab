"""Rows that go to MariaDB many in a statement are the rows that were given, whatever texts they hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select

from slurm_gpu.database import bulk
from slurm_gpu.database.accounting import run_row
from slurm_gpu.database.engine import Database
from slurm_gpu.database.schema import run
from tests.database.conftest import empty
from tests.database.samples import row

_TEXTS = st.text(max_size=20) | st.sampled_from(
    ["'", "\\'", "\\", "%s", "%(name)s", "'; DROP TABLE run; --", "\x00"]
)


def store(database: Database, names: list[str]) -> list[tuple[str, dict[str, float], bool]]:
    rows = [
        {**run_row(row(job_id=n, name=name, tres_allocated={name: 1.5}), {}), "derive_due": n % 2 == 0}
        for n, name in enumerate(names)
    ]
    database.write(lambda connection: bulk.insert(connection, insert(run), rows))
    query = select(run.c.name, run.c.tres_allocated, run.c.derive_due).order_by(run.c.job_id)
    with database.reading() as connection:
        return [tuple(found) for found in connection.execute(query)]


@settings(max_examples=25)
@given(names=st.lists(_TEXTS, max_size=8))
def test_texts_are_kept(shelf: Database, names: list[str]) -> None:
    empty(shelf)
    assert store(shelf, names) == [(name, {name: 1.5}, n % 2 == 0) for n, name in enumerate(names)]


def test_long_rows_go_in_several_statements(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_STATEMENT_CHARACTERS", 3000)
    names = ["x" * length for length in (10, 5000, 10, 2000, 2000, 10)]
    assert [name for name, _, _ in store(database, names)] == names
