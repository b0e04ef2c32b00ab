"""Encode the data of parallel coordinates for the page's script as compressed columns of codes in base64.

A quantity with few distinct values is stored as a list of exact values and one byte for each run. Other
quantities take two bytes for each run, which encode one of 65,535 steps in log(1 + value). The steps are
fine enough for both waits of seconds and waits of hours. The values in the table remain exact.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.reports.category import Category, Floats
from slurm_gpu.reports.figure import Axis, ParallelCoordinates
from slurm_gpu.reports.page.durations import ROUND_H
from slurm_gpu.reports.page.headings import bracketed, heading
from slurm_gpu.reports.page.node_classes import NODE_CLASSES
from slurm_gpu.reports.page.plain_text import visible
from slurm_gpu.reports.page.scales import scale_of
from slurm_gpu.reports.wording import NOT_RECOGNISED

# The number of codes in a two-byte column, excluding the last code, which represents a missing value.
_STEPS = 65_535
# The maximum number of distinct values in a one-byte column; the next code represents a missing value.
_LISTED = 255
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class PackedCoordinates:
    """The JSON metadata, and the bytes in base64."""

    facts: str
    data: str


def pack(chart: ParallelCoordinates, about: Mapping[str, str]) -> PackedCoordinates:
    """Encode all runs of the chart; `about` describes each axis."""
    columns = [np.asarray(chart.values[axis.name], np.float64) for axis in chart.axes]
    runs = len(columns[0]) if columns else 0
    packed = [_axis(axis, column, about) for axis, column in zip(chart.axes, columns, strict=True)]
    names, codes = _applications(chart.application)
    parts = [part for _, planes in packed for part in planes] + _planes(codes, wide=False)
    facts = {
        "runs": runs,
        "noun": "jobs" if runs == chart.of else f"jobs drawn of {chart.of:,}",
        "axes": [axis for axis, _ in packed],
        "colour_axis": [axis.name for axis in chart.axes].index(chart.colour),
        "classes": [{"from": each.least, "label": each.label} for each in NODE_CLASSES],
        "applications": names,
        "round_h": ROUND_H,
    }
    data = zlib.compress(b"".join(parts), 6)
    return PackedCoordinates(script_json(facts), base64.b64encode(data).decode())


def script_json(value: Any) -> str:
    """Return JSON that is safe inside a script element, whatever names it contains."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _axis(axis: Axis, values: Floats, about: Mapping[str, str]) -> tuple[dict[str, Any], list[bytes]]:
    known = values[np.isfinite(values)]
    scale = scale_of(values)
    whole = bool((known == np.floor(known)).all())
    facts: dict[str, Any] = {
        "key": axis.name,
        "title": heading(axis.name),
        "bracketed": bracketed(axis),
        "unit": axis.unit,
        "about": about.get(axis.name, axis.name),
        "least": _least(known),
        "most": float(known.max()) if len(known) else 1.0,
        "scale": "linear" if scale.stretch is None else "log",
        "stretch": 1.0 if scale.stretch is None else scale.stretch,
        "whole": whole,
    }
    listed = np.unique(known)
    if len(listed) <= _LISTED:
        codes = np.where(np.isfinite(values), np.searchsorted(listed, values), len(listed))
        return {**facts, "wide": False, "values": listed.tolist()}, _planes(codes, wide=False)
    # A negative value, which only a clock change can cause, becomes 0.
    top = np.log1p(facts["most"])
    steps = np.log1p(np.clip(np.nan_to_num(values, nan=0.0), 0.0, None)) / top * (_STEPS - 1)
    codes = np.where(np.isfinite(values), np.round(steps), _STEPS).astype(np.int64)
    return {**facts, "wide": True}, _planes(codes, wide=True)


def _least(known: Floats) -> float:
    """Return the start of an axis: 1 for counts that begin at 1, otherwise 0 or less."""
    if not len(known):
        return 0.0
    least = float(known.min())
    return 1.0 if least == 1.0 and bool((known == np.floor(known)).all()) else min(0.0, least)


def _planes(codes: NDArray[Any], *, wide: bool) -> list[bytes]:
    """Return all low bytes, then all high bytes; this order compresses better than alternating bytes."""
    low = (codes & 0xFF).astype(np.uint8).tobytes()
    return [low, (codes >> 8).astype(np.uint8).tobytes()] if wide else [low]


def _applications(column: Category) -> tuple[list[str], NDArray[Any]]:
    """Return the names of applications, sorted by number of runs, and the index of each run's name.

    All runs whose application was not recognised share a separate name.
    """
    counts = np.bincount(column.codes + 1, minlength=len(column.names) + 1)
    names = [NOT_RECOGNISED, *column.names]
    by_count = [int(place) for place in np.argsort(-counts, kind="stable") if counts[place]]
    place_of = np.zeros(len(names), np.int64)
    place_of[by_count] = np.minimum(np.arange(len(by_count)), _LISTED)
    shown = [visible(names[place]) for place in by_count]
    if len(shown) > _LISTED:
        shown = [*shown[:_LISTED], _OTHERS]
    return shown, place_of[column.codes + 1]
