"""Bulk inserts into MariaDB store rows with arbitrary texts unchanged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select
from sqlalchemy.exc import StatementError

from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.storage import bulk
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import forecast_model, run
from slurm_gpu.slurm.client import AccountingRun
from tests.database.conftest import empty
from tests.database.samples import row

NAMES = (*AccountingRun._fields, "derive_due")
_TEXTS = st.text(max_size=20) | st.sampled_from(
    ["'", "\\'", "\\", "%s", "%(name)s", "'; DROP TABLE run; --", "\x00"]
)


def store(
    database: Database, names: list[str], *, many: bool = False
) -> list[tuple[str, dict[str, float], bool]]:
    # Rows are created on iteration and not kept.
    rows = (
        (*run_row(row(job_id=n, name=name, tres_allocated={name: 1.5}), {}), n % 2 == 0)
        for n, name in enumerate(names)
    )
    database.write(lambda connection: bulk.insert(connection, insert(run), NAMES, rows, many=many))
    query = select(run.c.name, run.c.tres_allocated, run.c.derive_due).order_by(run.c.job_id)
    with database.reading() as connection:
        return [tuple(found) for found in connection.execute(query)]


@settings(max_examples=25)
@given(names=st.lists(_TEXTS, max_size=8), many=st.booleans())
def test_texts_are_kept(shared_database: Database, names: list[str], many: bool) -> None:
    empty(shared_database)
    assert store(shared_database, names, many=many) == [
        (name, {name: 1.5}, n % 2 == 0) for n, name in enumerate(names)
    ]


@settings(max_examples=25)
@given(packed=st.binary(max_size=300))
def test_bytes_are_kept(shared_database: Database, packed: bytes) -> None:
    empty(shared_database)
    names = ("cluster", "created_s", "part", "body")
    rows = [("c", 1, 0, packed)]
    shared_database.write(lambda connection: bulk.insert(connection, insert(forecast_model), names, rows))
    with shared_database.reading() as connection:
        assert connection.execute(select(forecast_model.c.body)).scalar_one() == packed


@pytest.mark.parametrize("many", [False, True])
def test_an_unwritable_value_is_reported_as_such(database: Database, many: bool) -> None:
    """Test that the error is not a database error, which would be retried indefinitely."""
    rows = [(*run_row(row(tres_allocated={"gpu": object()}), {}), True)]
    with pytest.raises(StatementError, match="not JSON serializable"):
        database.write(lambda connection: bulk.insert(connection, insert(run), NAMES, rows, many=many))


@pytest.mark.parametrize("many", [False, True])
def test_long_rows_go_in_several_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    monkeypatch.setattr(bulk, "_OF_MANY_CHARACTERS" if many else "_STATEMENT_CHARACTERS", 3000)
    names = ["x" * length for length in (10, 5000, 10, 2000, 2000, 10)]
    assert [name for name, _, _ in store(database, names, many=many)] == names
