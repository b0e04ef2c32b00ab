"""Many rows in few statements to MariaDB: its driver would take longer for a row than the server does."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import StatementError
from sqlalchemy.sql.dml import Insert

_NAME = re.compile(r"%\((\w+)\)s")
_VALUES = re.compile(rf"\({_NAME.pattern}(?:, {_NAME.pattern})*\)")
_STATEMENT_CHARACTERS = 1 << 20
"""Well below the 16 MiB that MariaDB takes of one statement by default."""


def insert(connection: Connection, statement: Insert, rows: Sequence[Mapping[str, Any]]) -> None:
    """Execute an INSERT of `rows`, all with the same keys, whose only parameters are their values.

    Raises StatementError, as `execute` does, where a value cannot be written at all.
    """
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.execute(statement, rows)
        return
    begin, end, names = _parts(connection.dialect, statement, tuple(rows[0]))
    plain = connection.execution_options(no_parameters=True)
    for values in _joined(_texts(connection, statement, names, rows)):
        plain.exec_driver_sql(f"{begin}{values}{end}")


@functools.lru_cache(maxsize=16)
def _parts(dialect: Dialect, statement: Insert, keys: tuple[str, ...]) -> tuple[str, str, Sequence[str]]:
    """What stands before and after the values, and their names in order.

    Remembered, as it takes as long as hundreds of rows: who inserts often has one statement for it.
    """
    compiled = statement.compile(dialect=dialect, column_keys=list(keys))
    values = _VALUES.search(compiled.string)
    assert values is not None
    begin, end = compiled.string[: values.start()], compiled.string[values.end() :]
    assert "%" not in begin + end
    return begin, end, _NAME.findall(values[0])


def _texts(
    connection: Connection, statement: Insert, names: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Each row's values in parentheses, with the driver's own escapes."""
    dialect = connection.dialect
    escape: Callable[[Any], str] = connection.connection.driver_connection.escape  # type: ignore[union-attr]
    processed: list[tuple[int, Callable[[Any], Any]]] = []
    for index, name in enumerate(names):
        found = statement.table.c[name].type.dialect_impl(dialect).bind_processor(dialect)
        if found is not None:
            processed.append((index, found))
    # Most texts, and most objects of which texts are made, are those of many rows.
    texts: dict[str, str] = {}
    objects: dict[int, Any] = {}

    def text(value: Any) -> str:
        if type(value) is bytes:
            return f"x'{value.hex()}'"  # longer, and written and read faster
        if type(value) is not str:
            return escape(value)
        known = texts.get(value)
        if known is None:
            known = texts[value] = escape(value)
        return known

    values_of, written = itemgetter(*names), f"({','.join(['%s'] * len(names))})"
    for row in rows:
        values = list(values_of(row))
        try:
            for index, process in processed:
                value = values[index]
                if id(value) not in objects:
                    objects[id(value)] = process(value)
                values[index] = objects[id(value)]
            # Written out here, as calls would take the most of the time: whole numbers stay what they are.
            row_text = written % tuple(
                [
                    "NULL" if value is None else value if type(value) is int else text(value)
                    for value in values
                ]
            )
        except Exception as error:  # whatever it is, it is of this row, and comes again with it
            raise StatementError(str(error), None, None, error) from error
        yield row_text


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
