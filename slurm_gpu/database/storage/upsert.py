"""Build repeatable upsert statements for SQLite and MariaDB/MySQL."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, func
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.sql.dml import Insert


@dataclass(frozen=True, slots=True)
class Newest:
    """The rule that a row of `table` replaces a row with equal `key` and `owner` and smaller `order`.

    The columns in `apart` are not written when a row is replaced.
    """

    table: Table
    key: tuple[str, ...]
    order: str
    owner: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    def statement(self, connection: Connection) -> Insert:
        """Return the INSERT statement that applies the rule; every call returns the same object."""
        return _statement(self, connection.dialect.name)

    def newer(self, given: Any) -> ColumnElement[bool]:
        """Return the condition under which the row `given` replaces the stored row."""
        same_owner = (given[name] == self.table.c[name] for name in self.owner)
        return and_(given[self.order] > self.table.c[self.order], *same_owner)


@functools.cache
def _statement(newest: Newest, dialect: str) -> Insert:
    # `order` is assigned last: MariaDB assigns from left to right, and the condition needs its old value.
    table = newest.table
    fixed = (*newest.key, *newest.owner, *newest.apart, newest.order)
    names = [c.name for c in table.columns if c.name not in fixed] + [newest.order]
    if dialect == "sqlite":
        lite = sqlite.insert(table)
        return lite.on_conflict_do_update(
            index_elements=newest.key,
            set_={name: lite.excluded[name] for name in names},
            where=newest.newer(lite.excluded),
        )
    maria = mysql.insert(table)
    newer = newest.newer(maria.inserted)
    return maria.on_duplicate_key_update(
        [(name, func.if_(newer, maria.inserted[name], table.c[name])) for name in names]
    )


def upsert(
    connection: Connection,
    table: Table,
    key: Sequence[str],
    names: Sequence[str],
    fixed: Mapping[str, ColumnElement[Any]] | None = None,
) -> Insert:
    """Return an INSERT that, if the key exists, overwrites the columns `names` and sets those in `fixed`."""
    there = {} if fixed is None else fixed
    if connection.dialect.name == "sqlite":
        lite = sqlite.insert(table)
        return lite.on_conflict_do_update(
            index_elements=key, set_={**{name: lite.excluded[name] for name in names}, **there}
        )
    maria = mysql.insert(table)
    return maria.on_duplicate_key_update({**{name: maria.inserted[name] for name in names}, **there})


def once(connection: Connection, table: Table) -> Insert:
    """Return an INSERT that does nothing if the key exists."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    # INSERT IGNORE would also hide invalid values.
    first_key = next(iter(table.primary_key.columns))
    return mysql.insert(table).on_duplicate_key_update({first_key.name: first_key})
