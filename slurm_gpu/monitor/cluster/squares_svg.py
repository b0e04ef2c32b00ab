"""Draw all squares as one SVG with one path per colour, for browsers without scripts and for printing.

The document is a twentieth of the size of one with one element per square. Its colours are those that
the canvas has on a light background, because paper is light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from xml.sax.saxutils import escape

from slurm_gpu.monitor.cluster.layout import NodeSquares, SquareLayout
from slurm_gpu.monitor.cluster.metrics import FREE, GAP, OUT_OF_SERVICE, STATE, SquareMetric
from slurm_gpu.monitor.palette import INKS, STATES, sequential

_SIDE, _STEP = 7, 8
_NODES_OF_A_COLUMN = 16
# The maximum width, and the minimum width, which the legend requires.
_WIDTH, _LEAST_WIDTH = 1280, 660
_MARGIN, _HEAD, _BETWEEN = 16, 18, 12
_LEGEND = 56
_SHADES = 16
_SCALE = tuple(sequential(shade / (_SHADES - 1)) for shade in range(_SHADES))
_INKS = INKS["light"]
_STATES = dict(zip(("allocated", "allocated in shards"), STATES["light"], strict=True))
# Keys of styles that are not colours.
_OUT, _FREE, _GAP = "out", "free", "gap"
_PATTERN = (
    '<defs><pattern id="out" width="4" height="4" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><rect width="1.4" height="4" fill="{_INKS["hatch"]}"/></pattern></defs>'
)
_PAINT = {
    _OUT: 'fill="url(#out)"',
    _FREE: f'fill="none" stroke="{_INKS["good"]}" stroke-width="1.5"',
    _GAP: f'fill="none" stroke="{_INKS["hollow"]}"',
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The positions of squares and labels, which change only with the layout."""

    corners: Sequence[tuple[int, int]]
    """The position of each square."""
    labels: Sequence[tuple[int, int, str]]
    width: int
    height: int


@lru_cache(maxsize=2)
def plan(layout: SquareLayout) -> Plan:
    """Place zones below each other. Racks are placed from left to right as columns of nodes."""
    corners: list[tuple[int, int]] = []
    labels: list[tuple[int, int, str]] = []
    y = _MARGIN + _LEGEND
    width = _LEAST_WIDTH
    for zone, in_zone in groupby(layout.nodes, lambda node: node.zone):
        labels.append((_MARGIN, y + _HEAD - 6, zone or "no zone"))
        y += _HEAD
        x, deepest = _MARGIN, 0
        for rack, in_rack in groupby(in_zone, lambda node: node.rack):
            for number, column in enumerate(_columns(list(in_rack))):
                wide = _STEP * max(len(node.squares) for node in column)
                if x > _MARGIN and x + wide > _WIDTH - _MARGIN:
                    x, y, deepest = _MARGIN, y + deepest + _BETWEEN, 0
                if rack is not None and number == 0:
                    labels.append((x, y + _HEAD - 6, rack))
                top = y + (_HEAD if rack is not None else 0)
                for row, node in enumerate(column):
                    corners += [(x + _STEP * at, top + _STEP * row) for at in range(len(node.squares))]
                deepest = max(deepest, top - y + _STEP * len(column))
                x += wide + _BETWEEN
                width = max(width, x + _MARGIN)
        y += deepest + _BETWEEN
    return Plan(corners, labels, width, y + _MARGIN)


def draw(
    layout: SquareLayout, where: Plan, metric: SquareMetric, octets: bytes, states: bytes, title: str
) -> str:
    """Return the document; `octets` and `states` have one value per square, as in GET /api/v1/frame."""
    parts: dict[str, list[str]] = {}
    for octet, state, (x, y) in zip(octets, states, where.corners, strict=True):
        parts.setdefault(_style(metric, octet, state), []).append(f"M{x} {y}h{_SIDE}v{_SIDE}h-{_SIDE}z")
    paths = "".join(f'<path {_paint(style)} d="{"".join(some)}"/>' for style, some in sorted(parts.items()))
    texts = "".join(f'<text x="{x}" y="{y}">{escape(label)}</text>' for x, y, label in where.labels)
    size = f'width="{where.width}" height="{where.height}"'
    font = f'font-family="sans-serif" font-size="11" fill="{_INKS["ink"]}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {where.width} {where.height}" '
        f'{size} role="img" aria-label="{_quoted(title)}" {font}>{_PATTERN}'
        f'<rect {size} fill="{_INKS["surface"]}"/>'
        f'<text x="{_MARGIN}" y="{_MARGIN + 8}" font-size="14">{escape(title)}</text>'
        f"{_legend(metric)}{texts}{paths}</svg>"
    )


def _columns(nodes: list[NodeSquares]) -> list[list[NodeSquares]]:
    return [nodes[first : first + _NODES_OF_A_COLUMN] for first in range(0, len(nodes), _NODES_OF_A_COLUMN)]


def _style(metric: SquareMetric, octet: int, state: int) -> str:
    """Return the colour or other style in which paint.js draws the square."""
    if state == OUT_OF_SERVICE:
        return _OUT
    if state == FREE and octet in (0, GAP):
        return _FREE
    if octet == GAP or (metric.name == STATE.name and octet > len(_STATES)):
        return _GAP
    if metric.name == STATE.name:
        return STATES["light"][octet - 1]
    return _SCALE[round(min(1.0, octet * metric.step / metric.top) * (_SHADES - 1))]


def _paint(style: str) -> str:
    return _PAINT.get(style, f'fill="{style}"')


def _legend(metric: SquareMetric) -> str:
    x, y = _MARGIN, _MARGIN + 20
    drawn = []
    entries: list[tuple[str, str]] = []
    if metric.name == STATE.name:
        entries += _STATES.items()
        entries.append(("no slurm-gpud", _GAP))
    else:
        drawn.append(f'<text x="{x}" y="{y + 10}">0 {escape(metric.unit)}</text>')
        x += 18 + 7 * len(metric.unit)
        for colour in _SCALE:
            drawn.append(f'<rect x="{x}" y="{y}" width="9" height="11" fill="{colour}"/>')
            x += 9
        top = f"{metric.top:g} {metric.unit}"
        drawn.append(f'<text x="{x + 6}" y="{y + 10}">{escape(top)}</text>')
        x += 24 + 7 * len(top)
        entries.append(("not measured, or not visible to you", _GAP))
    entries += [("free", _FREE), ("out of service", _OUT)]
    for name, style in entries:
        drawn.append(
            f'<rect x="{x + 0.5}" y="{y + 0.5}" width="10" height="10" {_paint(style)}/>'
            f'<text x="{x + 16}" y="{y + 10}">{escape(name)}</text>'
        )
        x += 28 + 7 * len(name)
    return "".join(drawn)


def _quoted(text: str) -> str:
    return escape(text, {'"': "&quot;"})
