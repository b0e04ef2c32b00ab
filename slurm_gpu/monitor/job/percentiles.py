"""Compute p25 and p95 of a run: exactly from histograms in its records, or else from timeline bins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.database.accounting.derived_columns import resolve_double_watches
from slurm_gpu.wire import Histogram, Record, Timeline, histogram_quantile, merge_histograms
from slurm_gpu.wire.answers.runs import DeviceTimeline
from slurm_gpu.wire.timeline import FULL, GAP

EXACT, FROM_BINS = "exact", "from bins"
_LOW, _HIGH = 0.25, 0.95
# Metrics without histograms. Their values are percentages of a maximum, as in the bins of the timeline.
_OF_TIMELINE = ("sm_active", "tensor", "pcie", "nvlink", "power", "sm_clock")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The percentiles of one metric in %; None if it was never measured."""

    p25: float | None
    p95: float | None
    how: str
    """EXACT for percentiles of whole percentages, or FROM_BINS for percentiles of the means of bins."""
    unit: str = "%"


def of_records(records: Sequence[Record], timelines: Iterable[DeviceTimeline] = ()) -> dict[str, Percentiles]:
    """Return the percentiles of each metric over all devices. Time that was observed twice counts once."""
    kept, _ = resolve_double_watches(records)
    device_timelines = [item.timeline for item in timelines if item.timeline is not None]
    return {
        "util": _exact(record.util_hist_ms for record in kept),
        "mem": _exact(record.mem_hist_ms for record in kept),
        **{name: _from_bins(name, device_timelines) for name in _OF_TIMELINE},
    }


def by_device(
    records: Sequence[Record], timelines: Sequence[DeviceTimeline]
) -> dict[tuple[str, str], dict[str, Percentiles]]:
    """Return the percentiles of each (node, device)."""
    places: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        places.setdefault((record.node, record.device), []).append(record)
    return {
        place: of_records(some, [item for item in timelines if (item.node, item.device) == place])
        for place, some in places.items()
    }


def _exact(histograms: Iterable[Histogram | None]) -> Percentiles:
    merged = merge_histograms(histograms)
    if merged is None:
        return Percentiles(None, None, EXACT)
    return Percentiles(histogram_quantile(merged, _LOW), histogram_quantile(merged, _HIGH), EXACT)


def _from_bins(name: str, timelines: Iterable[Timeline]) -> Percentiles:
    """Return the percentiles of bins, each weighted by its width."""
    seconds: Counter[int] = Counter()
    for timeline in timelines:
        for level in timeline.series.get(name, b""):
            if level != GAP:
                seconds[level] += timeline.width_s
    return Percentiles(_quantile(seconds, _LOW), _quantile(seconds, _HIGH), FROM_BINS)


def _quantile(seconds: Mapping[int, int], q: float) -> float | None:
    """Return the lowest level in % that the value did not exceed for a share `q` of the time."""
    total = sum(seconds.values())
    reached = 0
    for level in sorted(seconds):
        reached += seconds[level]
        if reached >= q * total:
            return round(100 * level / FULL, 1)
    return None
