"""Render the table of a figure as a collapsed HTML element."""

from __future__ import annotations

import math
from collections.abc import Callable
from xml.etree.ElementTree import Element
from zoneinfo import ZoneInfo

import numpy as np

from slurm_gpu.reports.category import Category
from slurm_gpu.reports.figure import FigureTable, TableColumn, Values
from slurm_gpu.reports.page.amounts import GAP, amount
from slurm_gpu.reports.page.markup import append, element
from slurm_gpu.text.cells import minute

MOST_ROWS = 100
_FIRST_MOMENT_S = 1e9  # a time in 2001; no duration of a job is this long
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
        unit = element("small", None, f" / {column.unit}") if column.unit and not moments else None
        append(head, element("th", {"scope": "col", **_class(numbers)}, column.name, unit))
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
        append(about, element("dt", None, column.name), element("dd", None, column.about))
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
    return amount


def _cell(value: object, show: Callable[[float], str]) -> str:
    if value is None:
        return GAP
    if isinstance(value, int | float):
        return GAP if isinstance(value, float) and math.isnan(value) else show(value)
    return str(value)
