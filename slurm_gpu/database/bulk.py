"""Many rows in few statements to MariaDB: its driver would take longer for a row than the server does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.sql.dml import Insert

_NAME = re.compile(r"%\((\w+)\)s")
_VALUES = re.compile(rf"\({_NAME.pattern}(?:, {_NAME.pattern})*\)")
_STATEMENT_CHARACTERS = 1 << 20
"""Well below the 16 MiB that MariaDB takes of one statement by default."""


def insert(connection: Connection, statement: Insert, rows: Sequence[Mapping[str, Any]]) -> None:
    """Execute an INSERT of `rows`, all with the same keys, whose only parameters are their values."""
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.execute(statement, rows)
        return
    begin, end, names = _parts(connection, statement, rows[0])
    plain = connection.execution_options(no_parameters=True)
    for values in _joined(_texts(connection, statement, names, rows)):
        plain.exec_driver_sql(f"{begin}{values}{end}")


def _parts(
    connection: Connection, statement: Insert, row: Mapping[str, Any]
) -> tuple[str, str, Sequence[str]]:
    """What stands before and after the values, and their names in order."""
    compiled = statement.compile(dialect=connection.dialect, column_keys=list(row))
    values = _VALUES.search(compiled.string)
    assert values is not None
    begin, end = compiled.string[: values.start()], compiled.string[values.end() :]
    assert "%" not in begin + end
    return begin, end, _NAME.findall(values[0])


def _texts(
    connection: Connection, statement: Insert, names: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Each row's values in parentheses, with the driver's own escapes."""
    escape: Callable[[Any], str] = connection.connection.driver_connection.escape  # type: ignore[union-attr]
    dialect = connection.dialect
    # Most texts, and the objects of most columns that are more than a number or a text, are many rows'.
    texts: dict[str, str] = {}
    objects: dict[int, str] = {}

    def text(value: Any) -> str:
        if value is None:
            return "NULL"
        kind = type(value)
        if kind is int:
            return str(value)
        if kind is not str:
            return escape(value)
        known = texts.get(value)
        if known is None:
            known = texts[value] = escape(value)
        return known

    def of(name: str) -> Callable[[Any], str]:
        process = statement.table.c[name].type.dialect_impl(dialect).bind_processor(dialect)
        if process is None:
            return text

        def processed(value: Any) -> str:
            known = objects.get(id(value))
            if known is None:
                known = objects[id(value)] = text(process(value))
            return known

        return processed

    columns = [(name, of(name)) for name in names]
    for row in rows:
        yield f"({','.join([write(row[name]) for name, write in columns])})"


def _joined(texts: Iterator[str]) -> Iterator[str]:
    """With commas between them, as many together as belong into one statement."""
    some: list[str] = []
    length = 0
    for text in texts:
        if some and length + len(text) > _STATEMENT_CHARACTERS:
            yield ",".join(some)
            some, length = [], 0
        some.append(text)
        length += len(text) + 1
    if some:
        yield ",".join(some)
