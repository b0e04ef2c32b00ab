"""Draw a matrix with a number in each cell; larger values are darker."""

from __future__ import annotations

import math

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import Matrix
from slurm_gpu.reports.page.amounts import compact, with_unit
from slurm_gpu.reports.page.drawing import SMALL_SIZE, Box, TextMark, VectorDrawing, fitted, text_width

_CELL_HEIGHT, _CELL_MOST, _MOST = 28.0, 110.0, 20
_DARK_FROM = 0.55
_LABEL_SHARE = 0.3


def draw_matrix(chart: Matrix, width: float) -> VectorDrawing:
    """Return a drawing of the rows and columns with the largest values, at most twenty of each."""
    values = np.asarray(chart.values, np.float64).reshape(len(chart.rows), len(chart.columns))
    row_places, column_places = _largest(values), _largest(values.T)
    rows = [chart.rows[place] for place in row_places]
    columns = [chart.columns[place] for place in column_places]
    left = min(max((text_width(name) for name in rows), default=0.0), width * _LABEL_SHARE) + 12
    cell = min(_CELL_MOST, (width - left) / max(1, len(columns)))
    drawing = VectorDrawing(width, 0)
    top = 44.0
    drawing.add(
        TextMark(0, 34, fitted(chart.row_title, left) if chart.row_title else "", "muted"),
        TextMark(left + 2, 14, f"{chart.column_title} ({chart.unit})" if chart.unit else chart.column_title),
    )
    shown = values[np.ix_(row_places, column_places)]
    most = float(np.nanmax(shown)) if np.isfinite(shown).any() else 0.0
    for c, name in enumerate(columns):
        text = fitted(name, cell - 6)
        x = left + c * cell + cell / 2
        drawing.add(TextMark(x, 34, text, "ink", "middle", whole=name if text != name else ""))
    for r, name in enumerate(rows):
        y = top + r * _CELL_HEIGHT
        text = fitted(name, left - 10)
        drawing.add(TextMark(left - 8, y + 18, text, "ink", "end", whole=name if text != name else ""))
        for c, column in enumerate(columns):
            value, x = float(shown[r, c]), left + c * cell
            if math.isnan(value):
                drawing.add(Box(x + 1, y + 1, cell - 2, _CELL_HEIGHT - 2, "grid", outline=True))
                continue
            share = value / most if most > 0 else 0.0
            about = f"{name} → {column}: {with_unit(value, chart.unit)}"
            drawing.add(Box(x + 1, y + 1, cell - 2, _CELL_HEIGHT - 2, "accent", about, 0.06 + 0.94 * share))
            if text_width(compact(value)) <= cell - 4:
                tone = "surface" if share >= _DARK_FROM else "ink"
                drawing.add(TextMark(x + cell / 2, y + 18, compact(value), tone, "middle", SMALL_SIZE))
    drawing.height = top + len(rows) * _CELL_HEIGHT + 8
    if len(rows) < len(chart.rows) or len(columns) < len(chart.columns):
        of = f"{len(rows)} of {len(chart.rows)} rows, {len(columns)} of {len(chart.columns)} columns"
        drawing.add(TextMark(width, drawing.height + 14, f"the largest {of}", anchor="end"))
        drawing.height += 22
    return drawing


def _largest(values: Floats) -> list[int]:
    """Return the indices of up to twenty rows with the largest maxima, in ascending order."""
    if not values.size:
        return list(range(min(len(values), _MOST)))
    most = np.nan_to_num(values, nan=-np.inf).max(axis=1)
    return sorted(np.argsort(-most, kind="stable")[:_MOST].tolist())
