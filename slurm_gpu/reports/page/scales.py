"""Calculate the scales of axes, and their ticks."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.page.durations import ROUND_H, duration_ticks

_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
# Differences smaller than this are ignored, because no quantity is measured more precisely.
_LEAST_REACH = 1e-9
# A scale is logarithmic if the largest value is at least this many times the median.
_SKEWED = 20.0


def nice_ticks(least: float, most: float, about: int = 5) -> list[float]:
    """Return round numbers at equal steps that cover the range from `least` to `most`."""
    if not most > least:
        return [least, least + 1]
    raw = (most - least) / max(1, about)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in _NICE if factor * size >= raw * (1 - 1e-9))
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def linear_ticks(least: float, most: float, about: int, unit: str) -> list[float]:
    """Return ticks for an axis with this unit; hours get round durations."""
    return duration_ticks(least, most, about) if unit == "h" else nice_ticks(least, most, about)


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps values to 0–1. With `stretch`, the scale is log(1 + stretch × value), which includes 0."""

    least: float
    most: float
    stretch: float | None = None

    def fraction(self, values: Floats) -> Floats:
        """Return the positions of values, from 0 for the smallest to 1 for the largest."""
        reach = self.most - self.least
        if reach <= 0:
            return np.full_like(values, 0.5)
        if self.stretch is None:
            return (values - self.least) / reach
        above = np.log1p((values - self.least) * self.stretch)
        return np.asarray(above / math.log1p(reach * self.stretch), np.float64)

    def at(self, value: float) -> float:
        """Return the position of one value."""
        return float(self.fraction(np.array([value], np.float64))[0])

    def ticks(self, room: float, each: float, unit: str = "") -> list[float]:
        """Return the values of ticks for an axis of `room` pixels if each label needs `each` pixels."""
        if self.most <= self.least:
            return [self.least]
        if self.stretch is None:
            inside = linear_ticks(self.least, self.most, max(2, int(room / each)), unit)
            return [tick for tick in inside if self.least <= tick <= self.most * (1 + 1e-9)]
        powers = range(math.ceil(math.log10(1 / self.stretch)), math.floor(math.log10(self.most)) + 1)
        found = [self.least]
        numbers = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        for tick in ROUND_H if unit == "h" else numbers:
            if self.least < tick <= self.most and (self.at(tick) - self.at(found[-1])) * room >= each:
                found.append(tick)
        return found


def scale_of(values: Floats) -> AxisScale:
    """Return a scale from 0 or less to the largest value, logarithmic if few values are much larger."""
    known = values[np.isfinite(values)]
    if not len(known):
        return AxisScale(0.0, 1.0)
    least, most = min(0.0, float(known.min())), float(known.max())
    if most - least < _LEAST_REACH:
        return AxisScale(least, least + 1.0)
    stretch = stretch_of(known)
    return AxisScale(least, most, stretch)


def stretch_of(known: Floats) -> float | None:
    """Return the inverse of the value below which a log scale is nearly linear; None for a linear scale."""
    above = known[known > 0]
    if not len(above) or known.min() < 0:
        return None
    most = float(above.max())
    if most < _SKEWED * max(float(np.median(known)), most / 1e6):
        return None
    low = float(np.percentile(above, 10))
    power = math.floor(math.log10(max(low, most / 1e5)))
    return 10.0**-power


def time_ticks(since_s: float, until_s: float, timezone: str, most: int) -> list[tuple[float, str]]:
    """Return about `most` times for ticks, at hours, days or months in the site's time zone."""
    zone = ZoneInfo(timezone)
    begin, end = (dt.datetime.fromtimestamp(moment, zone) for moment in (since_s, until_s))
    span_days = (until_s - since_s) / 86400
    if span_days <= 2:
        step_h = next((h for h in (1, 2, 3, 6, 12) if span_days * 24 / h <= most), 24)
        hours = [
            begin.replace(hour=0, minute=0, second=0) + dt.timedelta(hours=h) for h in range(0, 96, step_h)
        ]
        return _within(hours, since_s, until_s, "%H:%M")
    if span_days <= 100:
        step = next((d for d in (1, 2, 7, 14) if span_days / d <= most), 28)
        midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
        days = [midnight + dt.timedelta(days=d) for d in range(0, math.ceil(span_days) + 2, step)]
        return _within(days, since_s, until_s, "%-d %b")
    step = next((m for m in (1, 2, 3, 6) if span_days / 30.4 / m <= most), 12)
    months = _months(begin, end, step)
    return _within(months, since_s, until_s, "%b %Y" if span_days > 330 else "%b")


def _months(begin: dt.datetime, end: dt.datetime, step: int) -> list[dt.datetime]:
    first = begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    count = (end.year - begin.year) * 12 + end.month - begin.month + 1
    indices = (first.year * 12 + first.month - 1 + k for k in range(count + 1))
    return [first.replace(year=i // 12, month=i % 12 + 1) for i in indices if (i % 12) % step == 0]


def _within(
    moments: Sequence[dt.datetime], since_s: float, until_s: float, form: str
) -> list[tuple[float, str]]:
    return [
        (moment.timestamp(), moment.strftime(form))
        for moment in moments
        if since_s <= moment.timestamp() <= until_s
    ]
