"""Each figure of docs/measurements.md states its data and how development used the data."""

from __future__ import annotations

import re

from .pages import DOCS

_PAGE = (DOCS / "measurements.md").read_text("utf-8")
_DATA = re.compile(r"(held out|development|load): \S")


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def _tables() -> list[list[list[str]]]:
    """Return the tables as rows of cells; the first row is the header."""
    blocks = re.findall(r"(?:^\|.*\n)+", _PAGE, re.MULTILINE)
    return [[_cells(row) for row in block.splitlines() if not row.startswith("|-")] for block in blocks]


def test_each_row_states_its_data() -> None:
    tables = _tables()
    assert len(tables) == _PAGE.count("\n## ")
    for head, *rows in tables:
        data = head.index("data")
        assert rows
        assert [row for row in rows if not _DATA.match(row[data])] == []


def test_the_page_defines_the_words_for_data() -> None:
    assert re.findall(r"^- \*\*([a-z ]+)\*\*: ", _PAGE, re.MULTILINE) == ["held out", "development", "load"]
