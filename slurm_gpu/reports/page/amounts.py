"""Format numbers for display."""

from __future__ import annotations

import math

from slurm_gpu.reports.page.durations import duration_tick
from slurm_gpu.reports.wording import duration

GAP = "–"
# From this number up, all digits of the integer part are shown: 1,234, not 1,230.
_FULL_FROM = 1000
_UNIT_OF = {"G": 1e9, "M": 1e6, "k": 1e3}
_SIZES = ((1e9, "G"), (1e6, "M"), (1e4, "k"))


def amount(value: float | None, digits: int = 3) -> str:
    """Return a number with three significant digits, such as 0.0123, or 12,345 if large; a dash for NaN."""
    if value is None or math.isnan(value):
        return GAP
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if abs(value) >= _FULL_FROM or value == int(value):
        return f"{round(value):,}".replace("-", "−")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(places, 12)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", "−")


def with_unit(value: float | None, unit: str) -> str:
    """Return a number and its unit, separated by a non-breaking space; hours become a text such as 2m30s."""
    if unit == "h":
        return GAP if value is None else duration(value)
    shown = amount(value)
    return shown if not unit or shown == GAP else f"{shown}\u00a0{unit}"


def value_text(value: float, unit: str) -> str:
    """Return a number without its unit, for charts that name it once; hours become a text such as 2m30s."""
    return with_unit(value, unit) if unit == "h" else amount(value)


def compact(value: float) -> str:
    """Return a number in a short form for axis ticks, such as 1,500, 20k or 1.5M."""
    for size, letter in _SIZES:
        if abs(value) >= size:
            return f"{amount(value / _UNIT_OF[letter])}{letter}"
    return amount(value)


def tick_text(value: float, unit: str) -> str:
    """Return the label of a tick on an axis with this unit."""
    return duration_tick(value) if unit == "h" else compact(value)
