"""Write drawings as PNG files. Text is set in DejaVu Sans, which is part of matplotlib."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import get_font_names
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon, Rectangle
from matplotlib.text import Text

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.page.drawing import Anchor, Box, LineMark, TextMark, VectorDrawing
from slurm_gpu.reports.page.palette import LIGHT
from slurm_gpu.reports.page.plain_text import visible

# The number of picture pixels per pixel of the drawing.
_DOTS_PER_INCH = 144
_PIXELS_PER_INCH = 72.0
_MARGIN = 16.0
_ALIGNMENT: Mapping[Anchor, Literal["left", "center", "right"]] = {
    "start": "left",
    "middle": "center",
    "end": "right",
}
_FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK KR",
    "Noto Sans CJK JP",
    "NanumGothic",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
)
# DejaVu Sans is wider than the fonts of browsers.
_SMALLER = 0.92


def write_png(drawing: VectorDrawing, path: Path) -> None:
    """Write the drawing on a light background, at twice its size in pixels."""
    width, height = drawing.width + 2 * _MARGIN, drawing.height + 2 * _MARGIN
    figure = Canvas(
        figsize=(width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH),
        dpi=_DOTS_PER_INCH,
        facecolor=LIGHT["surface"],
    )
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(-_MARGIN, width - _MARGIN)
    axes.set_ylim(height - _MARGIN, -_MARGIN)
    for order, mark in enumerate(drawing.marks):
        for artist in _artists(mark):
            artist.set_zorder(order)
            axes.add_artist(artist)
    with warnings.catch_warnings():
        # Characters for which this host has no font appear as boxes in PNG files, but not in pages and SVG.
        warnings.filterwarnings("ignore", r"Glyph \d+")
        figure.savefig(path, format="png", dpi=_DOTS_PER_INCH)


@functools.cache
def _families() -> list[str]:
    """Return the installed fonts in order of preference."""
    there = set(get_font_names())
    return [name for name in _FONTS if name in there]


def _artists(mark: Box | LineMark | TextMark) -> list[Patch | Line2D | LineCollection | Text]:
    colour = LIGHT[mark.tone]
    match mark:
        case Box():
            face, edge = ("none", colour) if mark.outline else (colour, "none")
            corner = (mark.x, mark.y)
            return [
                Rectangle(corner, mark.width, mark.height, facecolor=face, edgecolor=edge, alpha=mark.opacity)
            ]
        case LineMark(filled=True):
            return [Polygon(mark.points, closed=True, facecolor=colour, edgecolor="none", alpha=mark.opacity)]
        case LineMark():
            return _strokes(mark, colour)
        case TextMark():
            return [
                Text(
                    mark.x,
                    mark.y,
                    visible(mark.text),
                    color=colour,
                    family=_families(),
                    fontsize=mark.size * _SMALLER,
                    fontweight="bold" if mark.bold else "normal",
                    horizontalalignment=_ALIGNMENT[mark.anchor],
                    verticalalignment="baseline",
                    parse_math=False,  # a name may contain $
                )
            ]


def _strokes(line: LineMark, colour: str) -> list[Patch | Line2D | LineCollection | Text]:
    if line.opacity == 1:
        stroke = Line2D(line.points[:, 0], line.points[:, 1], color=colour, linewidth=line.thickness)
        if line.dashed:
            stroke.set_linestyle((0, (5, 4)))
        return [stroke]
    # A single path does not become darker where it crosses itself.
    return [
        LineCollection(_pieces(line.points), colors=colour, linewidths=line.thickness, alpha=line.opacity)
    ]


def _pieces(points: Floats) -> list[Floats]:
    broken = np.isnan(points).any(axis=1)
    return [piece[~np.isnan(piece).any(axis=1)] for piece in np.split(points, np.flatnonzero(broken))]
