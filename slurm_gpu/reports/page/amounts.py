"""Format numbers for display."""

from __future__ import annotations

import math

GAP = "–"
# Times shorter than this are shown in seconds.
_HOURS_FROM = 0.01
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
    """Return a number and its unit, separated by a non-breaking space; short times are in seconds."""
    if unit == "h" and value is not None and 0 < value < _HOURS_FROM:
        return f"{max(1, round(value * 3600))}\u00a0s"
    shown = amount(value)
    return shown if not unit or shown == GAP else f"{shown}\u00a0{unit}"


def compact(value: float) -> str:
    """Return a number in a short form for axis ticks, such as 1,500, 20k or 1.5M."""
    for size, letter in _SIZES:
        if abs(value) >= size:
            return f"{amount(value / _UNIT_OF[letter])}{letter}"
    return amount(value)
