"""Orders of starts by phases: predictions match the simulation, and starts need not wait for ends."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_gpu.colocation.planner import Member, PlannerView, Start
from slurm_gpu.colocation.planners.annealing import Annealing
from slurm_gpu.colocation.planners.phased import PhasedRollout
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import TableWorld
from slurm_gpu.colocation.tables.pair_table import PairTable
from tests.colocation.building import CAPACITY_MIB, PhaseWorld, jobs, pairs, profile, worlds

LEAST_GAIN = 0.0


class InOrder:
    """Starts jobs in the order of their numbers, as a rollout of that order predicts."""

    name = "in order"

    def __init__(self, belief: KnownBelief) -> None:
        self._belief, self.wake_s, self.was_refused = belief, math.inf, False

    def choose(self, view: PlannerView) -> list[Start]:
        self.wake_s = math.inf
        if not view.waiting:
            return []
        here = view.gpus[0].running
        rollout = PhasedRollout(self._belief, view.waiting, [here], [[one.ran_s for one in here]], LEAST_GAIN)
        order = range(len(view.waiting))
        n = rollout.starts(0, order)
        if n:
            return [Start(0, tuple(one.job for one in view.waiting[:n]))]
        took_s = rollout.wakes_s(0, order)
        self.was_refused |= took_s < 1e-3
        self.wake_s = view.now_s + max(took_s, 1e-3)
        return []


@given(data=st.data(), most=st.integers(1, 3), cap=st.sampled_from((math.inf, 1.1, 1.5)))
def test_the_predicted_end_of_an_order_matches_the_simulator(
    data: st.DataObject, most: int, cap: float
) -> None:
    world = data.draw(worlds())
    some = [SharingJob(job.application, job.work_s) for job in data.draw(jobs(world))]
    belief = KnownBelief(world, most_together=most, cap=cap)
    members = [Member(number, job.application, job.work_s) for number, job in enumerate(some)]
    rollout = PhasedRollout(belief, members, [()], [[]], LEAST_GAIN)
    end_s = rollout.end_s(0, range(len(some)))
    planner = InOrder(belief)
    ran = simulate(world, some, planner)
    assert ran.out_of_memory == 0
    assert ran.slowdown.max() <= cap * (1 + 1e-6)
    assume(not planner.was_refused)  # fits are not predicted to the last digit of a second
    assert end_s == pytest.approx(ran.makespan_s, abs=0.1)
    assert rollout.took_s == pytest.approx((ran.end_s - ran.start_s).tolist(), abs=0.1)


# Only the application's own short first phase can run with its long second phase.
LOADS = profile("loads", (10.0, CAPACITY_MIB / 3), (90.0, CAPACITY_MIB * 0.6))
LOADING = pairs([[1.0]], LOADS)


def test_a_job_may_load_while_the_previous_one_ends() -> None:
    some = [SharingJob(0, 100.0)] * 5
    ran = simulate(LOADING, some, Annealing(KnownBelief(LOADING), evaluations=200))
    assert ran.makespan_s == pytest.approx(5 * 100 - 4 * 10, abs=0.5)
    assert ran.out_of_memory == 0


def test_jobs_may_load_early_also_with_a_cap_and_several_gpus() -> None:
    some = [SharingJob(0, 100.0)] * 6
    ran = simulate(LOADING, some, Annealing(KnownBelief(LOADING, cap=1.1), evaluations=200), n_gpus=2)
    assert ran.makespan_s == pytest.approx(3 * 100 - 2 * 10, abs=0.5)


HALF = PhaseWorld(  # the second halves of two take twice as long together
    [profile("half", (50.0, 0.0), (50.0, 0.0))], PairTable(["half"], pairs([[1.0]], LOADS).table.speeds)
)


def test_a_partner_is_put_off_until_the_cap_is_kept() -> None:
    # If both started together, each would lose 50 s of 100. If the second starts after 40 s, each loses only
    # 10 s, in the last 20 s.
    ran = simulate(
        HALF, [SharingJob(0, 100.0)] * 2, Annealing(KnownBelief(HALF, cap=1.1), evaluations=200, slowed=1.0)
    )
    assert ran.slowdown.max() <= 1.1 + 1e-9
    assert ran.makespan_s == pytest.approx(150, abs=11)
    assert sorted(ran.start_s.tolist())[1] == pytest.approx(45, abs=6)


def test_under_a_cap_no_more_than_a_sixth_is_slowed_down() -> None:
    ran = simulate(HALF, [SharingJob(0, 100.0)] * 12, Annealing(KnownBelief(HALF, cap=1.1), evaluations=400))
    assert (ran.slowdown > 1.02).sum() <= 2
    assert ran.makespan_s < 12 * 100 * 0.65


def test_profiles_without_phases_are_planned_by_whole_runs() -> None:
    even = TableWorld(
        [ApplicationProfile("even", "card", (ProfilePhase(seconds=9.0),))],
        PairTable(["even"], HALF._table.speeds),
    )
    planner = Annealing(KnownBelief(even))
    simulate(even, [SharingJob(0, 9.0)] * 3, planner)
    assert planner.wake_s == math.inf
