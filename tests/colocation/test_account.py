"""A planner with predictions is never slower than sequential runs if errors are as likely as assumed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.colocation.learned.dqngpu import DqnGpu
from slurm_gpu.colocation.planner import Member, PlannerGpu, PlannerView
from slurm_gpu.colocation.planners.account import Account, NeverSlower
from slurm_gpu.colocation.planners.greedy import Greedy
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import TableWorld
from slurm_gpu.colocation.tables.pair_table import PairTable
from tests.colocation.building import pairs, profile
from tests.colocation.learned.nets import any_scorer


class Rosy(KnownBelief):
    """A belief that overestimates every pair, but has correct lower bounds."""

    def __init__(self, true: TableWorld, speeds: np.ndarray) -> None:
        super().__init__(
            TableWorld(true.profiles, PairTable([one.application for one in true.profiles], speeds))
        )
        self._true = KnownBelief(true)

    def at_worst_s(self, members: list[Member]) -> float:  # type: ignore[override]
        return self._true.at_worst_s(members)


@given(st.data(), st.integers(0, 99), st.booleans())
def test_a_rosy_belief_costs_no_job_more_than_sharing_has_gained(
    data: st.DataObject, seed: int, is_learned: bool
) -> None:
    n = data.draw(st.integers(1, 4))
    rng = np.random.default_rng(seed)
    true = rng.uniform(0.05, 1.0, (n, n))
    profiles = [
        ApplicationProfile(f"app{i}", "card", (ProfilePhase(seconds=100.0, memory_mib=0.0),))
        for i in range(n)
    ]
    world = TableWorld(profiles, PairTable([one.application for one in profiles], true))
    belief = Rosy(world, np.clip(true + rng.uniform(0, 0.6, (n, n)), 0, 1))
    some = [
        SharingJob(one, work_s)
        for one, work_s in data.draw(
            st.lists(st.tuples(st.integers(0, n - 1), st.floats(1.0, 200.0)), min_size=1, max_size=8)
        )
    ]
    if is_learned:
        ran = simulate(world, some, DqnGpu(any_scorer(seed), belief, profiles, world.capacity_mib))
    else:
        ran = simulate(world, some, NeverSlower(Greedy, belief))
    assert ran.makespan_s <= sum(one.work_s for one in some) * (1 + 1e-6)


def test_at_most_the_gained_time_may_be_risked() -> None:
    world = pairs([[0.9, 0.4], [0.4, 0.9]], profile("a", (100.0, 0.0)), profile("b", (100.0, 0.0)))
    account = Account(KnownBelief(world))
    good, bad = (Member(0, 0, 90.0), Member(1, 0, 90.0)), (Member(2, 0, 100.0), Member(3, 1, 100.0))
    assert account.may(good)
    assert not account.may(bad)  # 250 s instead of 200
    account.update(PlannerView(0.0, bad, (PlannerGpu(good),)))
    account.update(PlannerView(100.0, bad, (PlannerGpu(),)))
    assert account.gained_s == pytest.approx(80)
    assert account.may(bad)
    assert account.may((Member(4, 0, 120.0), Member(5, 1, 120.0)))
    assert not account.may((Member(4, 0, 400.0), Member(5, 1, 400.0)))


def test_a_restarted_job_has_lost_its_work() -> None:
    world = pairs([[0.9]], profile("a", (100.0, 0.0)))
    account = Account(KnownBelief(world))
    one, other = Member(0, 0, 100.0), Member(1, 0, 100.0)
    account.update(PlannerView(0.0, (), (PlannerGpu((one, other)),)))
    account.update(PlannerView(50.0, (), (PlannerGpu((Member(0, 0, 55.0, 45.0), Member(1, 0, 55.0, 45.0))),)))
    assert account.gained_s == pytest.approx(40)
    account.update(
        PlannerView(50.0, (Member(1, 0, 100.0, killed=1),), (PlannerGpu((Member(0, 0, 55.0, 45.0),)),))
    )
    assert account.gained_s == pytest.approx(-5)


def test_jobs_on_gpus_missing_from_a_view_have_not_ended() -> None:
    world = pairs([[0.9, 0.4], [0.4, 0.9]], profile("a", (100.0, 0.0)), profile("b", (100.0, 0.0)))
    account = Account(KnownBelief(world))
    one, other = Member(0, 0, 100.0), Member(1, 0, 100.0)
    account.update(PlannerView(0.0, (), (PlannerGpu((one, other), "n1/0"), PlannerGpu((), "n2/0"))))
    account.update(
        PlannerView(0.0, (), (PlannerGpu((), "n2/0"),))
    )  # as slurm-gpuctld does once n1 has its next job
    account.update(PlannerView(10.0, (), (PlannerGpu((), "n2/0"),)))
    assert account.gained_s == 0
    assert not account.may((Member(2, 0, 100.0), Member(3, 1, 100.0)))
    later = tuple(Member(job, 0, 82.0, 18.0) for job in (0, 1))
    account.update(PlannerView(20.0, (), (PlannerGpu(later, "n1/0"), PlannerGpu((), "n2/0"))))
    assert account.gained_s == pytest.approx(36 - 20)


def test_a_stake_on_another_gpu_counts() -> None:
    world = pairs([[0.9, 0.4], [0.4, 0.9]], profile("a", (100.0, 0.0)), profile("b", (100.0, 0.0)))
    account = Account(KnownBelief(world))
    account.gained_s = 60.0
    bad = (Member(2, 0, 100.0), Member(3, 1, 100.0))
    assert account.may(bad)
    account.update(
        PlannerView(0.0, (), (PlannerGpu((Member(4, 0, 100.0), Member(5, 1, 100.0))), PlannerGpu()))
    )
    assert not account.may(bad)
