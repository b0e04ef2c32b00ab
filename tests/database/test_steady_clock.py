"""Segments of one boot are ordered by its monotonic clock, regardless of the wall clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.database.accounting.allocated_time import RunPart, device_time
from slurm_gpu.database.accounting.derived_columns import resolve_double_watches
from slurm_gpu.database.accounting.steady_clock import WatchSpan, allocated_s, spans
from slurm_gpu.wire import Record
from tests.database.samples import T0, record, segment


def _set_back_after(seconds: float, by_s: int) -> list[Record]:
    """Return two records of a job, with a clock step and a restart of slurm-gpud between them."""
    return [
        record(uptime_s=500.0, allocated_s=seconds, last_s=T0 + int(seconds), sampled_s=seconds),
        record(
            segment=segment(2),
            uptime_s=505.0 + seconds,
            prolog_s=T0,
            first_s=T0 + int(seconds) + 5 + by_s,
            last_s=T0 + int(seconds) + 100 + by_s,
            allocated_s=95.0,
            sampled_s=95.0,
        ),
    ]


@pytest.mark.parametrize("by_s", [-86400, -60, 0, 60, 86400])
def test_a_clock_that_is_set_makes_no_double_watch(by_s: int) -> None:
    before, after = _set_back_after(100.0, by_s)
    kept, doubled = resolve_double_watches([after, before])
    assert (len(kept), doubled) == (2, [])
    first, second = spans([before, after])
    assert (second.begin_s - first.begin_s, first.length_s, second.length_s) == (105, 100, 95)
    assert allocated_s([after, before]) == 200.0


@pytest.mark.parametrize("by_s", [-3600, 0, 3600])
def test_two_simultaneous_segments_count_once_despite_clock_steps(by_s: int) -> None:
    before, after = _set_back_after(100.0, by_s)
    overlapping = record(
        segment=segment(3),
        uptime_s=510.0,
        first_s=T0 + 10 + by_s,
        last_s=T0 + 90 + by_s,
        allocated_s=80.0,
        sampled_s=80.0,
    )
    kept, doubled = resolve_double_watches([before, overlapping, after])
    assert kept == [before, after]
    assert [(d.kept, d.dropped) for d in doubled] == [(before, overlapping)]


@pytest.mark.parametrize("after_s", [1, 100, 4000])
def test_a_watch_that_was_begun_after_the_end_adds_nothing(after_s: int) -> None:
    before, after = _set_back_after(100.0, 0)
    end_s = T0 + 200 + after_s
    empty = record(
        segment=segment(3),
        uptime_s=700.0 + after_s,
        first_s=end_s,
        last_s=end_s,
        allocated_s=0.0,
        sampled_s=0.0,
        util_hist_ms=None,
    )
    assert allocated_s([empty, after, before]) == allocated_s([after, before]) == 200.0
    assert allocated_s([empty]) == empty.first_s - empty.prolog_s
    part = RunPart(nodes=frozenset({"n1"}), allocated_mgpu=1000, start_s=T0, elapsed_s=200)
    time = device_time([empty, after, before], [part])
    assert (time.allocated_s, time.sampled_s) == (200.0, 195.0), "what was watched before the end counts"


def test_the_wall_clock_counts_for_records_without_uptime() -> None:
    old = record(first_s=T0 + 100, last_s=T0 + 200, segment=segment(7))
    before, after = _set_back_after(100.0, 0)
    kept, doubled = resolve_double_watches([before, old, after])
    assert kept == [before, old]
    assert [d.dropped for d in doubled] == [after]


def test_seconds_of_two_boots_do_not_compare() -> None:
    first = record(uptime_s=500.0)
    second = record(segment=segment(2), boot_id="next", uptime_s=20.0, first_s=T0 + 60, last_s=T0 + 70)
    assert spans([first, second]) == [WatchSpan(0, 10), WatchSpan(60, 70)]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(-10_000, 10_000)), max_size=8))
def test_consecutive_segments_count_completely_despite_clock_steps(
    watches: list[tuple[int, int, int]],
) -> None:
    records, uptime_s = [], 100
    for n, (length_s, pause_s, offset_s) in enumerate(watches):
        first_s = T0 + 20_000 + uptime_s + offset_s
        records.append(
            record(segment=segment(n), uptime_s=float(uptime_s), first_s=first_s, last_s=first_s + length_s)
        )
        uptime_s += length_s + pause_s
    kept, doubled = resolve_double_watches(records)
    assert (len(kept), doubled) == (len(records), [])
