"""Experience records means, deviations, runs, and groups that cannot run together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.colocation_experience import Experience, SpeedStatistics
from slurm_gpu.colocation.tables.measured import Measured

RUNS = st.lists(st.tuples(st.floats(0, 1), st.floats(1e-3, 1e5)), min_size=1, max_size=30)


@given(RUNS)
def test_means_and_spreads_are_weighed_by_time(runs: list[tuple[float, float]]) -> None:
    experience = Experience()
    for speed, seconds in runs:
        experience.add((1, 0), (speed, 1.0), seconds)
    speeds, seconds = np.array(runs).T
    seen = experience.seen(1, (0,))
    assert seen is not None
    assert seen.runs == len(runs)
    assert seen.seconds == pytest.approx(seconds.sum())
    assert seen.speed == pytest.approx(np.average(speeds, weights=seconds), abs=1e-9)
    spread = math.sqrt(np.average((speeds - np.average(speeds, weights=seconds)) ** 2, weights=seconds))
    assert seen.spread == pytest.approx(spread, abs=1e-6)


def test_each_group_is_seen_for_itself_and_two_of_one_application_are_two_runs() -> None:
    experience = Experience()
    experience.add((0, 1), (0.5, 0.75), 10)
    experience.add((0, 0), (0.4, 0.6), 10)
    experience.add((0, 1, 0), (0.2, 0.3, 0.4), 10)
    assert experience.seen(0, (1,)) == SpeedStatistics(0.5, 0.0, 1, 10)
    assert experience.seen(1, (0,)) == SpeedStatistics(0.75, 0.0, 1, 10)
    twins = experience.seen(0, (0,))
    assert twins is not None
    assert (twins.speed, twins.runs) == (pytest.approx(0.5), 2)
    mixed = experience.seen(0, (1, 0))
    assert mixed is not None
    assert mixed.speed == pytest.approx(0.3)
    assert experience.seen(1, (1,)) is None


def test_single_jobs_and_zero_seconds_are_ignored_and_speeds_are_capped_at_1() -> None:
    experience = Experience()
    experience.add((3,), (0.5,), 100)
    experience.add((3, 4), (0.5, 0.5), 0)
    assert list(experience.all_seen()) == []
    experience.add((3, 4), (1.2, 1.0), 5)
    seen = experience.seen(3, (4,))
    assert seen is not None
    assert seen.speed == 1


@pytest.mark.parametrize(
    ("speeds", "seconds"), [((0.5,), 1.0), ((0.5, -0.1), 1.0), ((0.5, math.nan), 1.0), ((1.0, 1.0), math.nan)]
)
def test_impossible_speeds_are_refused(speeds: tuple[float, ...], seconds: float) -> None:
    with pytest.raises(ValueError, match=r"speed|seconds"):
        Experience().add((0, 1), speeds, seconds)


def test_a_refused_pair_is_refused_in_larger_groups() -> None:
    experience = Experience()
    experience.refuse((2, 1))
    experience.refuse((3, 3))
    experience.refuse((3, 3))
    assert experience.refused((1, 2))
    assert experience.refused((2, 0, 1))
    assert experience.refused((3, 3, 0))
    assert not experience.refused((1, 3, 0))
    assert experience.all_refused() == [((1, 2), 1), ((3, 3), 2)]


def test_a_table_goes_in_and_comes_out_and_counts_for_many_runs() -> None:
    table = Measured(
        "V100",
        ("a", "b", "c"),
        (1.0, None, 2.0),
        {(0, (1,)): 0.5, (1, (0,)): 0.25, (0, (0,)): 0.0, (2, (0, 1)): 0.5},
    )
    experience = Experience.of(table)
    assert experience.all_refused() == [((0, 0), 20)]
    assert experience.measured("V100", table.names, table.alone_per_s) == table
    experience.add((0, 1), (1.0, 1.0), 60.0)
    seen = experience.seen(0, (1,))
    assert seen is not None
    assert seen.speed == pytest.approx(0.5 + 0.5 / 21)
    speeds, runs = experience.pairs(3)
    assert (speeds[0, 1], runs[0, 1], runs[1, 2]) == (seen.speed, 21, 0)
    assert np.isnan(speeds[0, 0])
    with pytest.raises(ValueError, match="more applications than the 2 names"):
        experience.measured("V100", ("a", "b"), (None, None))


def test_restored_experience_equals_the_original() -> None:
    here, there = Experience(), Experience()
    for speed in (0.5, 0.6, 0.9):
        here.add((0, 1), (speed, speed), 30)
    for one, others, seen in here.all_seen():
        there.restore(one, others, seen)
    for one in (here, there):
        one.add((0, 1), (0.1, 0.1), 10)
    assert here.seen(0, (1,)) == there.seen(0, (1,))
    for wrong in (
        SpeedStatistics(1.1, 0, 1, 1),
        SpeedStatistics(0.5, math.nan, 1, 1),
        SpeedStatistics(0.5, 0, 0, 1),
        SpeedStatistics(0.5, 0, 1, 0),
    ):
        with pytest.raises(ValueError, match="is impossible"):
            there.restore(0, (1,), wrong)
