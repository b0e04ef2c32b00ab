"""The timeline of a run on a device: at most 256 bins, with one byte per series and bin."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from slurm_gpu.errors import RecordError
from slurm_gpu.wire import fields

MAX_BINS = 256
# The byte for 100 % of the memory, the link bandwidth, the power limit or the maximum clock.
FULL = 250
GAP = 255
SERIES = ("util", "mem_used", "sm_active", "tensor", "pcie", "nvlink", "power", "sm_clock")
# A bin of 2**31 s covers any run.
MAX_WIDTH_S = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Bins of `width_s` (a power of two) from `start_s` (a multiple of `width_s`), by the wall clock.

    Each of `series` has one byte per bin: a fraction (0–1) × FULL, or GAP for a bin without measurements. All
    series have the same length.
    """

    width_s: int
    start_s: int
    series: Mapping[str, bytes]

    @property
    def n_bins(self) -> int:
        """The number of bins."""
        return len(next(iter(self.series.values()), b""))

    @property
    def end_s(self) -> int:
        """The end of the last bin."""
        return self.start_s + self.n_bins * self.width_s

    def fractions(self, name: str) -> list[float | None]:
        """Return a series as fractions of 1, with None if not measured; a missing series consists of None."""
        levels = self.series.get(name, bytes([GAP]) * self.n_bins)
        return [None if level == GAP else level / FULL for level in levels]

    def to_wire(self) -> dict[str, Any]:
        """Return a dict for json.dumps, with the bytes in base64."""
        series = {name: base64.b64encode(levels).decode("ascii") for name, levels in self.series.items()}
        return {"width_s": self.width_s, "start_s": self.start_s, "series": series}


def level(fraction: float | None) -> int:
    """Return the byte for a fraction, clipped to 0–1; GAP for None."""
    return GAP if fraction is None else round(min(max(fraction, 0.0), 1.0) * FULL)


def read_timeline(name: str, value: Any) -> Timeline:
    """Return a validated timeline from decoded JSON, ignoring unknown series."""
    wire = fields.mapping(name, value, "width_s, start_s, series", 64)
    width_s = fields.whole(f"{name}.width_s", wire.get("width_s"), MAX_WIDTH_S)
    if width_s < 1 or width_s & (width_s - 1):
        raise RecordError(f"{name}.width_s: {width_s} must be a power of two")
    start_s = fields.moment(f"{name}.start_s", wire.get("start_s"))
    if start_s % width_s:
        raise RecordError(f"{name}.start_s: {start_s} must be a multiple of width_s {width_s}")
    given = fields.mapping(f"{name}.series", wire.get("series"), "name: base64", 64)
    series = {
        key: _levels(f"{name}.series.{key}", given[key]) for key in SERIES if given.get(key) is not None
    }
    lengths = {key: len(levels) for key, levels in series.items()}
    if len(set(lengths.values())) > 1:
        raise RecordError(f"{name}.series: must be equally long, not {lengths}")
    return Timeline(width_s=width_s, start_s=start_s, series=series)


def _levels(name: str, value: Any) -> bytes:
    if not isinstance(value, str) or len(value) > 2 * MAX_BINS:
        raise RecordError(f"{name}: must be base64 of at most {MAX_BINS} bytes")
    try:
        levels = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise RecordError(f"{name}: {fields.shown(value)} is not base64") from None
    if len(levels) > MAX_BINS:
        raise RecordError(f"{name}: {len(levels)} bins are more than {MAX_BINS}")
    odd = next((byte for byte in levels if FULL < byte < GAP), None)
    if odd is not None:
        raise RecordError(f"{name}: {odd} must be 0 to {FULL}, or {GAP} for a gap")
    return levels


def merge_timelines(
    timelines: Iterable[Timeline | None], spans: Iterable[tuple[int, int]] = ()
) -> Timeline | None:
    """Return one timeline for all parts, or None if there are no parts.

    Its bins are at least as wide as the widest bins of the parts. The value of a bin is the mean of the
    measured values in it, weighted by the widths of their bins. `spans` contains first_s and last_s of each
    segment, if known. Only the parts of bins within a known span count.
    """
    parts = [
        (timeline, span)
        for timeline, span in zip_longest(timelines, spans)
        if timeline is not None and timeline.n_bins
    ]
    if not parts:
        return None
    width_s, start_s, n_bins = common_bins([timeline for timeline, _ in parts])
    weighed = [(timeline, _weights(timeline, span)) for timeline, span in parts]
    series: dict[str, bytes] = {}
    for name in SERIES:
        if any(name in timeline.series for timeline, _ in parts):
            series[name] = _merged(name, weighed, width_s, start_s, n_bins)
    return Timeline(width_s=width_s, start_s=start_s, series=series)


def _weights(timeline: Timeline, span: tuple[int, int] | None) -> list[int]:
    """Return the seconds that each bin represents.

    If a clock step makes `span` contradict the bins, the first and the last bin count with their whole width.
    """
    weights = [timeline.width_s] * timeline.n_bins
    if span is not None:
        first_s, last_s = span
        late_s, early_s = first_s - timeline.start_s, timeline.end_s - last_s
        for index, unwatched_s in ((0, late_s), (-1, early_s)):
            if 0 < unwatched_s < timeline.width_s:
                # The times are rounded, so a measured bin counts as at least one second.
                weights[index] = max(1, weights[index] - unwatched_s)
    return weights


def common_bins(parts: Sequence[Timeline]) -> tuple[int, int, int]:
    """Return the width, the start and the number (1 to MAX_BINS) of bins that cover all parts."""
    width_s = max(part.width_s for part in parts)
    end_s = max(part.end_s for part in parts)
    while True:
        start_s = min(part.start_s for part in parts) // width_s * width_s
        n_bins = -(-(end_s - start_s) // width_s)
        if n_bins <= MAX_BINS:
            return width_s, start_s, n_bins
        width_s *= 2


def _merged(
    name: str, parts: Iterable[tuple[Timeline, Sequence[int]]], width_s: int, start_s: int, n_bins: int
) -> bytes:
    # Integer sums make the result independent of the order of the parts.
    sums, seconds = [0] * n_bins, [0] * n_bins
    for part, weights in parts:
        for index, (byte, weight) in enumerate(zip(part.series.get(name, b""), weights, strict=False)):
            if byte != GAP:
                into = (part.start_s + index * part.width_s - start_s) // width_s
                sums[into] += byte * weight
                seconds[into] += weight
    return bytes(
        GAP if weight == 0 else (2 * total + weight) // (2 * weight)
        for total, weight in zip(sums, seconds, strict=True)
    )
