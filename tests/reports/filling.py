"""Insert generated accounting into a database, at a hundred thousand rows per second into SQLite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_gpu.database.storage.engine import Database
from tests.reports.generated import Accounting, Node

RUN_DEFAULTS: dict[str, Any] = {
    "exit_code": "0:0",
    "suspended_s": 0,
    "admin_comment": "",
    "derive_due": 0,
}
_LOT = 20_000


def fill(database: Database, accounting: Accounting) -> None:
    """Insert all runs, and the nodes, which never change."""
    columns = {**accounting.runs, **{name: [value] * len(accounting) for name, value in RUN_DEFAULTS.items()}}
    insert(database, "run", list(columns), zip(*map(_plain, columns.values()), strict=True))
    insert_nodes(database, accounting.nodes, accounting.since_s)


def insert_nodes(database: Database, nodes: Sequence[Node], from_s: int, state: str = "up") -> None:
    names = ["node", "from_s", "server_type", "zone", "gpus", "cpus", "memory_mib", "state"]
    rows = [(n.name, from_s, n.server_type, n.zone, n.gpus, n.cpus, n.mib, state) for n in nodes]
    insert(database, "node_period", names, rows)


def insert_runs(database: Database, runs: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows of `run`, which all have the same keys, and each its own run_id."""
    names = list({**RUN_DEFAULTS, **runs[0]})
    insert(database, "run", names, [[{**RUN_DEFAULTS, **one}[name] for name in names] for one in runs])


def insert(database: Database, table: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    quote = database.engine.dialect.identifier_preparer.quote
    mark = "?" if database.is_sqlite else "%s"
    marks = ", ".join([mark] * len(names))
    statement = f"INSERT INTO {quote(table)} ({', '.join(map(quote, names))}) VALUES ({marks})"
    rows = list(rows)
    with database.engine.begin() as connection:
        for start in range(0, len(rows), _LOT):
            connection.exec_driver_sql(statement, [tuple(row) for row in rows[start : start + _LOT]])


def _plain(values: Any) -> list[Any]:
    """Convert NaN to NULL, and whole numbers to integers."""
    if isinstance(values, list):
        return values
    return [None if isinstance(value, float) and math.isnan(value) else value for value in values.tolist()]
