"""No schedule is shorter than the bound, and the bound is exact where it can be computed by hand."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.colocation.planner import PlannerView, Start
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.registry import Setting, planner
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import TableWorld, World
from slurm_gpu.colocation.tables.pair_table import PairTable
from slurm_gpu.colocation.tables.read import read_table
from tests.colocation.building import CAPACITY_MIB, PhaseWorld, Reckless, jobs, pairs, profile, worlds
from tests.colocation.planning import planners
from tests.examples import examples

bound = pytest.importorskip("slurm_gpu.colocation.planners.bound", reason="needs the extra colocation")
NOTICED, least_makespan = bound.NOTICED, bound.least_makespan

A, B = profile("a", (100.0, 0.0)), profile("b", (100.0, 0.0))
ALONE = pairs([[1.0]], A)
EVEN = pairs([[0.8]], A)


def test_one_job_takes_as_long_as_alone_and_none_takes_nothing() -> None:
    assert least_makespan(ALONE, [SharingJob(0, 100.0)], n_gpus=3).makespan_s == pytest.approx(100)
    assert least_makespan(ALONE, []).makespan_s == 0


def test_two_of_a_kind_run_together_from_end_to_end() -> None:
    found = least_makespan(EVEN, [SharingJob(0, 100.0), SharingJob(0, 100.0)])
    assert found.makespan_s == pytest.approx(125)
    assert found.together_s == {(0, 0): pytest.approx(125)}


def test_the_remaining_job_continues_alone() -> None:
    world = pairs([[0.0, 1.0], [0.5, 0.0]], A, B)  # b has half speed with a
    found = least_makespan(world, [SharingJob(0, 100.0), SharingJob(1, 100.0)])
    assert found.makespan_s == pytest.approx(150)
    assert found.together_s == {(0, 1): pytest.approx(100), (1,): pytest.approx(50)}


def test_sharing_that_cannot_pay_is_none() -> None:
    found = least_makespan(pairs([[0.5]], A), [SharingJob(0, 100.0), SharingJob(0, 60.0)])
    assert found.makespan_s == pytest.approx(160)
    assert found.together_s == {(0,): pytest.approx(160)}


def test_three_jobs_that_share_in_pairs_end_together() -> None:
    # Each pair runs together for 75 s, so every job runs for 150 s at 0.8, and never alone.
    found = least_makespan(EVEN, [SharingJob(0, 120.0)] * 3)
    assert found.makespan_s == pytest.approx(225)
    assert least_makespan(EVEN, [SharingJob(0, 120.0)] * 3, most_together=1).makespan_s == pytest.approx(360)


def test_on_several_gpus_no_job_is_shorter_than_alone_and_no_gpu_does_the_work_of_two() -> None:
    assert least_makespan(EVEN, [SharingJob(0, 100.0)] * 2, n_gpus=2).makespan_s == pytest.approx(100)
    assert least_makespan(EVEN, [SharingJob(0, 100.0)] * 4, n_gpus=2).makespan_s == pytest.approx(125)
    assert least_makespan(
        EVEN, [SharingJob(0, 300.0), SharingJob(0, 10.0)], n_gpus=2
    ).makespan_s == pytest.approx(300)


def test_no_job_ends_sooner_than_submitted_and_run() -> None:
    assert least_makespan(
        ALONE, [SharingJob(0, 10.0, 5.0), SharingJob(0, 10.0, 95.0)]
    ).makespan_s == pytest.approx(100)


def test_phases_that_meet_beyond_a_cap_may_as_long_as_the_run_is_within_it() -> None:
    two = profile("two", (40.0, 0.0), (60.0, 0.0))
    world = PhaseWorld([two], PairTable(["two"], np.array([[1.0]])))
    some = [SharingJob(0, 100.0)] * 2
    # 40 s of each overlap the other's second phase; odd with odd, half as fast, gains nothing.
    assert least_makespan(world, some, cap=1.1).makespan_s == pytest.approx(120)
    # With only one phase, two jobs always exceed the cap, so they do not share.
    odd = PhaseWorld([two], PairTable(["two"], np.array([[0.8]])))
    assert least_makespan(odd, some, cap=1.1).makespan_s == pytest.approx(200)


def test_jobs_that_are_alike_are_bounded_as_if_each_were_one_of_its_own() -> None:
    world = pairs([[0.8, 0.9, 0.6], [0.7, 0.6, 0.95], [0.9, 0.85, 0.3]], A, B, profile("c", (100.0, 0.0)))
    alike = [SharingJob(number % 3, 60.0 + 30.0 * (number % 3)) for number in range(9)]
    apart = [SharingJob(one.application, one.work_s * (1 + 1e-9 * at)) for at, one in enumerate(alike)]
    for most in (2, 3):
        for n_gpus in (1, 2):
            least_s = least_makespan(world, alike, n_gpus=n_gpus, most_together=most).makespan_s
            each_s = least_makespan(world, apart, n_gpus=n_gpus, most_together=most).makespan_s
            assert least_s == pytest.approx(each_s, rel=1e-6)


def test_pairs_beyond_a_cap_are_left_out() -> None:
    world = pairs([[0.8, 0.95], [0.95, 0.8]], A, B)
    some = [SharingJob(0, 95.0), SharingJob(1, 95.0), SharingJob(0, 80.0), SharingJob(0, 80.0)]
    assert least_makespan(world, some).makespan_s < 275
    assert least_makespan(world, some, cap=1.1).makespan_s == pytest.approx(100 + 160)


def test_memory_keeps_apart_only_those_phases_that_are_too_much_together() -> None:
    half = profile("half", (50.0, 1000.0), (50.0, CAPACITY_MIB / 2 + 1))
    found = least_makespan(pairs([[1.0]], half), [SharingJob(0, 100.0)] * 2)
    assert found.makespan_s == pytest.approx(100)  # the second half of each overlaps the first of the other
    always = profile("always", (100.0, CAPACITY_MIB / 2 + 1))
    assert least_makespan(pairs([[1.0]], always), [SharingJob(0, 100.0)] * 2).makespan_s == pytest.approx(200)


def test_speeds_are_those_of_phases() -> None:
    two = profile("two", (40.0, 0.0), (60.0, 0.0))
    world = PhaseWorld([two], PairTable(["two"], np.array([[1.0]])))
    # Two odd phases together gain nothing. Odd and even phases overlap without loss for 40 s each way; 20 s
    # of each job remain.
    assert least_makespan(world, [SharingJob(0, 100.0)] * 2).makespan_s == pytest.approx(120)


def test_a_job_that_fits_into_no_gpu_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"job 1 takes 18000 MiB, but a GPU has only 12000 MiB"):
        least_makespan(
            pairs([[1.0]], profile("big", (1.0, CAPACITY_MIB))),
            [SharingJob(0, 1.0), SharingJob(0, 1.0, memory_factor=1.5)],
        )


@settings(max_examples=examples(10))
@given(st.data(), st.integers(0, 99), st.integers(1, 3), st.integers(1, 3))
def test_no_schedule_is_shorter(data: st.DataObject, seed: int, n_gpus: int, most: int) -> None:
    world = data.draw(worlds())
    some = data.draw(jobs(world, max_size=6))
    least_s = least_makespan(world, some, n_gpus=n_gpus, most_together=most).makespan_s
    for one in [Reckless(seed, most), *planners(world, KnownBelief(world, most_together=most), seed)]:
        assert simulate(world, some, one, n_gpus=n_gpus).makespan_s >= least_s * (1 - 1e-6), one.name


@settings(max_examples=examples(10))
@given(st.data(), st.integers(1, 3), st.sampled_from((1.1, 1.5)))
def test_no_schedule_that_keeps_a_cap_is_shorter_than_the_bound_under_it(
    data: st.DataObject, n_gpus: int, cap: float
) -> None:
    world = data.draw(worlds())
    some = data.draw(jobs(world, max_size=6))
    least_s = least_makespan(world, some, n_gpus=n_gpus, cap=cap).makespan_s
    for one in planners(world, KnownBelief(world, cap=cap)):
        assert simulate(world, some, one, n_gpus=n_gpus).makespan_s >= least_s * (1 - 1e-6), one.name


class At:
    """Start each job at a given time, regardless of the result."""

    name = "at"

    def __init__(self, starts_s: Sequence[float]) -> None:
        self._starts_s = starts_s
        self.wake_s = math.inf

    def choose(self, view: PlannerView) -> list[Start]:
        due = [one.job for one in view.waiting if self._starts_s[one.job] <= view.now_s]
        if not due and not view.gpus[0].running:
            due = [min(view.waiting, key=lambda one: self._starts_s[one.job]).job]
        self.wake_s = min(
            (self._starts_s[one.job] for one in view.waiting if one.job not in due), default=math.inf
        )
        self.wake_s = self.wake_s if self.wake_s > view.now_s else math.inf
        return [Start(0, tuple(due))] if due else []


def best_of_all(
    world: World, some: Sequence[SharingJob], step_s: float, last_s: float
) -> dict[float, list[float]]:
    """Return the shortest makespans of schedules that start jobs at multiples of a step, at most two per GPU.

    The results are keyed by the cap (none, 1.25) and, under the cap, indexed by the number of jobs that may
    be noticeably slowed down (none, one, any).
    """
    best: dict[float, list[float]] = {math.inf: [math.inf], 1.25: [math.inf] * 3}
    times = np.arange(0, last_s, step_s).tolist()
    for starts_s in product(times, repeat=len(some) - 1):
        ran = simulate(world, some, At((0.0, *starts_s)))
        if ran.out_of_memory or ran.most_together > 2:
            continue
        best[math.inf][0] = min(best[math.inf][0], ran.makespan_s)
        if ran.slowdown.max() <= 1.25 + 1e-9:
            slowed = int((ran.slowdown > NOTICED).sum())
            for at, most in enumerate((0, 1, len(some))):
                if slowed <= most:
                    best[1.25][at] = min(best[1.25][at], ran.makespan_s)
    return best


TINY = {
    "phases in each other's way": (
        PhaseWorld([profile("two", (20.0, 0.0), (30.0, 0.0))], PairTable(["two"], np.array([[0.95]]))),
        [SharingJob(0, 50.0)] * 3,
    ),
    "memory that does not fit": (
        pairs([[0.9]], profile("loads", (10.0, 3000.0), (30.0, CAPACITY_MIB * 0.7))),
        [SharingJob(0, 40.0)] * 3,
    ),
    "jobs that are not alike": (
        PhaseWorld(
            [profile("a", (10.0, 5000.0), (20.0, 9000.0)), profile("b", (30.0, 2000.0), (10.0, 6000.0))],
            PairTable(["a", "b"], np.array([[0.8, 0.9], [0.85, 0.82]])),
        ),
        [SharingJob(0, 30.0), SharingJob(1, 40.0), SharingJob(1, 25.0)],
    ),
}


@pytest.mark.parametrize("name", TINY)
def test_no_schedule_at_all_is_shorter_than_the_bound_and_the_best_is_not_far(name: str) -> None:
    world, some = TINY[name]
    best = best_of_all(world, some, 5.0, 125.0)
    free_s = least_makespan(world, some).makespan_s
    assert free_s * (1 - 1e-9) <= best[math.inf][0] <= free_s * 1.35
    bounds_s = [
        least_makespan(world, some, cap=1.25, most_slowed=most).makespan_s for most in (0, 1, len(some))
    ]
    assert bounds_s == sorted(bounds_s, reverse=True)
    for bound_s, best_s in zip(bounds_s, best[1.25], strict=True):
        assert free_s * (1 - 1e-9) <= bound_s <= best_s * (1 + 1e-9)


def test_jobs_that_may_not_be_slowed_down_raise_the_bound() -> None:
    # At 0.95, each job takes 1.05 times as long, which none, one, two or any number of jobs may do.
    world = pairs([[0.95]], A)
    some = [SharingJob(0, 95.0)] * 2
    least_s = [
        least_makespan(world, some, cap=1.06, most_slowed=most).makespan_s for most in (0, 1, 2, math.inf)
    ]
    # A job that must not be slowed down may lose 1.9 of its 95 s, so the two share the GPU for only 38 s.
    assert least_s[0] == pytest.approx(95 * 2 - 0.9 * 95 * 0.02 / 0.05)
    assert least_s[0] > least_s[1] > least_s[2] == least_s[3] == pytest.approx(100)


V100 = Path(os.environ.get("SLURM_GPU_DATA", "")) / "gavel" / "throughputs_v100.json"


@pytest.mark.skipif(
    not V100.exists(), reason="SLURM_GPU_DATA names no folder with gavel/throughputs_v100.json"
)
def test_on_measured_pairs_annealing_comes_within_two_per_cent_and_greedy_within_ten() -> None:
    table = read_table(V100).table()
    world = TableWorld(
        [ApplicationProfile(name, "v100", (ProfilePhase(seconds=1.0),)) for name in table.names], table
    )
    ratios: dict[str, list[float]] = {"lp": [], "annealing": [], "greedy": []}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        some = [
            SharingJob(int(rng.integers(len(table.names))), float(rng.uniform(60, 600))) for _ in range(30)
        ]
        alone_s = sum(job.work_s for job in some)
        ratios["lp"].append(least_makespan(world, some).makespan_s / alone_s)
        for name in ("annealing", "greedy"):
            setting = Setting(
                belief=KnownBelief(world), profiles=world.profiles, capacity_mib=math.inf, seed=seed
            )
            ratios[name].append(simulate(world, some, planner(name, setting)).makespan_s / alone_s)
    least, annealed, greedy = (float(np.mean(values)) for values in ratios.values())
    assert 0.60 < least < 0.70
    assert annealed < 1.02 * least
    assert annealed < greedy < 1.10 * least
