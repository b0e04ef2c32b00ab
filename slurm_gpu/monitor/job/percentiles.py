"""p25 and p95 of a run: exact where its records have a histogram, else of the bins of its timeline."""

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
_OF_TIMELINE = ("sm_active", "tensor", "pcie", "nvlink", "power", "sm_clock")
"""Those of which records have means alone; in % of the whole, as the timeline's bins are."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one metric, in %; None where it was never measured."""

    p25: float | None
    p95: float | None
    how: str
    """EXACT, to the whole percent that is measured; FROM_BINS: of means over the width of a bin."""
    unit: str = "%"


def of_records(records: Sequence[Record], timelines: Iterable[DeviceTimeline] = ()) -> dict[str, Percentiles]:
    """Of all devices of these records together, by metric; time that two watches saw counts once."""
    kept, _ = resolve_double_watches(records)
    courses = [item.timeline for item in timelines if item.timeline is not None]
    return {
        "util": _exact(record.util_hist_ms for record in kept),
        "mem": _exact(record.mem_hist_ms for record in kept),
        **{name: _from_bins(name, courses) for name in _OF_TIMELINE},
    }


def by_device(
    records: Sequence[Record], timelines: Sequence[DeviceTimeline]
) -> dict[tuple[str, str], dict[str, Percentiles]]:
    """The same of each (node, device) alone."""
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
    """Each bin counts for its width."""
    seconds: Counter[int] = Counter()
    for timeline in timelines:
        for level in timeline.series.get(name, b""):
            if level != GAP:
                seconds[level] += timeline.width_s
    return Percentiles(_quantile(seconds, _LOW), _quantile(seconds, _HIGH), FROM_BINS)


def _quantile(seconds: Mapping[int, int], q: float) -> float | None:
    """The least level at or below which a part `q` of the time was spent, in %."""
    total = sum(seconds.values())
    reached = 0
    for level in sorted(seconds):
        reached += seconds[level]
        if reached >= q * total:
            return round(100 * level / FULL, 1)
    return None
