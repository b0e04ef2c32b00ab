"""Properties of every world, all jobs and any planner, checked by independent accounting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.outcome import SharingTransition
from slurm_gpu.colocation.simulation.sharing import SharingStretch
from slurm_gpu.colocation.simulation.simulator import simulate
from tests.colocation.building import CAPACITY_MIB, OneAtATime, Reckless, Replay, Trusting, jobs, worlds


class Books:
    """An observer that records all stretches and kills."""

    def __init__(self) -> None:
        self.stretches: list[SharingStretch] = []
        self.kills: list[tuple[float, Member, Sequence[Member]]] = []

    def ran(self, stretch: SharingStretch) -> None:
        self.stretches.append(stretch)

    def ran_out(self, gpu: int, at_s: float, together: Sequence[Member], killed: Member) -> None:
        self.kills.append((at_s, killed, together))


@given(st.data(), st.integers(0, 99), st.integers(1, 3), st.integers(1, 4))
def test_work_is_conserved_memory_kept_and_no_job_faster_than_alone(
    data: st.DataObject, seed: int, n_gpus: int, most: int
) -> None:
    world = data.draw(worlds())
    some = data.draw(jobs(world))
    books = Books()
    ran = simulate(world, some, Reckless(seed, most), n_gpus=n_gpus, watcher=books)

    done: dict[int, float] = defaultdict(float)
    busy_until = [-np.inf] * n_gpus
    for stretch in books.stretches:
        assert busy_until[stretch.gpu] <= stretch.from_s < stretch.to_s
        busy_until[stretch.gpu] = stretch.to_s
        memory_mib = 0.0
        for one in stretch.ran:
            phases = world.profiles[one.application].phases
            memory_mib += (phases[one.phase].memory_mib or 0) * some[one.job].memory_factor
            assert 0 < one.speed <= 1
            if stretch.from_s >= ran.start_s[one.job]:
                done[one.job] += one.speed * (stretch.to_s - stretch.from_s)
        assert stretch.memory_mib == pytest.approx(memory_mib)
        assert memory_mib <= CAPACITY_MIB
        running = tuple((one.application, one.phase) for one in stretch.ran)
        if len(running) > 1:
            assert [one.speed for one in stretch.ran] == list(world.speeds(running))
    for number, job in enumerate(some):
        assert done[number] == pytest.approx(job.work_s)
        assert ran.slowdown[number] >= 1 - 1e-9
        assert ran.submit_s[number] <= ran.first_start_s[number] <= ran.start_s[number] < ran.end_s[number]
    assert ran.out_of_memory == len(books.kills)
    for _, killed, together in books.kills:
        assert together[-1] == killed
        assert len(together) > 1
    assert ran.placements == len(some) + ran.out_of_memory


@given(st.data(), st.integers(0, 99), st.integers(1, 2))
def test_the_same_seed_gives_the_same_log_and_the_log_played_again_gives_itself(
    data: st.DataObject, seed: int, n_gpus: int
) -> None:
    world = data.draw(worlds())
    some = data.draw(jobs(world))
    ran = simulate(world, some, Reckless(seed, 3), n_gpus=n_gpus)
    again = simulate(world, some, Reckless(seed, 3), n_gpus=n_gpus)
    replayed = simulate(world, some, Replay(ran.log), n_gpus=n_gpus)
    assert ran.log == again.log == replayed.log
    assert ran.utilisation == again.utilisation
    # The log does not show which starts were chosen together, so the GPUs' times may be added in a different
    # order.
    assert replayed.utilisation == pytest.approx(ran.utilisation, rel=1e-12)
    assert ran.memory_peak_mib == replayed.memory_peak_mib


@given(st.data())
def test_one_at_a_time_takes_the_sum_of_the_times_alone(data: st.DataObject) -> None:
    world = data.draw(worlds())
    some = [type(job)(job.application, job.work_s) for job in data.draw(jobs(world))]
    ran = simulate(world, some, OneAtATime())
    assert ran.makespan_s == pytest.approx(sum(job.work_s for job in some))
    assert ran.slowdown == pytest.approx(np.ones(len(some)))
    assert (ran.together, ran.most_together) == (pytest.approx(1), 1)


@given(st.data(), st.integers(1, 2), st.integers(1, 4))
def test_with_true_beliefs_no_job_runs_out_of_memory(data: st.DataObject, n_gpus: int, most: int) -> None:
    world = data.draw(worlds())
    some = data.draw(jobs(world))
    ran = simulate(world, some, Trusting(KnownBelief(world, most_together=most)), n_gpus=n_gpus)
    assert ran.out_of_memory == 0
    assert ran.most_together <= most


@given(st.data(), st.integers(0, 99))
def test_the_log_agrees_with_the_columns(data: st.DataObject, seed: int) -> None:
    world = data.draw(worlds())
    some = data.draw(jobs(world))
    ran = simulate(world, some, Reckless(seed, 3))
    assert list(ran.log) == sorted(ran.log, key=lambda event: event.at_s)
    for number in range(len(some)):
        story = [
            event.what
            for event in ran.log
            if event.job == number
            if event.what is not SharingTransition.PHASE
        ]
        killed = [SharingTransition.START, SharingTransition.OUT_OF_MEMORY, SharingTransition.REQUEUE] * int(
            ran.kills[number]
        )
        assert story == [SharingTransition.SUBMIT, *killed, SharingTransition.START, SharingTransition.END]
