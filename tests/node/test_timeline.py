"""A timeline loses only detail: its integral is the total, regardless of when bins were doubled."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.node.measure.timeline import MAX_WIRE_BYTES, TimelineSum, _Bins
from slurm_gpu.wire.timeline import FULL, GAP, MAX_BINS, Timeline, read_timeline

WALL = 1_795_000_000.0

# (pause before, length, fraction)
pieces = st.lists(
    st.tuples(st.floats(0, 50), st.floats(0.001, 300), st.floats(0, 1)), min_size=1, max_size=40
)
walls = st.floats(WALL, WALL + 4096)


def collected(start_s: float, wall_s: float, work: list[tuple[float, float, float]]) -> TimelineSum:
    timeline = TimelineSum(start_s, wall_s)
    at_s = start_s
    for pause, seconds, fraction in work:
        at_s += pause
        timeline.add(at_s, at_s + seconds, {"util": fraction})
        at_s += seconds
    return timeline


def timeline_of(timeline: TimelineSum) -> Timeline:
    value = timeline.timeline()
    assert value is not None
    return value


def bins(timeline: TimelineSum, name: str = "util") -> _Bins:
    return timeline._series[name]


@given(st.floats(0, 1e6), walls, pieces)
def test_the_integral_is_the_total(start: float, wall: float, work: list[tuple[float, float, float]]) -> None:
    timeline = collected(start, wall, work)
    total = sum(seconds * fraction for _, seconds, fraction in work)
    measured = sum(seconds for _, seconds, _ in work)
    assert sum(bins(timeline).integrals) == pytest.approx(total, rel=1e-6, abs=1e-6)
    assert sum(bins(timeline).seconds) == pytest.approx(measured, rel=1e-6)
    # In a shipment, each bin is rounded by at most half a level.
    encoded = timeline_of(timeline).fractions("util")
    seconds = bins(timeline).seconds[: len(encoded)]
    assert all((fraction is None) == (s == 0) for fraction, s in zip(encoded, seconds, strict=True))
    integral = sum(f * s for f, s in zip(encoded, seconds, strict=True) if f is not None)
    assert abs(integral - total) <= measured / (2 * FULL) + 1e-3


@given(st.floats(0, 1e6), walls, pieces, st.lists(st.integers(0, 39), max_size=4))
def test_the_timeline_does_not_depend_on_the_time_of_doubling(
    start: float, wall: float, work: list[tuple[float, float, float]], doublings: list[int]
) -> None:
    early = TimelineSum(start, wall)
    at_s = start
    for number, (pause, seconds, fraction) in enumerate(work):
        for _ in range(doublings.count(number)):
            early.double()
        at_s += pause
        early.add(at_s, at_s + seconds, {"util": fraction})
        at_s += seconds
    late = collected(start, wall, work)
    while timeline_of(late).width_s < timeline_of(early).width_s:
        late.double()
    while timeline_of(early).width_s < timeline_of(late).width_s:
        early.double()
    assert timeline_of(early).start_s == timeline_of(late).start_s
    assert bins(early).seconds == pytest.approx(bins(late).seconds, abs=1e-4)
    for a, b in zip(timeline_of(early).fractions("util"), timeline_of(late).fractions("util"), strict=True):
        if a is None or b is None:
            continue  # the bin is shorter than a rounding error
        assert a == pytest.approx(b, abs=0.0041)


@given(st.floats(0, 1e6), walls, pieces)
def test_bins_of_all_nodes_are_aligned(
    start: float, wall: float, work: list[tuple[float, float, float]]
) -> None:
    timeline = timeline_of(collected(start, wall, work))
    assert timeline.width_s.bit_count() == 1
    assert timeline.start_s % timeline.width_s == 0
    assert timeline.start_s <= wall
    assert 1 <= timeline.n_bins <= MAX_BINS
    assert timeline.end_s >= wall + sum(pause + seconds for pause, seconds, _ in work) - 1e-3
    assert read_timeline("timeline", timeline.to_wire()) == timeline


def test_an_idle_second_is_zero_and_one_not_measured_is_a_gap() -> None:
    timeline = TimelineSum(100.0, WALL)
    timeline.add(100.0, 101.0, {"util": 0.0, "power": None})
    timeline.add(102.0, 103.5, {"util": 0.5, "power": None})
    value = timeline_of(timeline)
    assert (value.width_s, value.start_s) == (1, int(WALL))
    assert value.series == {"util": bytes([0, GAP, 125, 125])}  # a series of gaps is left out


def test_seconds_are_those_of_the_wall_clock() -> None:
    timeline = TimelineSum(50.0, WALL + 0.75)
    timeline.add(50.0, 50.5, {"util": 1.0})
    timeline.add(50.5, 51.0, {"util": 0.0})
    assert timeline_of(timeline).series == {"util": bytes([250, 83])}


def test_power_above_its_limit_is_full() -> None:
    timeline = TimelineSum(0.0, WALL)
    timeline.add(0.0, 2.0, {"power": 1.04})
    assert timeline_of(timeline).fractions("power") == [1.0, 1.0]
    assert sum(bins(timeline, "power").integrals) == pytest.approx(2.08)


def test_changed_bins_are_encoded_again() -> None:
    timeline = TimelineSum(0.0, WALL)
    for second in range(200):
        timeline.add(second, second + 1, {"util": second / 200})
    first = timeline_of(timeline).series["util"]
    timeline.add(150.0, 150.5, {"util": 0.0})  # a late sample
    timeline.add(200.0, 201.0, {"util": 1.0})
    again = timeline_of(timeline).series["util"]
    assert again[:150] == first[:150]
    assert again[150] == round(250 * 0.75 * 2 / 3)
    assert again[151:] == first[151:] + bytes([250])


def test_noisy_timelines_have_wider_bins() -> None:
    source = random.Random(1)
    names = ("util", "mem_used", "sm_active", "tensor", "pcie", "nvlink", "power", "sm_clock")
    smooth, noisy = TimelineSum(0.0, WALL), TimelineSum(0.0, WALL)
    for second in range(250):
        smooth.add(second, second + 1, dict.fromkeys(names, 0.5 + 0.1 * (second // 50)))
        noisy.add(second, second + 1, {name: source.random() for name in names})
    before = sum(bins(noisy).integrals)
    assert timeline_of(smooth).n_bins == 250
    value = timeline_of(noisy)
    assert sum(map(len, value.series.values())) <= MAX_WIRE_BYTES
    assert value.width_s == 2
    assert sum(bins(noisy).integrals) == pytest.approx(before)
