"""Draw static parallel coordinates for print, pictures, and pages without JavaScript.

Only a sample is drawn: forty thousand lines would take many megabytes and show no more.
"""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import Axis, ParallelCoordinates
from slurm_gpu.reports.page.amounts import tick_text
from slurm_gpu.reports.page.drawing import LineMark, TextMark, VectorDrawing, legend, segment
from slurm_gpu.reports.page.headings import bracketed, heading
from slurm_gpu.reports.page.node_classes import NODE_CLASSES, node_class
from slurm_gpu.reports.page.scales import AxisScale, scale_of
from slurm_gpu.reports.sample import evenly

MOST_LINES = 2000
_HEIGHT, _HEAD, _FOOT = 300.0, 46.0, 30.0
_LEFT, _RIGHT = 52.0, 56.0


def draw_lines(chart: ParallelCoordinates, width: float, most: int = MOST_LINES) -> VectorDrawing:
    """Draw a sample of the lines, coloured by number of nodes, with the rarest class on top."""
    runs = len(next(iter(chart.values.values()))) if chart.values else 0
    kept = evenly(runs, most)
    classes = node_class(np.asarray(chart.values[chart.colour], np.float64)[kept])
    drawing = VectorDrawing(width, 0)
    seen = [c for c in range(len(NODE_CLASSES)) if (classes == c).any()]
    entries = [(NODE_CLASSES[c].label, f"node-{c}") for c in seen]
    top = legend(drawing, entries, 2) + _HEAD
    bottom = top + _HEIGHT
    xs = np.linspace(_LEFT, width - _RIGHT, len(chart.axes)) if len(chart.axes) > 1 else np.array([width / 2])
    columns = []
    for axis, x in zip(chart.axes, xs.tolist(), strict=True):
        values = np.asarray(chart.values[axis.name], np.float64)
        scale = scale_of(values)
        columns.append(bottom - scale.fraction(values[kept]) * _HEIGHT)
        _axis(drawing, axis, scale, x, (top, bottom))
    paths = _paths(np.array(columns), xs)
    opacity = 0.75 if len(kept) <= 150 else 0.35 if len(kept) <= 1000 else 0.18
    order = sorted(seen, key=lambda c: -int((classes == c).sum()))
    lines = [LineMark(paths[classes == c].reshape(-1, 2), f"node-{c}", 0.8, opacity) for c in order]
    drawing.marks[:0] = lines
    if len(kept) < chart.of:
        note = f"{len(kept):,} of {chart.of:,} jobs, an even sample"
        drawing.add(TextMark(width, bottom + _FOOT - 6, note, anchor="end"))
    drawing.height = bottom + _FOOT
    return drawing


def _axis(drawing: VectorDrawing, axis: Axis, scale: AxisScale, x: float, ends: tuple[float, float]) -> None:
    top, bottom = ends
    drawing.add(
        segment(x, top, x, bottom, "muted"),
        TextMark(x, top - 26, heading(axis.name), "ink", "middle", bold=True),
        TextMark(x, top - 12, bracketed(axis), "muted", "middle", size=11),
    )
    for tick in scale.ticks(_HEIGHT, 26, axis.unit):
        y = bottom - scale.at(tick) * _HEIGHT
        drawing.add(
            segment(x - 4, y, x, y, "muted"),
            TextMark(x - 6, y + 4, tick_text(tick, axis.unit), anchor="end", size=11),
        )


def _paths(columns: Floats, xs: Floats) -> Floats:
    """Return each line's points and a final NaN, with shape (runs, axes + 1, 2); lines break at NaN."""
    axes, runs = columns.shape
    paths = np.full((runs, axes + 1, 2), np.nan)
    paths[:, :axes, 0] = xs
    paths[:, :axes, 1] = columns.T
    return paths
