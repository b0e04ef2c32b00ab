"""Draw horizontal bars with labels and totals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import Bars
from slurm_gpu.reports.page.amounts import tick_text, value_text, with_unit
from slurm_gpu.reports.page.drawing import (
    SMALL_SIZE,
    Box,
    TextMark,
    VectorDrawing,
    fitted,
    legend,
    segment,
    text_width,
)
from slurm_gpu.reports.page.palette import series_tone
from slurm_gpu.reports.page.scales import linear_ticks

# The maximum number of labels. More labels would be unreadable, and the table contains all of them.
MOST_BARS = 25
_THICK, _SPACE, _SIDE_BY_SIDE = 18.0, 7.0, 13.0
_VALUE_ROOM = 72.0
_LABEL_SHARE = 0.34


def draw_bars(chart: Bars, width: float) -> VectorDrawing:
    """Return horizontal bars with the first label at the top."""
    shown = min(len(chart.labels), MOST_BARS)
    names = list(chart.series)
    several = len(names) > 1
    drawing = VectorDrawing(width, 0)
    entries = (
        [(name, series_tone(i)) for i, name in enumerate(names)] if several or chart.total is not None else []
    )
    if chart.total is not None:
        entries.append(("capacity", "limit"))
    top = legend(drawing, entries, 2) if entries else 6.0
    longest = max((text_width(label) for label in chart.labels[:shown]), default=0.0)
    left = min(longest, width * _LABEL_SHARE) + 10
    right = width - _VALUE_ROOM
    sums = _sums(chart)
    most = _most(chart, sums[:shown])
    ticks = [
        tick for tick in linear_ticks(0.0, most, max(2, int((right - left) / 90)), chart.unit) if tick <= most
    ]

    def across(value: float) -> float:
        return (right - left) * value / most

    pitch = _THICK if chart.stacked or not several else _SIDE_BY_SIDE * len(names)
    bottom = top + shown * (pitch + _SPACE)
    for tick in ticks:
        x = left + across(tick)
        drawing.add(
            segment(x, top - 2, x, bottom),
            TextMark(x, bottom + 16, tick_text(tick, chart.unit), anchor="middle"),
        )
    for row, label in enumerate(chart.labels[:shown]):
        y = top + row * (pitch + _SPACE)
        text = fitted(label, left - 10)
        drawing.add(
            TextMark(left - 8, y + pitch / 2 + 4.5, text, "ink", "end", whole=label if text != label else "")
        )
        values = [float(chart.series[name][row]) for name in names]
        if chart.stacked:
            reach = _stack(drawing, names, values, label, chart.unit, (left, y), across)
            total_text = value_text(float(sums[row]), chart.unit)
            if chart.total is not None and not math.isnan(float(chart.total[row])):
                whole = float(chart.total[row])
                about = f"{label}: {with_unit(whole, chart.unit)} in all"
                drawing.add(Box(left, y, across(whole), pitch, "limit", about, outline=True))
                reach = max(reach, left + across(whole))
            drawing.add(TextMark(reach + 6, y + pitch / 2 + 4.5, total_text, "ink"))
        else:
            for i, (name, value) in enumerate(zip(names, values, strict=True)):
                at = y + i * _SIDE_BY_SIDE
                length = 0.0 if math.isnan(value) else across(value)
                about = f"{label}, {name}: {with_unit(value, chart.unit)}"
                drawing.add(Box(left, at, length, _SIDE_BY_SIDE - 2, series_tone(i), about))
                drawing.add(
                    TextMark(
                        left + length + 5,
                        at + 10,
                        value_text(value, chart.unit),
                        "muted",
                        size=SMALL_SIZE - 1,
                    )
                )
    note = f"first {shown} of {len(chart.labels)}" if shown < len(chart.labels) else ""
    if chart.n_others:
        note = f"{chart.n_others:,} others: {with_unit(chart.others, chart.unit)} in total"
    drawing.add(
        segment(left, top - 2, left, bottom, "muted"),
        TextMark(left, bottom + 34, "" if chart.unit == "h" else chart.unit),
        TextMark(width, bottom + 34, note, anchor="end"),
    )
    drawing.height = bottom + 42
    return drawing


def _stack(
    drawing: VectorDrawing,
    names: list[str],
    values: list[float],
    label: str,
    unit: str,
    corner: tuple[float, float],
    across: Callable[[float], float],
) -> float:
    """Draw the bar of one label; return the x coordinate of its end."""
    x, y = corner
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        if math.isnan(value) or value <= 0:
            continue
        about = (
            f"{label}, {name}: {with_unit(value, unit)}"
            if len(names) > 1
            else f"{label}: {with_unit(value, unit)}"
        )
        length = across(value)
        drawing.add(Box(x, y, length, _THICK, series_tone(i), about))
        x += length
    return x


def _sums(chart: Bars) -> Floats:
    """Return the total of each stack; NaN if unknown."""
    if not chart.series:
        return np.full(len(chart.labels), math.nan)
    parts = np.array([np.asarray(values, np.float64) for values in chart.series.values()])
    return np.where(np.isnan(parts).all(axis=0), math.nan, np.nansum(parts, axis=0))


def _most(chart: Bars, sums: Floats) -> float:
    shown = len(sums)
    columns = [sums] if chart.stacked else [np.asarray(v, np.float64)[:shown] for v in chart.series.values()]
    if chart.total is not None:
        columns.append(np.asarray(chart.total, np.float64)[:shown])
    known = [float(np.nanmax(column)) for column in columns if np.isfinite(column).any()]
    return max(known, default=0.0) or 1.0
