"""Draw time series as steps: each value is the mean of its hour, day or week."""

from __future__ import annotations

import math

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import TimeSeries
from slurm_gpu.reports.page.amounts import compact
from slurm_gpu.reports.page.drawing import LineMark, TextMark, VectorDrawing, legend, segment, text_width
from slurm_gpu.reports.page.palette import tones_of
from slurm_gpu.reports.page.scales import nice_ticks, time_ticks

_HEIGHT = 230.0


def draw_time_series(chart: TimeSeries, width: float) -> VectorDrawing:
    """Return stacked areas, or lines, over a time axis."""
    drawing = VectorDrawing(width, 0)
    tones = tones_of(chart.series, chart.unused)
    entries = [(name, tones[name]) for name in chart.series]
    if chart.limit is not None:
        entries.append(("capacity", "limit"))
    top = legend(drawing, entries, 2) + 8
    bottom = top + _HEIGHT
    ticks = nice_ticks(0.0, _most(chart), 5)
    left = max(text_width(compact(tick)) for tick in ticks) + 12
    right = width - 6
    begin_s, end_s = float(chart.edges_s[0]), float(chart.edges_s[-1])

    def x_of(moments: Floats) -> Floats:
        return left + (right - left) * (moments - begin_s) / (end_s - begin_s)

    def y_of(values: Floats) -> Floats:
        return bottom - _HEIGHT * values / ticks[-1]

    for tick in ticks:
        y = float(y_of(np.array([tick]))[0])
        drawing.add(segment(left, y, right, y), TextMark(left - 6, y + 4, compact(tick), anchor="end"))
    drawing.add(TextMark(0, top - 10, chart.unit) if not entries else TextMark(left, top - 4, chart.unit))
    moments = time_ticks(begin_s, end_s, chart.timezone, max(2, int((right - left) / 78)))
    for moment, name in moments:
        x = float(x_of(np.array([moment]))[0])
        half = text_width(name) / 2
        drawing.add(
            segment(x, bottom, x, bottom + 4, "muted"),
            TextMark(min(max(x, left + half - 8), right - half), bottom + 18, name, anchor="middle"),
        )
    xs = np.repeat(x_of(np.asarray(chart.edges_s, np.float64)), 2)[1:-1]
    below = np.zeros(len(chart.edges_s) - 1)
    for name, values in chart.series.items():
        known = np.asarray(values, np.float64)
        if chart.stacked:
            above = below + np.nan_to_num(known, nan=0.0)
            upper, lower = np.repeat(y_of(above), 2), np.repeat(y_of(below), 2)
            outline = np.concatenate([np.column_stack([xs, upper]), np.column_stack([xs, lower])[::-1]])
            drawing.add(LineMark(outline, tones[name], filled=True, opacity=0.85, about=name))
            below = above
        else:
            points = np.column_stack([xs, np.repeat(y_of(known), 2)])
            drawing.add(LineMark(points, tones[name], 2.0, about=name))
    if chart.limit is not None:
        limit = np.repeat(y_of(np.asarray(chart.limit, np.float64)), 2)
        drawing.add(LineMark(np.column_stack([xs, limit]), "limit", 1.5, dashed=True, about="capacity"))
    drawing.add(segment(left, bottom, right, bottom, "muted"))
    drawing.height = bottom + 28
    return drawing


def _most(chart: TimeSeries) -> float:
    columns = [np.asarray(values, np.float64) for values in chart.series.values()]
    if chart.stacked and columns:
        columns = [np.nansum(np.array(columns), axis=0)]
    if chart.limit is not None:
        columns.append(np.asarray(chart.limit, np.float64))
    most = max((float(np.nanmax(c)) for c in columns if np.isfinite(c).any()), default=0.0)
    return most if most > 0 and math.isfinite(most) else 1.0
