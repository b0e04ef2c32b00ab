"""The estimated memory of a group is never too small, for any phases, speeds and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.colocation_memory import Headroom, Margin, PhaseInterval, needed_mib, phase_intervals
from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.simulation.sharing import look_ahead
from slurm_gpu.colocation.simulation.world import World
from tests.colocation.building import CAPACITY_MIB, profile, worlds

NO_HEADROOM = Headroom(0.0, 0.0)


@st.composite
def running(draw: st.DrawFn) -> tuple[World, list[Member]]:
    world = draw(worlds())
    members = []
    for job in range(draw(st.integers(1, 3))):
        application = draw(st.integers(0, len(world.profiles) - 1))
        done_s = draw(st.sampled_from((0.0, 10.0, 30.0)))
        members.append(Member(job, application, draw(st.floats(0.5, 90.0)), done_s))
    return world, members


@given(running(), st.floats(0, 0.3))
def test_memory_never_exceeds_the_estimate(case: tuple[World, list[Member]], timing: float) -> None:
    world, members = case
    ran = look_ahead(world, members)
    assume(ran is not None)
    assert ran is not None
    slowest = min(one.speed for stretch in ran for one in stretch.ran)
    jobs = [phase_intervals(world.profiles[one.application], one, slowest, timing) for one in members]
    known = [job for job in jobs if job is not None]
    most = max(stretch.memory_mib or 0.0 for stretch in ran)
    assert len(known) == len(members)
    assert needed_mib(known, NO_HEADROOM) >= most - 1e-6
    assert needed_mib(known, Headroom(0.2, 100.0)) >= most * 1.2 - 1e-6


def test_a_job_that_ends_before_the_other_grows_does_not_count() -> None:
    grows = profile("grows", (100, 1000.0), (100, 9000.0))
    short, later = Member(0, 0, 200.0), Member(1, 0, 50.0)
    steady = profile("steady", (100, 6000.0))

    def needed(slowest: float) -> float:
        jobs = [phase_intervals(grows, short, slowest, 0.1), phase_intervals(steady, later, slowest, 0.1)]
        return needed_mib([job for job in jobs if job is not None], NO_HEADROOM)

    assert needed(0.9) == 9000
    # The job is so slow that it may still be running when the other job grows.
    assert needed(0.5) == 15000


def test_a_gap_takes_as_much_as_the_largest_and_nothing_but_gaps_is_not_known() -> None:
    holes = ApplicationProfile(
        "holes", "card", (ProfilePhase(seconds=5), ProfilePhase(seconds=5, memory_mib=700))
    )
    assert phase_intervals(holes, Member(0, 0, 5.0), 1.0, 0.0) == [PhaseInterval(0, 5, 700)]
    nothing = ApplicationProfile("nothing", "card", (ProfilePhase(seconds=5),))
    assert phase_intervals(nothing, Member(0, 0, 5.0), 1.0, 0.0) is None


def test_work_beyond_the_profile_is_in_its_last_phase() -> None:
    two = profile("two", (5, 100.0), (5, 200.0))
    assert phase_intervals(two, Member(0, 0, 100.0, 50.0), 0.5, 0.0) == [PhaseInterval(0, 200, 200)]
    # Two jobs that end immediately still run together for a moment.
    assert needed_mib([[PhaseInterval(0, math.inf, 1)], [PhaseInterval(3, 3.5, 2)]], NO_HEADROOM) == 3


def test_a_margin_begins_careful_grows_with_errors_and_falls_to_the_largest() -> None:
    margin = Margin(0.25, 0.02)
    assert margin.value == 0.25
    margin.add(0.4)
    assert margin.value >= 0.4
    steady = Margin(0.25, 0.02)
    for _ in range(29):
        steady.add(0.0)
    assert steady.value == 0.25
    steady.add(0.0)
    assert steady.value == 0.02


@pytest.mark.parametrize("width", [0.05, 0.2])
def test_errors_of_a_known_range_are_covered_before_all_of_it_was_seen(width: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        margin = Margin(0.25, 0.02)
        for error in rng.uniform(-width, width, 100):
            margin.add(error)
        assert width <= margin.value + 0.002
        assert margin.value < width * 1.2
        for error in rng.uniform(-width, width, 2000):
            margin.add(error)
        assert width * 0.999 <= margin.value < width * 1.05


@given(st.lists(st.floats(-1, 10), max_size=60))
def test_a_margin_is_never_below_what_was_seen(errors: list[float]) -> None:
    margin = Margin(0.25)
    for error in errors:
        margin.add(error)
        assert margin.value >= max(0.0, error)


def test_an_invalid_error_is_refused() -> None:
    with pytest.raises(ValueError, match="not nan"):
        Margin(0.1).add(math.nan)
    with pytest.raises(ValueError, match="initial margin must be"):
        Margin(-0.1)


def test_groups_need_headroom_for_their_extra_memory() -> None:
    headroom = Headroom(0.0, 300.0)
    assert headroom.needed_mib([1000.0]) == 1000
    assert headroom.needed_mib([1000.0, 500.0]) == 1800
    headroom.add_job(0.0, 100.0)
    assert headroom.part.errors == 0
    headroom.add_job(1000.0, 1100.0)
    headroom.add_group([1000.0, 500.0], 2000.0)
    assert headroom.needed_mib([1000.0, 500.0]) == pytest.approx(1500 * 1.1 + 500)
    assert CAPACITY_MIB > 0


def test_a_group_that_ran_out_of_memory_has_more_headroom() -> None:
    headroom = Headroom(0.1, 0.0)
    headroom.add_out_of_memory((1, 0), 8000.0, 10000.0)
    assert headroom.needed_mib([8000.0, 0.0], headroom.times((0, 1))) > 11000
    assert headroom.needed_mib([8000.0, 0.0], headroom.times((0, 2, 1))) > 11000
    assert headroom.needed_mib([6000.0, 1000.0], headroom.times((0, 1))) < 10000
    assert headroom.needed_mib([8000.0, 0.0], headroom.times((0, 2))) == pytest.approx(8800)
    # A single job needs no additional memory.
    assert headroom.needed_mib([8000.0], headroom.times((0, 1))) == pytest.approx(8800)
    # A smaller error does not lower the bound.
    headroom.add_out_of_memory((0, 1), 9900.0, 10000.0)
    assert headroom.times((0, 1)) > 1.25


@given(st.floats(1, 9999), st.floats(0, 1), st.floats(0, 500))
def test_a_group_that_ran_out_of_memory_does_not_fit_again(
    expected_mib: float, part: float, group_mib: float
) -> None:
    headroom = Headroom(part, group_mib)
    headroom.add_out_of_memory((0, 1), expected_mib, 10000.0)
    assert headroom.needed_mib([expected_mib, 0.0], headroom.times((0, 1))) > 10000


@pytest.mark.parametrize("expected_mib", [0.0, 10000.0, math.nan])
def test_errors_do_not_explain_that_nothing_or_too_much_did_not_fit(expected_mib: float) -> None:
    with pytest.raises(ValueError, match=f"{expected_mib} MiB must be"):
        Headroom().add_out_of_memory((0, 1), expected_mib, 10000.0)
