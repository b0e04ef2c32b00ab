"""Pairs with unknown speeds share a GPU for a trial only if a failure would leave them within the cap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.colocation_trial_belief import TrialBelief
from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.profiles.traits import Floats
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import TableWorld
from slurm_gpu.colocation.tables.pair_table import PairTable
from slurm_gpu.colocation.trials import TrialRules, slowdowns

from .building import Trusting

CAP = 1.1
MOST = 1.15
_ROUNDING = 1e-6


def world_of(speeds: Sequence[Sequence[float]] | Floats) -> TableWorld:
    names = [f"app{number}" for number in range(len(speeds))]
    profiles = [ApplicationProfile(name, "card", (ProfilePhase(seconds=600.0),)) for name in names]
    return TableWorld(profiles, PairTable(names, np.array(speeds)))


def belief_of(
    world: TableWorld, chance: float = 0.9, mean: float = 0.95, lower: float = 0.92, cap: float = CAP
) -> TrialBelief:
    """Return a belief with the same prediction for all pairs."""
    n = len(world.profiles)
    matrices = [np.full((n, n), value) for value in (mean, lower, chance)]
    return TrialBelief(world, *matrices, most_together=2, cap=cap)


GOOD = world_of([[0.95, 0.95], [0.92, 0.95]])
BAD = world_of([[0.9, 0.5], [0.6, 0.9]])


def test_observed_speeds_of_pairs_replace_predictions() -> None:
    belief = belief_of(BAD)
    members = [Member(0, 0, 300.0), Member(1, 1, 300.0)]
    assert belief.may_share(members)
    simulate(BAD, [SharingJob(0, 300.0), SharingJob(1, 300.0)], Trusting(belief), watcher=belief)
    assert belief.speeds((0, 1)) == pytest.approx((0.5, 0.6))
    assert belief.speeds((0, 0)) == pytest.approx((0.95, 0.95))
    assert not belief.may_share(members)
    belief.ran_out(0, 0.0, [members[0], members[0]], members[0])
    assert belief.speeds((0, 0)) == (0, 0)


def test_an_unknown_pair_is_tried_if_the_likely_gain_exceeds_the_likely_loss() -> None:
    short, long = Member(0, 0, 30.0), Member(1, 1, 300.0)
    assert belief_of(GOOD, chance=0.9).may_share([long, short])
    doubtful = belief_of(GOOD, chance=0.5)
    assert not doubtful.may_share([long, short])
    assert doubtful.may_share([long, replace(short, left_s=200.0)])


def test_a_job_that_cannot_bear_a_failed_trial_is_in_none() -> None:
    belief = belief_of(GOOD)
    newcomer = Member(1, 1, 300.0)
    running = Member(0, 0, 150.0, done_s=50.0, ran_s=50.0)
    assert belief.may_share([running, newcomer])
    # The job has already lost 15 of the 20 s that it may lose, and a trial without any progress takes 20 s.
    assert not belief.may_share([replace(running, ran_s=65.0), newcomer])
    assert not belief.may_share([running, replace(newcomer, killed=1)])


def test_the_lower_end_of_the_interval_limits_what_a_job_can_bear() -> None:
    running, newcomer = Member(0, 0, 150.0), Member(1, 1, 140.0)
    assert belief_of(GOOD, lower=0.5).may_share([running, newcomer])
    # At 0.2 of its speed, the job would lose 16 s in a trial of 20 s, but the cap permits only 15 s.
    assert not belief_of(GOOD, lower=0.2).may_share([running, newcomer])


def test_a_newcomer_bears_the_trial_if_a_job_may_end_first() -> None:
    """A newcomer whose co-runner ends is not requeued, and could lose most of a short run."""
    assert not belief_of(GOOD, chance=0.99).may_share([Member(0, 0, 600.0), Member(1, 1, 10.0)])
    ends, stays = (Member(0, 0, left_s, done_s=300.0, ran_s=300.0) for left_s in (15.0, 25.0))
    newcomer = Member(1, 1, 60.0)
    assert belief_of(GOOD, chance=0.99).may_share([stays, newcomer])
    assert not belief_of(GOOD, chance=0.99).may_share([ends, newcomer])
    assert belief_of(GOOD, chance=0.99).may_share([ends, replace(newcomer, left_s=200.0)])


def test_only_pairs_are_tried() -> None:
    three = [Member(number, 0, 300.0) for number in range(3)]
    assert TrialRules(CAP).may_try(three[:2], [0.95] * 2, [0.9] * 2, 0.9, 20.0)
    assert not TrialRules(CAP).may_try(three, [0.95] * 3, [0.9] * 3, 0.9, 20.0)


def test_under_another_cap_jobs_bear_more() -> None:
    short = Member(0, 0, 100.0)
    assert [TrialRules(cap).can_bear(short, 20.0, 0.9) for cap in (1.1, 1.2)] == [False, True]


def test_a_pair_that_exceeds_the_cap_is_separated_and_runs_apart() -> None:
    belief = belief_of(BAD)
    jobs = [SharingJob(0, 300.0), SharingJob(1, 200.0)]
    ran = simulate(BAD, jobs, Trusting(belief), watcher=belief, guard=belief)
    # After 20 s at 0.5, job 0 has 290 s left. The shorter job restarts when the longer one has ended.
    assert ran.separations.tolist() == [0, 1]
    assert ran.end_s.tolist() == pytest.approx([310.0, 510.0])
    assert ran.slowdown.tolist() == pytest.approx([310 / 300, 1.0])


def test_a_pair_that_keeps_the_cap_is_not_separated() -> None:
    belief = belief_of(GOOD)
    jobs = [SharingJob(0, 300.0), SharingJob(1, 200.0)]
    ran = simulate(GOOD, jobs, Trusting(belief), watcher=belief, guard=belief)
    assert ran.separations.tolist() == [0, 0]
    assert belief.speeds((0, 1)) == pytest.approx((0.95, 0.92))
    assert max(ran.slowdown) <= CAP


def test_the_slowdown_of_a_whole_run_includes_time_that_was_lost_before() -> None:
    members = [Member(0, 0, 100.0, done_s=100.0, ran_s=110.0), Member(1, 1, 50.0)]
    speeds = {(0, 1): (0.8, 0.5), (0,): (1.0,), (1,): (1.0,)}
    # Job 1 takes 100 s, in which job 0 does 80 s of its work.
    assert slowdowns(members, speeds.__getitem__) == pytest.approx([(110 + 120) / 200, 2.0])
    assert slowdowns(members, lambda some: (0.0,) * len(some)) == [math.inf, math.inf]


@st.composite
def unknown_pairs(draw: st.DrawFn, *, is_below: bool) -> tuple[TableWorld, TrialBelief, list[SharingJob]]:
    """Draw true and predicted speeds; with `is_below`, every lower bound is below the true speed."""
    n = draw(st.integers(1, 4))

    def matrix(least: float, most: float) -> Floats:
        row = st.lists(st.floats(least, most), min_size=n, max_size=n)
        return np.array(draw(st.lists(row, min_size=n, max_size=n)))

    true, mean = matrix(0.05, 1.0), matrix(0.5, 1.0)
    lower = true * matrix(0.3, 1.0) if is_below else mean * matrix(0.3, 1.0)
    world = world_of(true)
    belief = TrialBelief(world, mean, np.maximum(lower, 0.02), matrix(0.0, 1.0), most_together=2, cap=CAP)
    job = st.builds(
        SharingJob,
        application=st.integers(0, n - 1),
        work_s=st.floats(1.0, 2000.0),
        submit_s=st.sampled_from((0.0, 0.0, 40.0, 300.0)),
    )
    return world, belief, draw(st.lists(job, min_size=1, max_size=12))


@settings(deadline=None, max_examples=150)
@given(unknown_pairs(is_below=False), st.integers(1, 2))
def test_no_job_is_slowed_down_much_even_if_all_predictions_are_wrong(
    drawn: tuple[TableWorld, TrialBelief, list[SharingJob]], n_gpus: int
) -> None:
    world, belief, jobs = drawn
    ran = simulate(world, jobs, Trusting(belief), n_gpus=n_gpus, watcher=belief, guard=belief)
    assert max(ran.slowdown) <= MOST + _ROUNDING


@settings(deadline=None, max_examples=150)
@given(unknown_pairs(is_below=True), st.integers(1, 2))
def test_every_job_keeps_the_cap_if_no_speed_is_below_its_interval(
    drawn: tuple[TableWorld, TrialBelief, list[SharingJob]], n_gpus: int
) -> None:
    world, belief, jobs = drawn
    ran = simulate(world, jobs, Trusting(belief), n_gpus=n_gpus, watcher=belief, guard=belief)
    assert max(ran.slowdown) <= CAP + _ROUNDING


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_with_calibrated_intervals_95_percent_of_jobs_keep_the_cap(seed: int) -> None:
    """Errors have a standard deviation of 0.08, so one speed in twenty is below its interval."""
    rng = np.random.default_rng(seed)
    n, deviation = 12, 0.08
    slowdown: list[float] = []
    for _ in range(5):
        true = rng.uniform(0.5, 1.0, (n, n))
        mean = np.clip(true + rng.normal(0.0, deviation, (n, n)), 0.02, 1.0)
        lower = np.clip(mean - 1.645 * deviation, 0.02, 1.0)
        within = [[0.5 * (1 + math.erf((one - 1 / CAP) / deviation / 2**0.5)) for one in row] for row in mean]
        world = world_of(true)
        belief = TrialBelief(world, mean, lower, np.array(within), most_together=2, cap=CAP)
        jobs = [SharingJob(int(rng.integers(n)), float(rng.uniform(60, 3600))) for _ in range(30)]
        ran = simulate(world, jobs, Trusting(belief), watcher=belief, guard=belief)
        slowdown += ran.slowdown.tolist()
    assert max(slowdown) <= MOST + _ROUNDING
    assert np.mean(np.array(slowdown) <= CAP + _ROUNDING) >= 0.95
