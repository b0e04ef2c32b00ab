"""Insert many rows into MariaDB with few statements, because the driver is slow at inserting single rows."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import StatementError
from sqlalchemy.sql.dml import Insert

from slurm_gpu.database.storage.batches import batched
from slurm_gpu.database.storage.prefetch import read_ahead

_NAME = re.compile(r"%\((\w+)\)s")
_VALUES = re.compile(rf"\({_NAME.pattern}(?:, {_NAME.pattern})*\)")
# Characters that need no escape under any server settings. Most texts contain only these characters.
_PLAIN = re.compile(r"[\w .,:;=+/@#()\[\]-]*", re.ASCII)
_ROWS_AT_ONCE = 500
# The limit is well below the 16 MiB that MariaDB accepts per statement by default.
_STATEMENT_CHARACTERS = 1 << 20
# Statements are short, because MariaDB executes the first one while the next ones are built.
_OF_MANY_CHARACTERS = 1 << 18


def insert(
    connection: Connection,
    statement: Insert,
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    many: bool = False,
) -> None:
    """Insert `rows`, which contain the values of the columns `names`, the only parameters of `statement`.

    Raise StatementError, like `execute`, if a value cannot be converted to SQL. If `many` is true, as for an
    import, a thread iterates over `rows` and builds the next statement while MariaDB executes one.
    """
    if connection.dialect.name == "sqlite":
        if listed := [dict(zip(names, row, strict=True)) for row in rows]:
            connection.execute(statement, listed)
        return
    begin, end, order = _parts(connection.dialect, statement, tuple(names))
    plain = connection.execution_options(no_parameters=True)
    texts = _texts(connection, statement, names, order, rows)
    written = _joined(texts, _OF_MANY_CHARACTERS if many else _STATEMENT_CHARACTERS)
    with closing(read_ahead(written, 1) if many else written) as statements:
        for values in statements:
            plain.exec_driver_sql(f"{begin}({values}){end}")


@functools.lru_cache(maxsize=16)
def _parts(dialect: Dialect, statement: Insert, keys: tuple[str, ...]) -> tuple[str, str, Sequence[str]]:
    """Return the SQL before and after the values, and the column names in the order of the values.

    The result is cached, since compiling a statement takes as long as inserting hundreds of rows.
    """
    compiled = statement.compile(dialect=dialect, column_keys=list(keys))
    values = _VALUES.search(compiled.string)
    assert values is not None
    begin, end = compiled.string[: values.start()], compiled.string[values.end() :]
    assert "%" not in begin + end
    return begin, end, _NAME.findall(values[0])


def _texts(
    connection: Connection,
    statement: Insert,
    names: Sequence[str],
    order: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> Iterator[str]:
    """Yield the values of each row as SQL in the given order, with the driver's own escapes."""
    types = {name: statement.table.c[name].type.dialect_impl(connection.dialect) for name in names}
    processors = {name: kind.bind_processor(connection.dialect) for name, kind in types.items()}
    words = _Words(connection.connection.driver_connection.escape)  # type: ignore[union-attr]
    for some in batched(rows, _ROWS_AT_ONCE):
        try:
            columns = dict(zip(names, zip(*some, strict=True), strict=True))
            written = [words.of(columns[name], processors[name]) for name in order]
            texts = list(map(",".join, zip(*written, strict=True)))
        except Exception as error:  # every error is caused by the rows and would recur
            raise StatementError(str(error), None, None, error) from error
        yield from texts


class _Words:
    """Converts values to SQL column by column, since a call for each value would take most of the time."""

    def __init__(self, escape: Callable[[Any], str]) -> None:
        self._escape = escape
        # Most texts, and most objects that become texts, occur in many rows.
        self._texts = _Texts(escape)
        # keeps the object alive, so its id remains unique
        self._objects: dict[int, tuple[Any, Any]] = {}

    def of(self, column: Sequence[Any], process: Callable[[Any], Any] | None) -> Sequence[str]:
        """Convert one column; `process` prepares its values for the driver."""
        values = column if process is None else [self._processed(value, process) for value in column]
        kinds = set(map(type, values))
        if kinds == {int}:
            return [f"{value}" for value in values]
        if kinds == {str}:
            return list(map(self._texts.__getitem__, values))
        return ["NULL" if value is None else self._word(value) for value in values]

    def _processed(self, value: Any, process: Callable[[Any], Any]) -> Any:
        found = self._objects.get(id(value))
        if found is None:
            found = self._objects[id(value)] = value, process(value)
        return found[1]

    def _word(self, value: Any) -> str:
        kind = type(value)
        if kind is int:
            return str(value)
        if kind is str:
            return self._texts[value]
        # Hexadecimal bytes are longer, but faster to write and to read.
        return f"x'{value.hex()}'" if kind is bytes else self._escape(value)


class _Texts(dict[str, str]):
    """Caches the SQL literals of texts."""

    def __init__(self, escape: Callable[[str], str]) -> None:
        super().__init__()
        self._escape = escape

    def __missing__(self, text: str) -> str:
        written = self[text] = f"'{text}'" if _PLAIN.fullmatch(text) else self._escape(text)
        return written


def _joined(texts: Iterator[str], most_characters: int) -> Generator[str, None, None]:
    """Join rows into the values of statements with at most `most_characters` characters."""
    some: list[str] = []
    length = 0
    for text in texts:
        if some and length + len(text) > most_characters:
            yield "),(".join(some)
            some, length = [], 0
        some.append(text)
        length += len(text) + 3
    if some:
        yield "),(".join(some)
