"""Fit columns of styled text to a width: keep narrow columns complete, and cut wide columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class GridColumn:
    """A column; `least` is its minimum width. If `least` is None, the column is never cut.

    Columns with a small `spare` are omitted first; columns without `spare` are never omitted.
    """

    title: str
    right: bool = False
    least: int | None = None
    spare: int | None = None


def grid(columns: Sequence[GridColumn], rows: Sequence[Sequence[Text]], width: int | None) -> list[Text]:
    """Return a heading and a line for each row, at most `width` wide (None: unlimited).

    If necessary, columns are cut down to `least`, then omitted in the order of `spare`; finally, lines are
    cut.
    """
    shown = list(range(len(columns)))
    natural = [
        max([len(column.title), *(row[at].cell_len for row in rows)]) for at, column in enumerate(columns)
    ]
    least = [
        wide if column.least is None else min(wide, max(column.least, len(column.title)))
        for wide, column in zip(natural, columns, strict=True)
    ]
    spare = sorted(
        (at for at in shown if columns[at].spare is not None), key=lambda at: (columns[at].spare or 0, at)
    )
    while width is not None and spare and _width(least, shown, 1) > width:
        shown.remove(spare.pop(0))
    gap, widths = 2, natural
    if width is not None and _width(natural, shown, 2) > width:
        gap, widths = 1, _shared_out(width, shown, least, natural)
    titles = [Text(columns[at].title, style="bold") for at in range(len(columns))]
    return [_line(row, shown, widths, columns, gap, width) for row in (titles, *rows)]


def _line(
    row: Sequence[Text],
    shown: Sequence[int],
    widths: Sequence[int],
    columns: Sequence[GridColumn],
    gap: int,
    width: int | None,
) -> Text:
    line = Text(no_wrap=True, end="")
    for place, at in enumerate(shown):
        cell = row[at].copy()
        cell.truncate(widths[at], overflow="ellipsis")
        fill = widths[at] - cell.cell_len
        if columns[at].right:
            cell.pad_left(fill)
        elif place < len(shown) - 1:
            cell.pad_right(fill)
        line.append_text(cell)
        if place < len(shown) - 1:
            line.append(" " * gap)
    line.rstrip()
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def _width(widths: Sequence[int], shown: Sequence[int], gap: int) -> int:
    return sum(widths[at] for at in shown) + gap * (len(shown) - 1)


def _shared_out(width: int, shown: Sequence[int], least: Sequence[int], natural: Sequence[int]) -> list[int]:
    """Give the remaining width to the columns that need the least, to complete as many as possible."""
    widths, left = list(least), width - _width(least, shown, 1)
    for at in sorted(shown, key=lambda at: natural[at] - widths[at]):
        more = max(0, min(left, natural[at] - widths[at]))
        widths[at] += more
        left -= more
    return widths
