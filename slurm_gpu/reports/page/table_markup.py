"""Render the table of a figure as a collapsed HTML element."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from xml.etree.ElementTree import Element
from zoneinfo import ZoneInfo

import numpy as np

from slurm_gpu.reports.category import Category
from slurm_gpu.reports.figure import FigureTable, TableColumn, Values
from slurm_gpu.reports.page.amounts import GAP, value_text
from slurm_gpu.reports.page.headings import heading, with_name
from slurm_gpu.reports.page.markup import append, element
from slurm_gpu.text.cells import minute

MOST_ROWS = 100
_FIRST_MOMENT_S = 1e9  # a time in 2001; no duration of a job is this long
# Units that are part of each value, such as 2m30s or a date, or of the heading.
_SHOWN_UNITS = frozenset({"h", "s", "GPU-hours"})
# IDs have no thousands separators.
_IDS = frozenset({"job_id", "id", "year"})


def table_element(table: FigureTable, timezone: str, *, with_files: bool) -> Element:
    """Return an element with the first rows and the meaning of each column."""
    shown = min(len(table), MOST_ROWS)
    head, body = element("tr"), element("tbody")
    cells = []
    for column in table.columns:
        values = table.data[column.name]
        numbers = _are_numbers(values)
        moments = _are_moments(column, values)
        append(head, _header(column, numbers))
        cells.append((_texts(column, values, shown, timezone if moments else None), numbers))
    for row in range(shown):
        line = element("tr")
        for texts, numbers in cells:
            append(
                line, element("td", {**_class(numbers), **({} if numbers else {"dir": "auto"})}, texts[row])
            )
        append(body, line)
    rest = ""
    if shown < len(table):
        rest = f", the first {shown:,} of {len(table):,} rows" + (
            f"; tables/{table.name}.csv contains all rows" if with_files else ""
        )
    caption = f"Table: {table.title}{rest}"
    about = element("dl", {"class": "columns"})
    for column in table.columns:
        if column.about:
            append(about, element("dt", None, with_name(column.name)), element("dd", None, column.about))
    grid = element("table", {"aria-label": table.title}, element("thead", None, head), body)
    return element(
        "details",
        None,
        element("summary", None, caption),
        element(
            "div", {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": table.title}, grid
        ),
        about,
    )


def _header(column: TableColumn, numbers: bool) -> Element:
    """Return the heading in words, with the name of the column in brackets."""
    words, whole = heading(column.name), with_name(column.name)
    name = whole.removeprefix(words).strip()
    unit = "" if column.unit in _SHOWN_UNITS or column.unit == words else column.unit
    small = element("small", None, f" {name}" if name else None, f" / {unit}" if unit else None)
    return element("th", {"scope": "col", **_class(numbers)}, words, small if name or unit else None)


def _class(numbers: bool) -> dict[str, str]:
    return {"class": "number"} if numbers else {}


def _are_numbers(values: Values) -> bool:
    if isinstance(values, Category):
        return False
    if isinstance(values, np.ndarray):
        return True
    return any(isinstance(value, int | float) for value in values)


def _texts(column: TableColumn, values: Values, rows: int, timezone: str | None) -> list[str]:
    if isinstance(values, Category):
        return [GAP if text is None else text for text in values.texts(slice(0, rows))]
    head = values[:rows].tolist() if isinstance(values, np.ndarray) else list(values[:rows])
    show = _writer(column, timezone)
    return [_cell(value, show) for value in head]


def _are_moments(column: TableColumn, values: Values) -> bool:
    """Return whether the values are UTC epoch seconds, which are shown as dates."""
    if column.unit != "s" or not isinstance(values, np.ndarray):
        return False
    known = values[np.isfinite(values)]
    return bool(len(known) and known.min() >= _FIRST_MOMENT_S)


def _writer(column: TableColumn, timezone: str | None) -> Callable[[float], str]:
    if column.name in _IDS:
        return str
    if timezone is not None:
        zone = ZoneInfo(timezone)
        return lambda at_s: minute(at_s, zone)
    return partial(value_text, unit=column.unit)


def _cell(value: object, show: Callable[[float], str]) -> str:
    if value is None:
        return GAP
    if isinstance(value, int | float):
        return GAP if isinstance(value, float) and math.isnan(value) else show(value)
    return str(value)
