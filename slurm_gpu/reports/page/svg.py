"""Write drawings as SVG: elements that use the style sheet of the page, or files with their own."""

from __future__ import annotations

from xml.etree.ElementTree import Element

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.page.drawing import Box, LineMark, TextMark, VectorDrawing
from slurm_gpu.reports.page.markup import append, element, raw, svg_text
from slurm_gpu.reports.page.palette import LIGHT, tone_rules

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"


def svg_element(drawing: VectorDrawing, title: str, classes: str = "") -> Element:
    """Return an `svg` element with an accessible title; marks have the classes of palette.tone_rules."""
    root = element(
        "svg",
        {
            "viewBox": f"0 0 {_number(drawing.width)} {_number(drawing.height)}",
            "role": "img",
            "aria-label": title,
            **({"class": classes} if classes else {}),
        },
    )
    for mark in drawing.marks:
        append(root, _mark(mark))
    return root


def svg_file(drawing: VectorDrawing, title: str) -> str:
    """Return a complete SVG file on a light background."""
    picture = svg_element(drawing, title)
    width, height = drawing.width + 2 * _MARGIN, drawing.height + 2 * _MARGIN
    view = f"{_number(-_MARGIN)} {_number(-_MARGIN)} {_number(width)} {_number(height)}"
    picture.set("viewBox", view)
    picture.set("width", _number(width))
    picture.set("height", _number(height))
    ground = {"x": _number(-_MARGIN), "y": _number(-_MARGIN), "width": "100%", "height": "100%"}
    picture.insert(0, element("rect", {**ground, "class": "f-surface"}))
    picture.insert(0, raw("style", {}, f"text{{font-family:{FONT}}}{tone_rules(LIGHT)}"))
    return svg_text(picture)


_MARGIN = 16.0


def _mark(mark: Box | LineMark | TextMark) -> Element:
    match mark:
        case Box():
            return _box(mark)
        case LineMark():
            return _line(mark)
        case TextMark():
            return _label(mark)


def _about(text: str) -> Element | None:
    return element("title", None, text) if text else None


def _box(box: Box) -> Element:
    attributes = {
        "x": _number(box.x),
        "y": _number(box.y),
        "width": _number(max(0.0, box.width)),
        "height": _number(box.height),
        "class": f"l-{box.tone}" if box.outline else f"f-{box.tone}",
    }
    if box.opacity < 1:
        attributes["opacity"] = f"{box.opacity:.2f}"
    return element("rect", attributes, _about(box.about))


def _line(line: LineMark) -> Element:
    attributes = {
        "d": _path(line.points, closed=line.filled),
        "class": f"{'f' if line.filled else 'l'}-{line.tone}",
    }
    if not line.filled and line.thickness != 1:
        attributes["stroke-width"] = _number(line.thickness)
    if line.dashed:
        attributes["stroke-dasharray"] = "5 4"
    if line.opacity < 1:
        attributes["opacity" if line.filled else "stroke-opacity"] = f"{line.opacity:.2f}"
    return element("path", attributes, _about(line.about))


def _label(label: TextMark) -> Element:
    attributes = {"x": _number(label.x), "y": _number(label.y), "class": f"f-{label.tone}"}
    attributes["font-size"] = _number(label.size)
    if label.anchor != "start":
        attributes["text-anchor"] = label.anchor
    if label.bold:
        attributes["font-weight"] = "600"
    return element("text", attributes, _about(label.whole), label.text)


def _path(points: Floats, *, closed: bool) -> str:
    rounded = np.round(points, 1)
    parts: list[str] = []
    pen_up, last_x, last_y = True, None, None
    for x, y in rounded.tolist():
        if x != x or y != y:
            pen_up = True
        elif pen_up:
            parts.append(f"M{_number(x)} {_number(y)}")
            pen_up = False
        elif x == last_x:
            if y != last_y:
                parts.append(f"V{_number(y)}")
        elif y == last_y:
            parts.append(f"H{_number(x)}")
        else:
            parts.append(f"L{_number(x)} {_number(y)}")
        last_x, last_y = x, y
    return "".join(parts) + ("Z" if closed and parts else "")


def _number(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
