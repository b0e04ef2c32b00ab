"""Define means, totals and histograms that contain the time they cover, for merging without bias."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from slurm_gpu.errors import RecordError
from slurm_gpu.plausible import greatest_total
from slurm_gpu.wire import fields

HISTOGRAM_BINS = 101
_PERCENT = re.compile("[0-9]{1,3}")
_PERCENTS = {str(percent): percent for percent in range(HISTOGRAM_BINS)}
_FEW_MS = 1 << 40


class Mean(NamedTuple):
    """The time-weighted mean, the minimum and the maximum over `seconds` of measurement; a list in JSON."""

    seconds: float
    mean: float
    min: float
    max: float


class Total(NamedTuple):
    """The growth of a counter over `seconds` of measurement; a list in JSON."""

    seconds: float
    total: float


Histogram = Mapping[int, int]
"""Maps whole percents 0–100 to milliseconds spent at them. A missing percent means 0 milliseconds."""


def read_mean(name: str, value: Any) -> Mean:
    """Return a Mean from [seconds, mean, min, max]; raise RecordError if mean is outside min and max."""
    seconds, *values = fields.numbers(name, value, 4)
    mean, low, high = (fields.quantity(name, item) for item in values)
    slack = 1e-6 * max(1.0, high)
    if not low - slack <= mean <= high + slack:
        raise RecordError(f"{name}: mean {mean:g} is outside min {low:g} … max {high:g}")
    return Mean(fields.seconds(name, seconds), mean, low, high)


def read_total(name: str, value: Any) -> Total:
    """Return a Total from [seconds, total]."""
    seconds, total = fields.numbers(name, value, 2)
    seconds = fields.seconds(name, seconds)
    return Total(seconds, fields.number(name, total, high=greatest_total(name, seconds)))


def read_histogram(name: str, value: Any) -> Histogram:
    """Return a Histogram from {"0"…"100": ms}."""
    histogram: dict[int, int] = {}
    for key, milliseconds in fields.mapping(name, value, "percent: milliseconds", HISTOGRAM_BINS).items():
        percent = _PERCENTS.get(key)
        if percent is None:
            if not (isinstance(key, str) and _PERCENT.fullmatch(key) and int(key) < HISTOGRAM_BINS):
                raise RecordError(f"{name}: {fields.shown(key)} must be a whole percent from 0 to 100")
            percent = int(key)
        # The valid case avoids function calls, since the matching of records reads millions of bins.
        is_whole = type(milliseconds) is int and 0 <= milliseconds < _FEW_MS
        histogram[percent] = milliseconds if is_whole else fields.whole(f"{name}[{key}]", milliseconds)
    return histogram


def histogram_mean(histogram: Histogram) -> float | None:
    """Return the time-weighted mean percent, Σ pct·ms / Σ ms; None if no time was measured."""
    total = sum(histogram.values())
    return sum(percent * ms for percent, ms in histogram.items()) / total if total else None


def histogram_quantile(histogram: Histogram, q: float) -> int | None:
    """Return the quantile `q` (0–1) of the percents, weighted by time; None if no time was measured."""
    total = sum(histogram.values())
    if not total:
        return None
    reached = 0
    for percent in sorted(histogram):
        reached += histogram[percent]
        if reached >= q * total and histogram[percent]:
            return percent
    raise AssertionError("unreachable: the whole histogram is at least q of itself")


def merge_histograms(histograms: Iterable[Histogram | None]) -> dict[int, int] | None:
    """Return the sum of the parts; None if all parts are None."""
    merged: dict[int, int] | None = None
    for histogram in histograms:
        if histogram is not None:
            merged = {} if merged is None else merged
            for percent, milliseconds in histogram.items():
                merged[percent] = merged.get(percent, 0) + milliseconds
    return merged


def merge_means(means: Iterable[Mean | None]) -> Mean | None:
    """Return the mean weighted by seconds; None if all parts are None."""
    parts = [mean for mean in means if mean is not None]
    if not parts:
        return None
    seconds = math.fsum(part.seconds for part in parts)
    weighed = [part for part in parts if part.seconds > 0]
    if not weighed:
        return parts[0]
    low, high = min(part.min for part in weighed), max(part.max for part in weighed)
    mean = math.fsum(part.mean * (part.seconds / seconds) for part in weighed)
    return Mean(seconds, min(max(mean, low), high), low, high)


def merge_totals(totals: Iterable[Total | None]) -> Total | None:
    """Return the sum of the parts; None if all parts are None."""
    parts = [total for total in totals if total is not None]
    if not parts:
        return None
    return Total(math.fsum(part.seconds for part in parts), math.fsum(part.total for part in parts))
