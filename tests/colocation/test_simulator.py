"""Simulated sharing of GPUs, compared with results computed by hand: speeds, kills and ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from slurm_gpu.colocation.planner import Member, PlannerView, Start
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.simulation.known_belief import KnownBelief, over_phases
from slurm_gpu.colocation.simulation.outcome import SharingTransition
from slurm_gpu.colocation.simulation.sharing import look_ahead
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import TableWorld
from slurm_gpu.colocation.tables.pair_table import PairTable
from tests.colocation.building import OneAtATime, PhaseWorld, Reckless, Replay, Trusting, pairs, profile


class AllAtOnce:
    name = "all at once"

    def choose(self, view: PlannerView) -> list[Start]:
        return [Start(0, tuple(one.job for one in view.waiting))]


class Stubborn:
    name = "stubborn"

    def __init__(self, answer: list[Start]) -> None:
        self._answer = answer

    def choose(self, view: PlannerView) -> list[Start]:
        return self._answer


SMALL = profile("small", (100, 1000))


def test_each_runs_at_its_speed_until_the_other_ends_and_then_as_fast_as_alone() -> None:
    world = pairs([[0.5, 0.8], [0.4, 0.5]], SMALL, SMALL)
    ran = simulate(world, [SharingJob(0, 40.0), SharingJob(1, 40.0)], AllAtOnce())
    # 40 s of work at 0.8 take 50 s; the other has done 20 s by then, and needs 20 s more.
    assert ran.end_s.tolist() == pytest.approx([50.0, 70.0])
    assert ran.slowdown.tolist() == pytest.approx([1.25, 1.75])
    assert ran.together == pytest.approx((2 * 50 + 20) / 70)
    assert ran.utilisation == pytest.approx((50 * (0.5 * 0.8 + 0.5 * 0.4) + 20 * 0.5) / 70)
    assert ran.memory == pytest.approx((2000 * 50 + 1000 * 20) / 70 / 12000)
    assert ran.memory_peak_mib == 2000


def test_a_new_phase_of_one_changes_the_speed_of_both() -> None:
    one = profile("one", (10, 0), (10, 0))
    table = pairs([[1.0]], one).table
    ran = simulate(PhaseWorld([one], table), [SharingJob(0, 20.0), SharingJob(0, 20.0)], AllAtOnce())
    # After 10 s, both enter their second phase, in which they run at half speed.
    assert ran.end_s.tolist() == pytest.approx([30.0, 30.0])
    assert [event.at_s for event in ran.log if event.what is SharingTransition.PHASE] == [10.0, 10.0]


def test_work_beyond_the_profile_stays_in_its_last_phase_and_less_of_it_ends_within() -> None:
    world = pairs([[1.0]], profile("one", (10, 100), (10, 200)))
    for work_s, peak_mib in ((5.0, 100), (10.0, 100), (15.0, 200), (100.0, 200)):
        ran = simulate(world, [SharingJob(0, work_s)], OneAtATime())
        assert (ran.makespan_s, ran.memory_peak_mib) == (pytest.approx(work_s), peak_mib)


def test_memory_that_runs_out_in_a_later_phase_kills_who_started_last_which_restarts() -> None:
    grows = profile("grows", (10, 1000), (10, 9000))
    world = pairs([[1, 1], [1, 1]], grows, profile("steady", (100, 5000)))
    ran = simulate(world, [SharingJob(0, 20.0), SharingJob(1, 100.0)], AllAtOnce(), requeue_s=30.0)
    assert [(event.at_s, event.what) for event in ran.log if event.job == 1] == [
        (0.0, SharingTransition.SUBMIT),
        (0.0, SharingTransition.START),
        (10.0, SharingTransition.OUT_OF_MEMORY),
        (40.0, SharingTransition.REQUEUE),
        (40.0, SharingTransition.START),
        (140.0, SharingTransition.END),
    ]
    assert ran.kills.tolist() == [0, 1]
    assert ran.slowdown.tolist() == pytest.approx([1.0, 1.0])  # of the run that counted
    assert ran.wait_s.tolist() == [0.0, 0.0]
    assert ran.end_s.tolist() == [20.0, 140.0]
    assert ran.placements == 3


def test_a_pair_with_speed_0_counts_as_out_of_memory() -> None:
    world = pairs([[0.0]], SMALL)
    ran = simulate(world, [SharingJob(0, 100.0), SharingJob(0, 100.0)], AllAtOnce())
    assert ran.out_of_memory == 4  # at 0, 30, 60 and 90 s
    assert ran.makespan_s == pytest.approx(220.0)


def test_jobs_own_memory_may_differ_from_their_applications() -> None:
    world = pairs([[1.0]], profile("one", (100, 5500)))
    assert simulate(world, [SharingJob(0, 100.0)] * 2, AllAtOnce()).out_of_memory == 0
    larger = SharingJob(0, 100.0, memory_factor=1.2)
    assert simulate(world, [larger] * 2, AllAtOnce()).out_of_memory > 0
    planner = Trusting(KnownBelief(world, headroom=0.2))
    assert simulate(world, [larger] * 2, planner).out_of_memory == 0


class Strict:
    """A guard that requeues the given job."""

    after_s = 20.0

    def __init__(self, job: int) -> None:
        self._job, self.checked = job, 0

    def requeues(self, members: Sequence[Member]) -> int | None:
        self.checked += 1
        return self._job if any(one.job == self._job for one in members) else None


def test_a_guard_checks_a_shared_gpu_once_and_requeues_a_job_that_then_restarts() -> None:
    world = pairs([[0.5]], SMALL)
    jobs, guard = [SharingJob(0, 100.0), SharingJob(0, 50.0)], Strict(1)
    ran = simulate(world, jobs, AllAtOnce(), guard=guard, requeue_s=30.0)
    # Job 0 loses 10 s in each trial of 20 s, and job 1 returns 30 s after each.
    assert [event.at_s for event in ran.log if event.what is SharingTransition.SEPARATED] == [
        20.0,
        70.0,
        120.0,
    ]
    assert ran.end_s.tolist() == pytest.approx([130.0, 200.0])
    tolerant = Strict(7)
    kept = simulate(world, jobs, AllAtOnce(), guard=tolerant)
    assert (kept.separations.tolist(), tolerant.checked) == ([0, 0], 1)
    assert kept.end_s.tolist() == pytest.approx(simulate(world, jobs, AllAtOnce()).end_s.tolist())


def test_a_job_starts_only_after_its_submission() -> None:
    world = pairs([[1.0]], SMALL)
    ran = simulate(world, [SharingJob(0, 10.0, submit_s=50.0), SharingJob(0, 10.0)], OneAtATime())
    assert ran.start_s.tolist() == [50.0, 0.0]
    assert ran.makespan_s == 60.0


def test_unknown_use_is_a_gap_and_no_zero() -> None:
    world = TableWorld(
        [ApplicationProfile("one", "card", (ProfilePhase(seconds=10),))],
        PairTable(["one"], np.ones((1, 1))),
        math.inf,
    )
    ran = simulate(world, [SharingJob(0, 10.0)] * 2, AllAtOnce())
    assert (ran.utilisation, ran.memory, ran.memory_peak_mib) == (None, None, None)
    assert ran.out_of_memory == 0


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ([], "planner stubborn starts nothing at 0 s, while 2 jobs wait and every GPU is idle"),
        ([Start(3, (0,))], "on GPU 3, but indices end at 0"),
        ([Start(0, (7,))], "starts job 7, which is not waiting"),
        ([Start(0, (0, 0))], "starts job 0, which is not waiting"),
        ([Start(0, ())], "starts no job on GPU 0"),
    ],
)
def test_an_invalid_start_is_an_error_that_names_the_planner(answer: list[Start], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as error:
        simulate(pairs([[1.0]], SMALL), [SharingJob(0, 10.0)] * 2, Stubborn(answer))
    assert "planner stubborn" in str(error.value)


@pytest.mark.parametrize(
    ("job", "complaint"),
    [
        (SharingJob(1, 10.0), "job 0 has application 1, but indices end at 0"),
        (SharingJob(0, 0.0), "job 0 has work_s 0.0"),
        (SharingJob(0, math.nan), "job 0 has work_s nan"),
        (SharingJob(0, 1.0, math.inf), "job 0 has submit_s inf"),
        (SharingJob(0, 1.0, memory_factor=-1), "job 0 has memory_factor -1"),
        (SharingJob(0, 10.0, memory_factor=13), "job 0 needs more memory than an empty GPU has: 12000 MiB"),
    ],
)
def test_jobs_that_cannot_be_are_errors_that_name_them(job: SharingJob, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        simulate(pairs([[1.0]], SMALL), [job], OneAtATime())


def test_an_outcome_of_no_jobs_is_empty() -> None:
    ran = simulate(pairs([[1.0]], SMALL), [], Stubborn([]))
    assert (ran.makespan_s, ran.placements, ran.log) == (0.0, 0, ())


def test_a_true_belief_predicts_when_memory_becomes_free() -> None:
    peaks = profile("peaks", (10, 9000), (90, 1000))
    world = pairs([[1, 1], [1, 1]], peaks, profile("steady", (100, 5000)))
    belief = KnownBelief(world)
    steady = Member(1, 1, 100.0)
    assert not belief.may_share([Member(0, 0, 100.0), steady])
    assert belief.may_share([Member(0, 0, 85.0, done_s=15.0), steady])
    assert look_ahead(world, [Member(0, 0, 100.0), steady]) is None


def test_the_cap_and_the_number_of_jobs_decide_who_may_share() -> None:
    world = pairs([[0.95, 0.8], [0.95, 0.95]], SMALL, SMALL)
    a, b = Member(0, 0, 100.0), Member(1, 1, 100.0)
    assert KnownBelief(world).may_share([a, b])
    assert not KnownBelief(world, cap=1.1).may_share([a, b])
    assert KnownBelief(world, cap=1.1).may_share([b, b])
    assert not KnownBelief(world).may_share([b, b, b])
    assert KnownBelief(world, most_together=3).may_share([b, b, b])
    assert KnownBelief(world, most_together=1).may_share([a])


class Alarmed:
    """A planner that requests a call at a given time and starts a job then."""

    name = "alarmed"

    def __init__(self, wake_s: float) -> None:
        self.wake_s = wake_s
        self.asked_s: list[float] = []

    def choose(self, view: PlannerView) -> list[Start]:
        self.asked_s.append(view.now_s)
        if not view.gpus[0].running or view.now_s == self.wake_s:
            self.wake_s = math.inf if view.now_s > 0 else self.wake_s
            return [Start(0, (view.waiting[0].job,))] if view.waiting else []
        return []


def test_a_planner_is_called_at_its_requested_time() -> None:
    planner = Alarmed(30.0)
    ran = simulate(pairs([[1.0]], SMALL), [SharingJob(0, 100.0)] * 2, planner)
    assert ran.start_s.tolist() == [0.0, 30.0]
    assert planner.asked_s == [0.0, 0.0, 30.0]
    again = simulate(pairs([[1.0]], SMALL), [SharingJob(0, 100.0)] * 2, Replay(ran.log))
    assert again.log == ran.log


def test_a_time_that_is_not_to_come_is_an_error() -> None:
    class Late(OneAtATime):
        wake_s = 0.0

    with pytest.raises(ValueError, match="planner one at a time requests its next call at 0 s, which is not"):
        simulate(pairs([[1.0]], SMALL), [SharingJob(0, 100.0)] * 2, Late())


def test_members_have_their_elapsed_and_lost_time() -> None:
    seen: list[Member] = []

    class RecordingPlanner(AllAtOnce):
        def choose(self, view: PlannerView) -> list[Start]:
            seen.extend(one for gpu in view.gpus for one in gpu.running)
            return super().choose(view)

    world = pairs([[0.5]], SMALL)
    some = [SharingJob(0, 20.0), SharingJob(0, 20.0), SharingJob(0, 10.0, submit_s=10.0)]
    simulate(world, some, RecordingPlanner())
    assert [(one.done_s, one.ran_s, one.lost_s) for one in seen if one.done_s][:1] == [(5.0, 10.0, 5.0)]


def test_speeds_over_phases_weigh_each_by_its_time() -> None:
    half_odd = profile("half odd", (50, 0), (50, 0))
    world = PhaseWorld([half_odd], pairs([[1.0]], half_odd).table)
    # In its odd phase, a job meets the odd phase of the other half of the time: (1 + 0.5) / 2.
    assert over_phases(world, (0, 0)) == pytest.approx((100 / (50 + 50 / 0.75),) * 2)
    assert over_phases(world, (0,)) == (1.0,)


def test_reckless_planners_are_reproducible_by_their_seed() -> None:
    world = pairs([[0.6]], profile("one", (30, 3000), (30, 7000)))
    jobs = [SharingJob(0, 60.0)] * 6
    logs = [simulate(world, jobs, Reckless(seed, 3), n_gpus=2).log for seed in (1, 1, 2)]
    assert logs[0] == logs[1] != logs[2]
