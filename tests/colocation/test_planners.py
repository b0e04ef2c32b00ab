"""Guarantees of every planner, and the preference of each."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.colocation.planner import Member, PlannerGpu, PlannerView
from slurm_gpu.colocation.planners.annealing import Annealing
from slurm_gpu.colocation.registry import DEFAULT, PLANNERS, Setting, planner
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from tests.colocation.building import jobs, pairs, profile, worlds
from tests.colocation.planning import NOT_LEARNED, Watched, made

for library in ("networkx", "scipy"):
    pytest.importorskip(library, reason="needs the extra colocation")


@pytest.mark.parametrize("name", NOT_LEARNED)
@given(data=st.data(), n_gpus=st.integers(1, 3), most=st.integers(1, 3), cap=st.sampled_from((math.inf, 1.1)))
def test_planners_start_only_waiting_jobs_where_they_may_share(
    name: str, data: st.DataObject, n_gpus: int, most: int, cap: float
) -> None:
    world = data.draw(worlds())
    some = data.draw(jobs(world))
    belief = KnownBelief(world, most_together=most, cap=cap)
    ran = simulate(world, some, Watched(made(name, world, belief), belief), n_gpus=n_gpus)
    assert ran.out_of_memory == 0
    assert ran.most_together <= most
    assert ran.slowdown.max() <= cap * (1 + 1e-6)


@pytest.mark.parametrize("name", NOT_LEARNED)
@given(data=st.data(), n_gpus=st.integers(1, 3), seed=st.integers(0, 9))
def test_the_same_seed_decides_the_same(name: str, data: st.DataObject, n_gpus: int, seed: int) -> None:
    world = data.draw(worlds())
    some = data.draw(jobs(world))
    once, again = (
        simulate(world, some, made(name, world, KnownBelief(world), seed), n_gpus=n_gpus).log
        for _ in range(2)
    )
    assert once == again


EVEN = profile("even", (100.0, 0.0))
POOR = pairs([[0.5]], EVEN)
GOOD = pairs([[0.8]], EVEN)


@pytest.mark.parametrize("name", ["sjf", "greedy", "blossom", "lp", "annealing"])
def test_planners_with_speeds_do_not_share_without_a_gain(name: str) -> None:
    ran = simulate(POOR, [SharingJob(0, 100.0)] * 5, made(name, POOR, KnownBelief(POOR)))
    assert ran.makespan_s == pytest.approx(500)
    assert ran.most_together == 1


@pytest.mark.parametrize("name", ["greedy", "blossom", "lp", "annealing"])
@given(data=st.data(), most=st.integers(2, 3))
def test_planners_with_speeds_are_never_slower_than_sequential_runs(
    name: str, data: st.DataObject, most: int
) -> None:
    world = data.draw(worlds(phases=False))
    some = [SharingJob(job.application, job.work_s) for job in data.draw(jobs(world))]
    ran = simulate(world, some, made(name, world, KnownBelief(world, most_together=most)))
    assert ran.makespan_s <= sum(job.work_s for job in some) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["greedy", "blossom", "lp", "annealing"])
def test_idle_gpus_are_filled_before_any_is_shared(name: str) -> None:
    ran = simulate(GOOD, [SharingJob(0, 100.0)] * 4, made(name, GOOD, KnownBelief(GOOD)), n_gpus=4)
    assert ran.makespan_s == pytest.approx(100)
    ran = simulate(GOOD, [SharingJob(0, 100.0)] * 8, made(name, GOOD, KnownBelief(GOOD)), n_gpus=4)
    assert ran.makespan_s == pytest.approx(125)


def test_shortest_first_is_exclusive() -> None:
    some = [SharingJob(0, 30.0), SharingJob(0, 10.0), SharingJob(0, 20.0)]
    ran = simulate(GOOD, some, made("sjf", GOOD, KnownBelief(GOOD)))
    assert list(ran.start_s) == [30, 0, 10]


# a and b share without loss, as do c and d; any other pair is no faster than single jobs.
FRIENDS = pairs(
    [[0.5, 1.0, 0.5, 0.5], [1.0, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 1.0], [0.5, 0.5, 1.0, 0.5]],
    *(profile(name, (100.0, 0.0)) for name in "abcd"),
)


@pytest.mark.parametrize("name", ["greedy", "blossom", "lp", "annealing"])
def test_friends_run_together(name: str) -> None:
    some = [SharingJob(application, 100.0) for application in (0, 2, 1, 3)]
    assert simulate(FRIENDS, some, made(name, FRIENDS, KnownBelief(FRIENDS))).makespan_s == pytest.approx(200)


# b and c are both good with a, but d only with b; pairing a and b first leaves c and d alone.
CHAIN = pairs(
    [[0.5, 0.9, 0.8, 0.5], [0.9, 0.5, 0.5, 0.8], [0.8, 0.5, 0.5, 0.5], [0.5, 0.8, 0.5, 0.5]],
    *(profile(name, (100.0, 0.0)) for name in "abcd"),
)


@pytest.mark.parametrize(
    ("name", "least_s"), [("greedy", 311), ("blossom", 250), ("lp", 250), ("annealing", 250)]
)
def test_a_planner_that_plans_ahead_does_not_take_the_best_pair_first(name: str, least_s: float) -> None:
    some = [SharingJob(application, 100.0) for application in range(4)]
    ran = simulate(CHAIN, some, made(name, CHAIN, KnownBelief(CHAIN)))
    assert ran.makespan_s == pytest.approx(least_s, rel=0.01)


def test_a_third_does_not_slow_down_two_beyond_the_cap() -> None:
    # With one co-runner: 1/0.95 = 1.05. With two: 1.11, which is more than 1.10.
    world = pairs([[0.95]], EVEN)
    for name in NOT_LEARNED:
        ran = simulate(
            world, [SharingJob(0, 100.0)] * 3, made(name, world, KnownBelief(world, most_together=3, cap=1.1))
        )
        assert ran.slowdown.max() <= 1.1 + 1e-9, name


@pytest.mark.parametrize("name", ["lp", "annealing"])
@pytest.mark.parametrize(("n", "slowed"), [(5, 0), (12, 2), (24, 4)])
def test_under_a_cap_one_job_in_six_is_slowed(name: str, n: int, slowed: int) -> None:
    world = pairs([[0.93]], EVEN)
    belief = KnownBelief(world, cap=1.1)
    ours = Annealing(belief) if name == "annealing" else made(name, world, belief)
    ran = simulate(world, [SharingJob(0, 100.0)] * n, ours)
    assert (ran.slowdown > 1.02).sum() == slowed
    assert ran.makespan_s < 100 * n - 40 * slowed + 1


@given(data=st.data(), n_gpus=st.integers(1, 3), most=st.integers(2, 3), cap=st.floats(1.03, 3))
def test_at_most_one_job_in_six_is_slowed_on_all_gpus(
    data: st.DataObject, n_gpus: int, most: int, cap: float
) -> None:
    world = data.draw(worlds(phases=False))
    some = [SharingJob(one.application, one.work_s) for one in data.draw(jobs(world))]
    belief = KnownBelief(world, most_together=most, cap=cap)
    ran = simulate(world, some, made("lp", world, belief), n_gpus=n_gpus)
    assert (ran.slowdown > 1.02 + 1e-5).sum() <= len(some) / 6


def test_the_progress_of_running_jobs_is_considered() -> None:
    # Two jobs exceed the memory, but not after the peak of the first.
    peak = profile("peak", (50.0, 7000.0), (50.0, 1000.0))
    world = pairs([[1.0]], peak)
    for name in set(NOT_LEARNED) - {"sjf", "fgd"}:  # sjf never shares, and fgd uses peaks
        for done_s, n in ((0.0, 0), (60.0, 1)):
            running = PlannerGpu((Member(0, 0, 100.0 - done_s, done_s),))
            view = PlannerView(done_s, (Member(1, 0, 100.0),), (running,))
            assert len(made(name, world, KnownBelief(world)).choose(view)) == n, (name, done_s)


def test_a_planner_that_is_unknown_is_an_error_with_the_known_ones() -> None:
    setting = Setting(belief=KnownBelief(GOOD), profiles=GOOD.profiles, capacity_mib=GOOD.capacity_mib)
    with pytest.raises(ValueError, match=r"unknown planner 'sfj'; available: sjf, tetris"):
        planner("sfj", setting)
    assert {name: planner(name, setting).name for name in PLANNERS} == {name: name for name in PLANNERS}
    assert DEFAULT in PLANNERS
