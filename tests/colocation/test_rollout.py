"""The predicted result of a plan is the real one if the beliefs are true."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.colocation.planner import Member, PlannerView, Start
from slurm_gpu.colocation.planners.rollout import Rollout
from slurm_gpu.colocation.planners.search import HOT, Consideration, OrderSearch
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import TableWorld, World
from tests.colocation.building import jobs, worlds


class InOrder:
    """Starts jobs in the order of their numbers, as a rollout of that order does."""

    name = "in order"

    def __init__(self, belief: KnownBelief, apart: list[bool]) -> None:
        self._belief, self._apart = belief, apart

    def choose(self, view: PlannerView) -> list[Start]:
        rollout = Rollout(self._belief, view.waiting, [gpu.running for gpu in view.gpus], [[0.0] * 9], 0.0)
        rollout.apart = [self._apart[member.job] for member in view.waiting]
        n = rollout.starts(0, range(len(view.waiting)))
        return [Start(0, tuple(member.job for member in view.waiting[:n]))] if n else []


@st.composite
def worlds_of_speeds(draw: st.DrawFn) -> World:
    """Draw any speeds; all jobs fit into memory together, because fits would otherwise change over time."""
    world = draw(worlds(phases=False))
    assert isinstance(world, TableWorld)
    profiles = [
        ApplicationProfile(one.application, one.gpu_model, (ProfilePhase(seconds=9.0),))
        for one in world.profiles
    ]
    return TableWorld(profiles, world.table)


def rolled(belief: KnownBelief, some: list[SharingJob]) -> Rollout:
    members = [Member(number, job.application, job.work_s) for number, job in enumerate(some)]
    return Rollout(belief, members, [()], [[]], 0.0)


@given(data=st.data(), most=st.integers(1, 3))
def test_the_predicted_end_of_an_order_matches_the_simulator(data: st.DataObject, most: int) -> None:
    world = data.draw(worlds_of_speeds())
    some = [SharingJob(job.application, job.work_s) for job in data.draw(jobs(world))]
    apart = data.draw(st.lists(st.booleans(), min_size=len(some), max_size=len(some)))
    belief = KnownBelief(world, most_together=most)
    rollout = rolled(belief, some)
    rollout.apart = apart
    end_s = rollout.end_s(0, range(len(some)))
    ran = simulate(world, some, InOrder(belief, apart))
    assert end_s == pytest.approx(ran.makespan_s)
    assert rollout.took_s == pytest.approx((ran.end_s - ran.start_s).tolist())


@given(data=st.data(), n_gpus=st.integers(1, 3), allowed=st.integers(-1, 2), seed=st.integers(0, 9))
def test_a_search_loses_no_job_and_is_no_worse_than_what_it_began_with(
    data: st.DataObject, n_gpus: int, allowed: int, seed: int
) -> None:
    world = data.draw(worlds_of_speeds())
    some = data.draw(jobs(world))
    members = [Member(number, job.application, job.work_s) for number, job in enumerate(some)]
    rollout = Rollout(KnownBelief(world), members, [()] * n_gpus, [[]] * n_gpus, 0.0)
    orders = [list(range(gpu, len(some), n_gpus)) for gpu in range(n_gpus)]
    before_s = [rollout.end_s(gpu, order) for gpu, order in enumerate(orders)]
    consideration = None if allowed < 0 else Consideration(100.0, allowed)
    better = OrderSearch(rollout, orders, consideration).anneal(200, HOT, random.Random(seed))
    assert sorted(one for order in better for one in order) == list(range(len(some)))
    if consideration is None:
        after_s = [rollout.end_s(gpu, order) for gpu, order in enumerate(better)]
        assert (
            max(after_s) + 0.1 * sum(after_s) / n_gpus <= max(before_s) + 0.1 * sum(before_s) / n_gpus + 1e-9
        )
