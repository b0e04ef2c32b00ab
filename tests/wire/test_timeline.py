"""Timelines are transferred unchanged, and merge without inventing or losing measurements."""

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.errors import RecordError
from slurm_gpu.wire import Timeline, merge_timelines
from slurm_gpu.wire.timeline import FULL, GAP, MAX_BINS, level, read_timeline
from tests.wire.strategies import timelines


def timeline(*util: int, width_s: int = 1, start_s: int = 0) -> Timeline:
    return Timeline(width_s=width_s, start_s=start_s, series={"util": bytes(util)})


@given(timelines())
def test_a_timeline_arrives_as_it_was_sent(sent: Timeline) -> None:
    assert read_timeline("timeline", json.loads(json.dumps(sent.to_wire()))) == sent


@given(st.floats(0, 1))
def test_a_fraction_survives_as_one_part_in_250(fraction: float) -> None:
    (back,) = timeline(level(fraction)).fractions("util")
    assert back is not None
    assert abs(back - fraction) <= 0.5 / FULL + 1e-9


def test_zero_is_a_measurement_and_255_a_gap() -> None:
    assert timeline(level(0.0), level(None), level(1.0), level(1.3)).fractions("util") == [
        0.0,
        None,
        1.0,
        1.0,
    ]
    assert timeline(3, 4).fractions("power") == [None, None]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"width_s": 3}, "width_s: 3 must be a power of two"),
        ({"width_s": 0}, "width_s: 0 must be a power of two"),
        ({"width_s": None}, "width_s: None must be a whole number"),
        ({"width_s": 2**40}, "width_s: 1099511627776 must be a whole number"),
        ({"start_s": 6}, "start_s: 6 must be a multiple of width_s 4"),
        ({"series": None}, "series: must be an object"),
        ({"series": {"util": "AA==" * 200}}, "series.util: must be base64 of at most 256 bytes"),
        ({"series": {"util": "AAAA" * 86}}, "series.util: 258 bins are more than 256"),
        ({"series": {"util": "A"}}, "series.util: 'A' is not base64"),
        ({"series": {"util": "é"}}, "series.util: 'é' is not base64"),
        ({"series": {"util": [0]}}, "series.util: must be base64"),
        ({"series": {"util": "/A=="}}, "series.util: 252 must be 0 to 250, or 255 for a gap"),
        ({"series": {"util": "AA==", "power": "AAA="}}, r"equally long, not {.util.: 1, .power.: 2}"),
    ],
)
def test_a_malformed_timeline_is_refused_by_the_name_of_its_field(
    change: dict[str, Any], complaint: str
) -> None:
    good = {"width_s": 4, "start_s": 8, "series": {"util": "AA=="}}
    assert read_timeline("timeline", good) == timeline(0, width_s=4, start_s=8)
    with pytest.raises(RecordError, match=complaint):
        read_timeline("timeline", {**good, **change})


def test_a_series_of_a_newer_node_is_left_out() -> None:
    wire = {"width_s": 1, "start_s": 0, "series": {"util": "AA==", "colour": "AAA="}}
    assert read_timeline("timeline", wire) == timeline(0)


def test_consecutive_timelines_are_concatenated() -> None:
    merged = merge_timelines([timeline(10, 20, start_s=100), None, timeline(30, start_s=104)])
    assert merged == timeline(10, 20, GAP, GAP, 30, start_s=100)


def test_the_wider_bins_set_the_width() -> None:
    merged = merge_timelines([timeline(10, 20, 30, GAP, start_s=4), timeline(100, width_s=4, start_s=8)])
    assert merged == timeline(20, 100, width_s=4, start_s=4)


def test_a_long_merged_timeline_has_wider_bins() -> None:
    merged = merge_timelines([timeline(100), timeline(200, start_s=256)])
    assert merged is not None
    assert (merged.width_s, merged.start_s, merged.n_bins) == (2, 0, 129)
    assert merged.fractions("util")[0] == 100 / FULL


def test_watches_that_share_a_bin_count_by_their_time() -> None:
    ended = timeline(100, 200, width_s=64, start_s=0)
    began = timeline(0, 50, width_s=64, start_s=64)
    assert merge_timelines([ended, began]) == timeline(100, 100, 50, width_s=64)
    # The first timeline covers 16 s of the second bin, the other 48 s.
    assert merge_timelines([ended, began], [(0, 80), (80, 192)]) == timeline(100, 50, 50, width_s=64)


def test_bins_count_completely_after_a_clock_step() -> None:
    ended = timeline(100, 200, width_s=64, start_s=0)
    began = timeline(0, 50, width_s=64, start_s=64)
    by_width = merge_timelines([ended, began])
    assert merge_timelines([ended, began], [(500, 5000), (0, 10)]) == by_width


def test_nothing_merges_to_nothing() -> None:
    assert merge_timelines([]) is None
    assert merge_timelines([None, Timeline(width_s=1, start_s=0, series={})]) is None


@given(st.lists(timelines(), max_size=3))
def test_timelines_merge_in_any_order_and_stay_within_what_was_measured(parts: list[Timeline]) -> None:
    whole = merge_timelines(parts)
    assert all(merge_timelines(order) == whole for order in permutations(parts))
    if whole is None:
        return
    assert whole == read_timeline("timeline", whole.to_wire())
    assert whole.n_bins <= MAX_BINS
    for name, levels in whole.series.items():
        given_levels = {byte for part in parts for byte in part.series.get(name, b"")} - {GAP}
        merged_levels = set(levels) - {GAP}
        assert bool(given_levels) == bool(merged_levels)
        if given_levels:
            assert min(given_levels) <= min(merged_levels) <= max(merged_levels) <= max(given_levels)
