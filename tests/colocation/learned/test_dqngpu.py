"""Guarantees of the learned planner for any output of its net, and the value of its prices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from bench.colocation_workloads import THESIS_WORLD, thesis_jobs
from slurm_gpu.colocation.learned.co_runners import MARGIN
from slurm_gpu.colocation.learned.dqngpu import DqnGpu, GroupPlayer, scores
from slurm_gpu.colocation.learned.episodes import Episodes
from slurm_gpu.colocation.learned.play import likeliest, play
from slurm_gpu.colocation.learned.prices import FIRST_PRICE, refine
from slurm_gpu.colocation.learned.queues import draw_queues
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.outcome import SharingOutcome, SharingTransition
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from tests.colocation.building import jobs, pairs, profile, worlds
from tests.colocation.learned.nets import any_scorer, beliefs_of, by_price, light_and_heavy, planner


@given(st.data(), st.integers(0, 99), st.integers(1, 3))
def test_no_net_runs_out_of_memory_or_is_slower_than_one_job_after_the_other(
    data: st.DataObject, seed: int, most_together: int
):
    world = data.draw(worlds(phases=False))
    some = [SharingJob(one.application, one.work_s) for one in data.draw(jobs(world))]
    ran = simulate(world, some, planner(any_scorer(seed), world, most_together=most_together))
    assert ran.out_of_memory == 0
    assert ran.makespan_s <= sum(one.work_s for one in some) * (1 + 1e-9)
    assert ran.most_together <= most_together


@given(st.data(), st.integers(0, 99), st.integers(1, 3))
def test_memory_suffices_with_phases_later_jobs_and_several_gpus(data: st.DataObject, seed: int, n_gpus: int):
    world = data.draw(worlds())
    some = [SharingJob(one.application, one.work_s, one.submit_s) for one in data.draw(jobs(world))]
    ran = simulate(world, some, planner(any_scorer(seed), world, most_together=3), n_gpus=n_gpus)
    assert ran.out_of_memory == 0


@pytest.mark.parametrize("seed", range(3))
def test_under_a_cap_no_job_exceeds_it(seed: int):
    world, cap = light_and_heavy(), 1.10
    some = [SharingJob(number % 5, 60.0 + 7 * number) for number in range(25)]
    ran = simulate(world, some, planner(any_scorer(seed), world, cap=cap))
    assert ran.slowdown.max() <= cap + 1e-9
    assert ran.together > 1


@given(st.data(), st.integers(0, 99), st.integers(1, 3), st.integers(2, 3), st.floats(1.03, 3))
def test_under_a_cap_at_most_one_job_in_six_is_slowed(
    data: st.DataObject, seed: int, n_gpus: int, most_together: int, cap: float
):
    world = data.draw(worlds(phases=False))
    some = [SharingJob(one.application, one.work_s) for one in data.draw(jobs(world))]
    ours = planner(any_scorer(seed), world, most_together=most_together, cap=cap)
    ran = simulate(world, some, ours, n_gpus=n_gpus)
    assert (ran.slowdown > 1.02 + 1e-5).sum() <= len(some) / 6


def test_jobs_without_a_gain_do_not_share():
    world = pairs([[(1 + MARGIN) / 2 - 0.001]], profile("even", (60.0, 100.0)))
    ran = simulate(world, [SharingJob(0, 60.0)] * 4, planner(any_scorer(1), world))
    assert ran.most_together == 1


def test_idle_gpus_are_filled_before_jobs_share():
    world = light_and_heavy()
    ran = simulate(world, [SharingJob(0, 60.0)] * 3, planner(any_scorer(1), world), n_gpus=3)
    assert ran.most_together == 1
    assert ran.makespan_s == pytest.approx(60)


def co_runners(ran: SharingOutcome, job: int) -> set[int]:
    """Return the co-runners of a job."""
    running: set[int] = set()
    met: set[int] = set()
    for event in ran.log:
        if event.what is SharingTransition.START:
            running.add(event.job)
        elif event.what is SharingTransition.END:
            running.discard(event.job)
        if job in running:
            met |= running
    return met - {job}


def test_prices_keep_easy_partners_for_those_who_need_them():
    """Two light jobs run fast together, but the heavy ones would then disturb each other."""
    world = light_and_heavy()
    some = [SharingJob(0, 100.0), SharingJob(0, 100.0), SharingJob(2, 100.0), SharingJob(2, 100.0)]
    ran = simulate(world, some, planner(by_price(), world))
    assert 3 not in co_runners(ran, 2)
    assert ran.makespan_s < 215


def test_prices_are_about_those_of_the_linear_program():
    random = np.random.default_rng(3)
    n, gaps = 8, []
    for _ in range(5):
        speed = random.uniform(0.3, 1, (n, n)).astype(np.float32)
        work = random.uniform(50, 500, n).astype(np.float32)
        i, j = np.triu_indices(n)
        rows = np.zeros((len(i), n))
        np.add.at(rows, (np.arange(len(i)), i), speed[i, j])
        np.add.at(rows, (np.arange(len(i)), j), speed[j, i])
        exact = linprog(-work, A_ub=rows, b_ub=np.ones(len(i)), bounds=(0, 1), method="highs")
        price = np.full((1, n), FIRST_PRICE, dtype=np.float32)
        price = refine(speed, np.ones((1, n, n), np.float32), work[None], price, 64)[0]
        allowed = price / max(1.0, (rows @ price).max())
        gaps.append(1 - float(work @ allowed) / -exact.fun)
    assert max(gaps) < 0.1


def test_episodes_are_what_the_simulator_makes_of_the_same_decisions():
    world, net = light_and_heavy(), any_scorer(5)
    beliefs = beliefs_of(world)
    queues = draw_queues(beliefs, np.random.default_rng(2), 6)
    episodes = Episodes(beliefs, queues)
    play(episodes, GroupPlayer(len(episodes), beliefs), likeliest(lambda inputs: scores(net, inputs)))
    for row in range(len(queues)):
        some = [
            SharingJob(
                int(queues.place[row, at]), float(queues.work_s[row, at]), float(queues.submit_s[row, at])
            )
            for at in np.flatnonzero(queues.place[row] != beliefs.empty)
        ]
        ran = simulate(world, some, planner(net, world))
        assert episodes.now_s[row] == pytest.approx(ran.makespan_s, rel=1e-5)


def test_more_applications_than_the_net_has_inputs():
    names = [f"app{number}" for number in range(60)]
    speeds = np.random.default_rng(0).uniform(0.4, 1, (60, 60)).tolist()
    world = pairs(speeds, *(profile(name, (60.0, 100.0)) for name in names))
    some = [SharingJob(number % 60, 30.0 + number) for number in range(80)]
    ran = simulate(world, some, planner(by_price(), world))
    assert ran.makespan_s < 0.9 * sum(one.work_s for one in some)


def test_no_decision_waits_to_learn_how_fast_applications_are_together():
    class RecordingBelief(KnownBelief):
        def speeds(self, applications: tuple[int, ...]) -> tuple[float, ...]:
            asked.append(applications)
            return super().speeds(applications)

    asked: list[tuple[int, ...]] = []
    world = THESIS_WORLD
    ours = DqnGpu(by_price(), RecordingBelief(world, most_together=3), world.profiles, world.capacity_mib)
    before = set(asked)
    ran = simulate(world, thesis_jobs("random", 1, 20), ours)
    assert ran.most_together == 3
    assert {tuple(sorted(some)) for some in asked} == {tuple(sorted(some)) for some in before}
