"""Many rows in few statements to MariaDB: its driver would take longer for a row than the server does."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import StatementError
from sqlalchemy.sql.dml import Insert

from slurm_gpu.database.ahead import read_ahead

_NAME = re.compile(r"%\((\w+)\)s")
_VALUES = re.compile(rf"\({_NAME.pattern}(?:, {_NAME.pattern})*\)")
_STATEMENT_CHARACTERS = 1 << 20
"""Well below the 16 MiB that MariaDB takes of one statement by default."""
_OF_MANY_CHARACTERS = 1 << 18
"""So few that MariaDB begins while more are written."""


def insert(
    connection: Connection, statement: Insert, rows: Iterable[Mapping[str, Any]], *, many: bool = False
) -> None:
    """Execute an INSERT of `rows`, all with the same keys, whose only parameters are their values.

    Raises StatementError, as `execute` does, where a value cannot be written at all. Of `many` rows, as there
    are at an import, a thread writes the next statement while MariaDB executes one; it goes through `rows`.
    """
    if connection.dialect.name == "sqlite":
        if listed := list(rows):
            connection.execute(statement, listed)
        return
    coming = iter(rows)
    first = next(coming, None)
    if first is None:
        return
    begin, end, names = _parts(connection.dialect, statement, tuple(first))
    plain = connection.execution_options(no_parameters=True)
    texts = _texts(connection, statement, names, itertools.chain([first], coming))
    written = _joined(texts, _OF_MANY_CHARACTERS if many else _STATEMENT_CHARACTERS)
    with closing(read_ahead(written, 1) if many else written) as statements:
        for values in statements:
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
    connection: Connection, statement: Insert, names: Sequence[str], rows: Iterable[Mapping[str, Any]]
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
    objects: dict[int, tuple[Any, Any]] = {}  # with the object itself, so that no other gets its id

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
                    objects[id(value)] = value, process(value)
                values[index] = objects[id(value)][1]
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


def _joined(texts: Iterator[str], most_characters: int) -> Generator[str, None, None]:
    """With commas between them, as many together as belong into one statement."""
    some: list[str] = []
    length = 0
    for text in texts:
        if some and length + len(text) > most_characters:
            yield ",".join(some)
            some, length = [], 0
        some.append(text)
        length += len(text) + 1
    if some:
        yield ",".join(some)
