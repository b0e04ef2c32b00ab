"""Draw cumulative distributions, with a panel for each axis and a curve for each application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import Axis, Cdf, StepCurve
from slurm_gpu.reports.page.amounts import tick_text
from slurm_gpu.reports.page.drawing import LineMark, TextMark, VectorDrawing, legend, segment, text_width
from slurm_gpu.reports.page.headings import bracketed, heading
from slurm_gpu.reports.page.palette import series_tone
from slurm_gpu.reports.page.scales import AxisScale, scale_of

_PANEL_HEIGHT, _HEAD, _FOOT = 150.0, 26.0, 34.0
_LEFT, _BETWEEN = 34.0, 22.0
_PANEL_LEAST = 270.0


def draw_cdf(chart: Cdf, width: float) -> VectorDrawing:
    """Return the panels, arranged in rows that fit the width."""
    names = list(dict.fromkeys(name for curves in chart.curves.values() for name in curves))
    tones = {name: series_tone(i) for i, name in enumerate(names)}
    drawing = VectorDrawing(width, 0)
    top = legend(drawing, list(tones.items()), 2) + 4
    across = max(1, min(3, int((width + _BETWEEN) / (_PANEL_LEAST + _BETWEEN))))
    panel = (width - _BETWEEN * (across - 1)) / across
    for place, axis in enumerate(chart.axes):
        x = (place % across) * (panel + _BETWEEN)
        y = top + (place // across) * (_HEAD + _PANEL_HEIGHT + _FOOT)
        _panel(drawing, axis, chart.curves.get(axis.name, {}), tones, (x, y, panel))
    rows = -(-len(chart.axes) // across)
    drawing.height = top + rows * (_HEAD + _PANEL_HEIGHT + _FOOT)
    return drawing


def _panel(
    drawing: VectorDrawing,
    axis: Axis,
    curves: Mapping[str, StepCurve],
    tones: Mapping[str, str],
    place: tuple[float, float, float],
) -> None:
    x, y, width = place
    left, right = x + _LEFT, x + width - 8
    top, bottom = y + _HEAD, y + _HEAD + _PANEL_HEIGHT
    drawing.add(TextMark(left, y + 14, f"{heading(axis.name)} {bracketed(axis)}", "ink", bold=True))
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = bottom - share * _PANEL_HEIGHT
        drawing.add(segment(left, at, right, at))
        if share in (0.0, 0.5, 1.0):
            drawing.add(TextMark(left - 5, at + 4, f"{share:.0%}", anchor="end", size=11))
    known = [steps for steps in curves.values() if len(steps.x)]
    if not known:
        drawing.add(TextMark((left + right) / 2, (top + bottom) / 2, "nothing measured", anchor="middle"))
        return
    scale = scale_of(_weighted_values(known))
    for tick in scale.ticks(right - left, 44, axis.unit):
        at = left + scale.at(tick) * (right - left)
        text = tick_text(tick, axis.unit)
        drawing.add(
            segment(at, bottom, at, bottom + 4, "muted"),
            TextMark(
                min(at, x + width - text_width(text, 11) / 2), bottom + 17, text, anchor="middle", size=11
            ),
        )
    for name, steps in curves.items():
        if len(steps.x):
            points = _staircase(steps, scale, right - left)
            points = np.column_stack([left + points[:, 0], bottom - points[:, 1] * _PANEL_HEIGHT])
            jobs = "1 job" if steps.n == 1 else f"{steps.n:,} jobs"
            drawing.add(LineMark(points, tones[name], 2.0, about=f"{name} ({jobs})"))
    drawing.add(segment(left, bottom, right, bottom, "muted"))


def _weighted_values(known: Sequence[StepCurve]) -> Floats:
    """Return values, repeated in proportion to their numbers of runs, for a scale that suits most runs."""
    shares = np.linspace(0, 1, 201)
    return np.concatenate([steps.x[_place(steps, shares)] for steps in known])


def _place(steps: StepCurve, shares: Floats) -> NDArray[np.intp]:
    return np.minimum(np.searchsorted(steps.upto, shares), len(steps.x) - 1)


def _staircase(steps: StepCurve, scale: AxisScale, room: float) -> Floats:
    """Return the corners of the curve as pairs of x pixel and share, for each pixel at which it rises."""
    at = np.round(scale.fraction(np.asarray(steps.x, np.float64)) * room, 1)
    upto = np.asarray(steps.upto, np.float64)
    last = np.append(np.diff(np.floor(at * 2)) > 0, True)  # the last of all steps within half a pixel
    at, upto = at[last], upto[last]
    before = np.concatenate([[0.0], upto[:-1]])
    xs = np.concatenate([[0.0], np.repeat(at, 2), [room]])
    ys = np.concatenate([[0.0], np.column_stack([before, upto]).ravel(), [upto[-1]]])
    return np.column_stack([xs, ys])
