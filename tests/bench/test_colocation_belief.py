"""A planner with profiles and experience stays within memory and the cap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.colocation_belief import LearnedBelief, traits_of_profile
from bench.colocation_experience import Experience
from bench.colocation_memory import Headroom
from slurm_gpu.colocation.co_runner_views import speed_with_all
from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.profiles.traits import Traits, traits_of_table
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import TableWorld
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.pair_table import PairTable
from tests.colocation.building import CAPACITY_MIB, Trusting, profile

LIGHT, HEAVY = profile("light", (60, 1000.0)), profile("heavy", (60, 7000.0))


def of(application: int, left_s: float = 60.0) -> Member:
    return Member(0, application, left_s)


def test_observed_speeds_are_used_and_others_are_predicted() -> None:
    belief = LearnedBelief([LIGHT, HEAVY], CAPACITY_MIB)
    belief.experience.add((0, 1), (0.9, 0.4), 60)
    before = belief.speeds((0, 0))
    assert belief.speeds((0, 1)) == (0.9, 0.4)
    assert belief.speeds((1, 0)) == (0.4, 0.9)
    assert belief.speeds((1,)) == (1.0,)
    belief.learn()
    assert belief.speeds((0, 0)) != before
    low = belief.slowest((0, 1))
    assert 0.85 < low[0] < 0.9
    assert belief.slowest((0, 0))[0] < belief.speeds((0, 0))[0]


def test_three_are_measured_or_follow_from_their_pairs() -> None:
    belief = LearnedBelief([LIGHT], CAPACITY_MIB, most_together=3)
    belief.experience.add((0, 0), (0.8, 0.8), 60)
    assert belief.speeds((0, 0, 0)) == pytest.approx((speed_with_all([0.8, 0.8]),) * 3)
    belief.experience.add((0, 0, 0), (0.7, 0.7, 0.7), 60)
    belief.learn()
    assert belief.speeds((0, 0, 0)) == pytest.approx((0.7, 0.7, 0.7))
    assert belief.may_share([of(0)] * 3)
    assert not belief.may_share([of(0)] * 4)


def test_under_a_cap_what_is_unsure_is_not_tried_and_what_was_seen_is() -> None:
    capped = LearnedBelief([LIGHT, HEAVY], CAPACITY_MIB, cap=1.1)
    free = LearnedBelief([LIGHT, HEAVY], CAPACITY_MIB)
    pair = [of(0), of(0)]
    assert free.may_share(pair)
    assert not capped.may_share(pair)
    for _ in range(5):
        capped.experience.add((0, 0), (0.97, 0.97), 60)
    capped.learn()
    assert capped.may_share(pair)
    for _ in range(50):
        capped.experience.add((0, 0), (0.85, 0.95), 60)
    capped.learn()
    assert not capped.may_share(pair)


def test_one_alone_always_may() -> None:
    belief = LearnedBelief([LIGHT, HEAVY], CAPACITY_MIB, cap=1.0)
    assert belief.may_share([of(1)])
    assert belief.may_share([])


def test_a_pair_that_ran_out_of_memory_may_share_with_less_expected_memory() -> None:
    grows = profile("grows", (60, 7000.0), (60, 500.0))
    belief = LearnedBelief([LIGHT, grows], CAPACITY_MIB, most_together=3)
    pair = [of(0), of(1, 120.0)]
    later = [of(0), Member(1, 1, 40.0, done_s=80.0)]
    assert belief.may_share(pair)
    belief.ran_out(0, 1.0, pair, pair[1])
    assert not belief.may_share(pair)
    assert not belief.may_share([*pair, of(0)])
    assert belief.may_share([of(0), of(0)])
    assert belief.may_share(later)
    belief.ran_out(0, 1.0, later, later[1])
    assert not belief.may_share(later)


def test_a_pair_with_unknown_memory_may_share_again_once_larger_ones_have() -> None:
    names = [f"net (batch size {size})" for size in (8, 16, 32)]
    table = Measured("card", tuple(names), (1.0,) * 3, {})
    profiles = [ApplicationProfile(name, "card", (ProfilePhase(seconds=60),)) for name in names]
    belief = LearnedBelief(profiles, CAPACITY_MIB, traits=traits_of_table(table))
    pair = [of(0), of(1)]
    assert belief.may_share(pair)
    belief.ran_out(0, 1.0, pair, pair[1])
    assert not belief.may_share(pair)
    assert not belief.may_share([of(1), of(2)])
    for _ in range(4):
        belief.experience.add((2, 1), (0.8, 0.9), 60)
        belief.experience.add((0, 0), (0.8, 0.9), 60)
    belief.learn()
    assert not belief.may_share(pair)
    belief.experience.add((2, 1), (0.8, 0.9), 60)
    belief.learn()
    assert belief.may_share(pair)
    # After two failures twice as much evidence is needed.
    belief.ran_out(0, 1.0, pair, pair[1])
    assert not belief.may_share(pair)
    for _ in range(5):
        belief.experience.add((2, 1), (0.8, 0.9), 60)
    belief.learn()
    assert belief.may_share(pair)


def test_a_measured_pair_is_not_overruled_by_other_pairs() -> None:
    names = [f"net (batch size {size})" for size in (8, 16)]
    speeds = {(0, (0,)): 0.0, (0, (1,)): 0.9, (1, (0,)): 0.9, (1, (1,)): 0.9}
    table = Measured("card", tuple(names), (1.0,) * 2, speeds)
    profiles = [ApplicationProfile(name, "card", (ProfilePhase(seconds=60),)) for name in names]
    belief = LearnedBelief(profiles, CAPACITY_MIB, Experience.of(table), traits=traits_of_table(table))
    assert not belief.may_share([of(0), of(0)])
    assert belief.may_share([of(1), of(1)])


@pytest.mark.parametrize(("memory_mib", "capacity_mib"), [(0.0, 1000.0), (10.0, math.inf)])
def test_a_group_that_failed_despite_enough_memory_is_not_tried_again(
    memory_mib: float, capacity_mib: float
) -> None:
    belief = LearnedBelief([profile("a", (60, memory_mib))], capacity_mib)
    assert belief.may_share([of(0), of(0)])
    belief.ran_out(0, 1.0, [of(0), of(0)], of(0))
    assert not belief.may_share([of(0), of(0)])


def test_a_pair_with_unexpected_memory_fails_once_and_then_shares_where_possible() -> None:
    big, small = profile("big", (60, 9000.0), (60, 1000.0)), profile("small", (300, 2700.0))
    true = TableWorld([big, small], PairTable(["big", "small"], np.full((2, 2), 0.9)), CAPACITY_MIB)
    belief = LearnedBelief(true.profiles, CAPACITY_MIB, headroom=Headroom(0.0, 0.0))
    work = [SharingJob(at % 2, 300.0 if at % 2 else 120.0, 0.0, 1.1) for at in range(20)]
    ran = simulate(true, work, Trusting(belief), watcher=belief)
    assert ran.out_of_memory == 1
    assert ran.together > 1.3


def test_a_group_that_does_not_fit_does_not_share() -> None:
    belief = LearnedBelief([LIGHT, HEAVY], CAPACITY_MIB)
    assert belief.fits([of(0), of(1)])
    assert not belief.fits([of(1), of(1)])
    assert belief.fits([of(1)])


def test_an_error_of_memory_counts_from_the_moment_it_is_seen() -> None:
    belief = LearnedBelief([profile("half", (60, 4500.0))], CAPACITY_MIB)
    pair = [of(0), of(0)]
    assert belief.fits(pair)
    belief.headroom.add_job(1000.0, 1500.0)
    assert not belief.fits(pair)


def test_without_memory_known_those_like_who_could_not_do_not_share() -> None:
    names = [f"net (batch size {size})" for size in (8, 16, 32, 64)] + ["other"]
    speeds = {(i, (j,)): 0.9 for i in range(5) for j in range(5) if i < 3 or j < 3}
    del speeds[3, (2,)], speeds[2, (3,)]
    table = Measured("card", tuple(names), (1.0,) * 5, speeds | {(2, (2,)): 0.0})
    profiles = [ApplicationProfile(name, "card", (ProfilePhase(seconds=60),)) for name in names]
    belief = LearnedBelief(
        profiles, CAPACITY_MIB, Experience.of(table), traits=traits_of_table(table), most_together=3
    )
    assert belief.may_share([of(0), of(1)])
    assert belief.may_share([of(2), of(1)])
    assert not belief.may_share([of(2), of(2)])
    assert not belief.may_share([of(3), of(3)])
    assert not belief.may_share([of(3), of(2)])
    assert belief.may_share([of(4), of(4)])


def world(seed: int) -> TableWorld:
    """Return applications with random memory and phases that slow each other by hidden factors."""
    rng = np.random.default_rng(seed)
    profiles = [
        profile(
            f"app{at}",
            *(
                (float(s), float(m))
                for s, m in zip(rng.uniform(5, 60, 3), rng.uniform(0, 5500, 3), strict=True)
            ),
        )
        for at in range(6)
    ]
    speeds = rng.uniform(0.5, 1.0, (6, 6))
    return TableWorld(profiles, PairTable([one.application for one in profiles], speeds), CAPACITY_MIB)


def jobs(seed: int, n: int = 40, error: float = 0.2) -> list[SharingJob]:
    rng = np.random.default_rng(seed)
    return [
        SharingJob(
            int(rng.integers(6)),
            float(rng.uniform(10, 200)),
            float(at),
            float(rng.uniform(1 - error, 1 + error)),
        )
        for at in range(n)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_no_job_runs_out_of_memory_with_profiles_off_by_a_fifth(seed: int) -> None:
    true = world(seed)
    belief = LearnedBelief(true.profiles, CAPACITY_MIB, most_together=3)
    ran = simulate(true, jobs(seed), Trusting(belief), n_gpus=2, watcher=belief)
    assert ran.out_of_memory == 0
    assert ran.together > 1.1


def test_without_headroom_jobs_run_out_of_memory() -> None:
    killed = 0
    for seed in range(6):
        belief = LearnedBelief(
            world(seed).profiles, CAPACITY_MIB, headroom=Headroom(0.0, 0.0), most_together=3
        )
        killed += simulate(world(seed), jobs(seed), Trusting(belief), n_gpus=2).out_of_memory
    assert killed > 0


def test_observed_speeds_of_shared_jobs_are_used_afterwards() -> None:
    true = world(3)
    belief = LearnedBelief(true.profiles, CAPACITY_MIB)
    simulate(true, jobs(3, 80, 0.0), Trusting(belief), watcher=belief)
    belief.learn()
    met = [(one, *others) for one, others, _ in belief.experience.all_seen()]
    assert len(met) > 10
    for pair in met:
        assert belief.speeds(pair) == pytest.approx(true.table.together(pair))
    assert belief.headroom.part.errors > 30
    assert belief.headroom.part.value == pytest.approx(0.02)


def test_the_cap_holds_for_nearly_all_pairs_that_may_share() -> None:
    rng = np.random.default_rng(0)
    slowed = []
    for seed in range(4):
        true = world(seed)
        speeds = np.clip(true.table.speeds + 0.3, 0, 1) if isinstance(true.table, PairTable) else None
        assert speeds is not None
        names = [one.application for one in true.profiles]
        seen = {(i, (j,)): float(speeds[i, j]) for i in range(6) for j in range(6) if rng.random() < 0.7}
        table = Measured("card", tuple(names), (None,) * 6, seen)
        belief = LearnedBelief(
            true.profiles, 1e9, Experience.of(table), cap=1.1, traits=[Traits(name) for name in names]
        )
        for i in range(6):
            for j in range(6):
                if belief.may_share([of(i), of(j)]):
                    slowed.append(max(1 / speeds[i, j], 1 / speeds[j, i]))
    assert len(slowed) > 20
    assert np.mean(np.array(slowed) <= 1.1) >= 0.95


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_equal_input_gives_equal_beliefs(seed: int, most: int) -> None:
    true = world(seed % 5)
    first, second = (
        LearnedBelief(true.profiles, CAPACITY_MIB, headroom=Headroom(), most_together=most) for _ in "ab"
    )
    rng = np.random.default_rng(seed)
    group = [of(int(rng.integers(6)), float(rng.uniform(0.1, 100))) for _ in range(most)]
    assert first.may_share(group) == second.may_share(group) == first.may_share(group[::-1])


def test_traits_must_be_as_many_as_profiles() -> None:
    with pytest.raises(ValueError, match="2 profiles have 1 traits"):
        LearnedBelief([LIGHT, HEAVY], 1.0, traits=[Traits("a")])


def test_traits_come_from_a_profile() -> None:
    found = traits_of_profile(
        ApplicationProfile(
            "LAMMPS",
            "V100",
            (ProfilePhase(seconds=1, util=0.2), ProfilePhase(seconds=3, util=0.6, sm=0.1)),
            input_size=32000,
        )
    )
    assert (found.family, found.size) == ("LAMMPS", 32000)
    assert found.uses == (pytest.approx(0.5), pytest.approx(0.1), None)
