"""Represent a drawing as marks in pixels from the upper left corner, with semantic colours.

A drawing is written into the page and to SVG and PNG files (svg.py, png.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from slurm_gpu.reports.category import Floats

SMALL_SIZE = 12.0
# Mean width of a letter relative to the font size.
_EM_SHARE = 0.6

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Box:
    """A filled or outlined rectangle. `about` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    about: str = ""
    opacity: float = 1.0
    outline: bool = False


@dataclass(frozen=True, slots=True)
class LineMark:
    """Connected points of shape (n, 2), interrupted at rows of NaN; filled if they are an area."""

    points: Floats
    tone: str
    thickness: float = 1.0
    opacity: float = 1.0
    dashed: bool = False
    filled: bool = False
    about: str = ""


@dataclass(frozen=True, slots=True)
class TextMark:
    """Text whose baseline begins, is centred or ends at (x, y). `whole` is the full text if it was cut."""

    x: float
    y: float
    text: str
    tone: str = "muted"
    anchor: Anchor = "start"
    size: float = SMALL_SIZE
    bold: bool = False
    whole: str = ""


@dataclass(slots=True)
class VectorDrawing:
    """A drawing: its size, and its marks from bottom to top."""

    width: float
    height: float
    marks: list[Box | LineMark | TextMark] = field(default_factory=list)

    def add(self, *marks: Box | LineMark | TextMark) -> None:
        """Add marks on top."""
        self.marks.extend(marks)


def segment(x0: float, y0: float, x1: float, y1: float, tone: str = "grid") -> LineMark:
    """Return a straight line."""
    return LineMark(np.array([[x0, y0], [x1, y1]], np.float64), tone)


def text_width(text: str, size: float = SMALL_SIZE) -> float:
    """Return the approximate width of a text; the fonts of browsers differ."""
    return sum(size if unicodedata.east_asian_width(sign) in "WF" else size * _EM_SHARE for sign in text)


def fitted(text: str, room: float, size: float = SMALL_SIZE) -> str:
    """Return the text, shortened with … if it is too long."""
    if text_width(text, size) <= room:
        return text
    kept = text
    while len(kept) > 1 and text_width(kept + "…", size) > room:
        kept = kept[:-1]
    return kept.rstrip() + "…"


def legend(drawing: VectorDrawing, entries: Sequence[tuple[str, str]], y: float) -> float:
    """Draw named swatches, with an empty swatch for a limit; return the y coordinate below them."""
    left, swatch, line = 0.0, 11.0, 20.0
    x = left
    for name, tone in entries:
        shown = fitted(name, drawing.width - left - swatch - 12)
        needed = swatch + 6 + text_width(shown) + 16
        if x > left and x + needed > drawing.width + 14:
            x, y = left, y + line
        drawing.add(
            Box(x + 0.5, y + 0.5, swatch - 1, swatch - 1, tone, outline=tone == "limit"),
            TextMark(x + swatch + 6, y + 10, shown, "ink", whole=name if shown != name else ""),
        )
        x += needed
    return y + line + 4 if entries else y
