"""All squares as one SVG, for browsers without scripts and for paper: a path for each colour.

A document of eight paths is a twentieth of one with an element for each square, and is drawn at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from xml.sax.saxutils import escape

from slurm_gpu.monitor.layout import Layout, NodeSquares
from slurm_gpu.monitor.metrics import GAP, STATE, Metric

_SIDE, _STEP = 7, 8
_NODES_OF_A_COLUMN = 16
_WIDTH = 1280
_MARGIN, _HEAD, _BETWEEN = 16, 18, 12
_LEGEND = 56
_BUCKETS = ("#440154", "#443983", "#31688e", "#21918c", "#35b779", "#6ece58", "#b5de2b", "#fde725")
"""Viridis (CC0): its lightness grows evenly, also for who sees few colours, and in grey."""
_GAP_COLOUR = "#d0d0d0"
_STATES = (
    ("free", "#e8e8e8"),
    ("held", "#31688e"),
    ("shared", "#35b779"),
    ("out of service", "#a33b3b"),
    ("no slurm-gpud", "#9a9a9a"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything stands; it changes only with the layout."""

    corners: Sequence[tuple[int, int]]
    """By square."""
    labels: Sequence[tuple[int, int, str]]
    width: int
    height: int


@lru_cache(maxsize=2)
def plan(layout: Layout) -> Plan:
    """Zone below zone; in each, racks as columns of nodes, from left to right and then on a new line."""
    corners: list[tuple[int, int]] = []
    labels: list[tuple[int, int, str]] = []
    y = _MARGIN + _LEGEND
    width = _WIDTH
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


def draw(layout: Layout, where: Plan, metric: Metric, octets: bytes, title: str) -> str:
    """The document; `octets` are one for each square, as GET /api/v1/frame has them."""
    parts: dict[str, list[str]] = {}
    for octet, (x, y) in zip(octets, where.corners, strict=True):
        parts.setdefault(_colour(metric, octet), []).append(f"M{x} {y}h{_SIDE}v{_SIDE}h-{_SIDE}z")
    paths = "".join(f'<path fill="{colour}" d="{"".join(some)}"/>' for colour, some in sorted(parts.items()))
    texts = "".join(f'<text x="{x}" y="{y}">{escape(label)}</text>' for x, y, label in where.labels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {where.width} {where.height}" '
        f'width="{where.width}" height="{where.height}" role="img" aria-label="{_quoted(title)}" '
        'font-family="sans-serif" font-size="11" fill="#202020">'
        f'<rect width="{where.width}" height="{where.height}" fill="#ffffff"/>'
        f'<text x="{_MARGIN}" y="{_MARGIN + 8}" font-size="14">{escape(title)}</text>'
        f"{_legend(metric)}{texts}{paths}</svg>"
    )


def _columns(nodes: list[NodeSquares]) -> list[list[NodeSquares]]:
    return [nodes[first : first + _NODES_OF_A_COLUMN] for first in range(0, len(nodes), _NODES_OF_A_COLUMN)]


def _colour(metric: Metric, octet: int) -> str:
    if octet == GAP:
        return _GAP_COLOUR
    if metric.name == STATE.name:
        return _STATES[min(octet, len(_STATES) - 1)][1]
    part = min(1.0, octet * metric.step / metric.top)
    return _BUCKETS[min(len(_BUCKETS) - 1, int(part * len(_BUCKETS)))]


def _legend(metric: Metric) -> str:
    if metric.name == STATE.name:
        entries = list(_STATES)
    else:
        width = metric.top / len(_BUCKETS)
        entries = [
            (f"{width * at:.0f}–{width * (at + 1):.0f} {metric.unit}", colour)
            for at, colour in enumerate(_BUCKETS)
        ]
        entries.append(("not measured, or not yours to see", _GAP_COLOUR))
    x, y = _MARGIN, _MARGIN + 20
    drawn = []
    for name, colour in entries:
        drawn.append(
            f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/>'
            f'<text x="{x + 16}" y="{y + 10}">{escape(name)}</text>'
        )
        x += 28 + 7 * len(name)
    return "".join(drawn)


def _quoted(text: str) -> str:
    return escape(text, {'"': "&quot;"})
