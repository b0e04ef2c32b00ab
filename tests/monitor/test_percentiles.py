"""p25 and p95 of histograms are exact; for timelines they are the percentiles of the bins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.monitor.job.percentiles import EXACT, FROM_BINS, by_device, of_records
from slurm_gpu.wire import Timeline
from slurm_gpu.wire.answers.runs import DeviceTimeline
from tests.database.samples import T0, idle, record, segment


def quantile(values: list[int], q: float) -> int:
    """Return the smallest value with at least a fraction q of the values at or below it."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=10), min_size=1, max_size=5))
def test_percentiles_of_histograms_are_exact_over_all_devices(seen: list[list[int]]):
    records = [
        record(
            device=f"GPU-{number}",
            last_s=T0 + 10,
            util_hist_ms={percent: percents.count(percent) for percent in percents},
        )
        for number, percents in enumerate(seen)
    ]
    every = [percent for percents in seen for percent in percents]
    util = of_records(records)["util"]
    assert (util.p25, util.p95, util.how) == (quantile(every, 0.25), quantile(every, 0.95), EXACT)


def test_unmeasured_values_are_gaps_and_zero_is_zero():
    found = of_records([idle()])
    assert (found["util"].p25, found["mem"].p95, found["power"].p95) == (None, None, None)
    assert of_records([record(util_hist_ms={0: 10_000})])["util"].p95 == 0


def test_time_that_two_watches_saw_counts_once():
    longer = record(util_hist_ms={90: 10_000})
    doubled = record(segment=segment(2), sampled_s=9.0, util_hist_ms={0: 9_000})
    assert of_records([longer, doubled])["util"].p25 == 90


@pytest.mark.parametrize(("width_s", "p95"), [(1, 100.0), (64, 20.0)])
def test_bins_count_for_their_width_and_are_labelled(width_s: int, p95: float):
    def course(device: str, width_s: int, *levels: int) -> DeviceTimeline:
        timeline = Timeline(width_s=width_s, start_s=0, series={"power": bytes(levels)})
        return DeviceTimeline(node="n1", device=device, timeline=timeline)

    found = of_records([record()], [course("GPU-1", width_s, 50, 255, 50), course("GPU-2", 1, 250)])
    assert (found["power"].p25, found["power"].p95, found["power"].how) == (20.0, p95, FROM_BINS)


def test_each_device_is_reported_alone():
    records = [record(util_hist_ms={10: 10_000}), record(device="GPU-2", util_hist_ms={80: 10_000})]
    found = by_device(records, ())
    assert {place[1]: item["util"].p95 for place, item in found.items()} == {"GPU-1": 10, "GPU-2": 80}
