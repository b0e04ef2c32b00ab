"""The injector of bench/diagnose.py: equal seeds give equal cases, and conserved quantities are conserved."""

import dataclasses

import numpy as np
import pytest

from bench.diagnose_injector import CAUSES, Case, faulty, generator, healthy, perform
from bench.diagnose_injector_faults import draw_fault
from bench.diagnose_injector_gpus import sigma_for
from bench.diagnose_injector_job import Floats, Job, draw_job
from bench.diagnose_injector_play import CLOCK, NVLINK, TENSOR, THROTTLE, UTIL, Play
from bench.diagnose_injector_record import EDGE_S, Recording
from bench.diagnose_injector_steps import Condition, makespan, run_steps
from bench.diagnose_injector_waits import comm_for
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.verdict import Cause

SIZE = 0.3


def a_job(number: int = 0, **wanted: object) -> Job:
    return draw_job(generator(7, "test", number), **wanted)  # type: ignore[arg-type]


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def same(one: Recording, other: Recording) -> bool:
    return one.values.keys() == other.values.keys() and all(
        np.array_equal(one.values[metric], other.values[metric], equal_nan=True) for metric in one.values
    )


@pytest.mark.parametrize("cause", CAUSES)
def test_a_seed_is_a_case(cause: Cause) -> None:
    once, again, another = faulty(1, cause, 2), faulty(1, cause, 2), faulty(2, cause, 2)
    assert same(once.recording, again.recording)
    assert not same(once.recording, another.recording)
    assert once.fault is not None
    assert once.fault.cause is cause


@pytest.mark.parametrize("number", range(4))
def test_a_step_takes_every_worker_as_long(number: int) -> None:
    job = a_job(number)
    steps = run_steps(job, Condition(), 30, rng())
    spent = steps.idle_s + steps.busy_s + steps.tensor_s
    waits = steps.meet_s[:, None] - spent
    assert (waits > -1e-9).all()
    # One worker waits only while the pipeline fills and drains, with one microbatch in each of
    # the other stages.
    filling = (job.pipeline - 1) * job.microbatch_s * 1.5
    assert waits.min(axis=1).max() <= filling + 0.25 * float(steps.meet_s.max()) * (job.tensor > 1) + 1e-9
    assert job.step_s == pytest.approx(float(np.median(steps.total_s)), rel=0.15)


def test_counters_do_not_exceed_the_elapsed_time() -> None:
    for number in range(4):
        job = a_job(number)
        play = Play(job=job, rng=rng(), start=-EDGE_S)
        play.train(60.0, Condition())
        times, workers, _ = play.integrals()
        assert (np.diff(times) >= 0).all()
        rates = workers[-1] / (times[-1] - times[0])
        for channel in (UTIL, CLOCK, THROTTLE):
            assert (rates[:, channel] <= 1 + 1e-6).all()
        assert (np.diff(workers, axis=0) >= -1e-6).all()


def test_slow_gpus_do_as_much_work_at_lower_clocks_and_others_wait() -> None:
    job = dataclasses.replace(a_job(pipeline=False), tensor=1, data=a_job().n_workers)
    job = dataclasses.replace(job, data=job.n_workers, broadcast=False)
    clock = np.ones(job.n_workers)
    clock[3] = 0.6
    play = Play(job=job, rng=rng(), start=0.0)
    play.train(120.0, Condition(clock=clock))
    tensor, cycles = play.integrals()[1][-1][:, [TENSOR, CLOCK]].T
    assert tensor[3] == pytest.approx(np.median(tensor), rel=0.03)
    assert cycles[3] < 0.7 * np.median(cycles)


@pytest.mark.parametrize("number", range(3))
def test_slower_links_take_the_steps_so_much_longer(number: int) -> None:
    job = a_job(number)
    usual, slow = (
        float(np.mean(run_steps(job, Condition(comm=factor), 40, rng()).total_s))
        for factor in (1.0, comm_for(job, SIZE))
    )
    assert slow / usual - 1 == pytest.approx(SIZE, abs=0.05)


@pytest.mark.parametrize("number", range(3))
def test_unequal_sequences_give_the_slowest_so_much_more(number: int) -> None:
    job = dataclasses.replace(a_job(number, pipeline=False), jitter=0.001, tensor_comm=0.0)
    condition = Condition(sequence=sigma_for(job, SIZE))
    usual, slow = (run_steps(job, one, 200, rng()) for one in (Condition(), condition))
    meets = float(np.mean(slow.meet_s) / np.mean(usual.meet_s))
    assert meets - 1 == pytest.approx(SIZE, abs=0.08)


@pytest.mark.parametrize("number", range(6))
def test_starved_trainings_take_so_much_longer(number: int) -> None:
    job = a_job(number)
    fault = draw_fault(Cause.STARVATION, number, job, 600.0, rng())
    usual = float(np.mean(run_steps(job, Condition(), 60, rng()).total_s))
    steps = run_steps(job, fault.condition, 60, rng())
    assert float(np.mean(steps.total_s)) / usual - 1 == pytest.approx(fault.size, abs=0.12)
    idle = np.flatnonzero(steps.idle_s.mean(axis=0) > 0.1 * fault.size * job.step_s)
    assert set(idle) <= set(np.flatnonzero(job.readers()))


def test_a_pipeline_takes_as_long_as_is_known() -> None:
    forward, backward = np.full((1, 8, 4, 1), 1.0), np.full((1, 8, 4, 1), 2.0)
    assert makespan(forward, backward)[0, 0] == (8 + 4 - 1) * 3.0
    backward[:, :, 2] = 4.0
    assert makespan(forward, backward)[0, 0] > (8 + 4 - 1) * 3.0


def test_a_lost_worker_reports_nothing() -> None:
    case = first(Cause.SLOW, lambda case: case.fault is not None and case.fault.lost is not None)
    assert case.fault is not None
    assert case.fault.lost is not None
    assert case.fault.since_s is not None
    util = case.recording.values[Metric.UTIL][case.fault.lost]
    assert np.isnan(util[int(case.fault.since_s) + 1 :]).all()
    assert {event.kind for event in case.recording.events} == {"xid", "gpu_lost"}


def test_a_partial_series_has_no_later_values() -> None:
    case = healthy(1, 0)
    whole, part = case.recording.series(), case.recording.series(300.0)
    assert part.n_bins == 300
    for metric, matrix in part.values.items():
        known = np.isfinite(matrix)
        assert np.array_equal(matrix[known], whole.values[metric][:, :300][known])
    # Detailed samples are up to ten seconds old.
    power = np.isfinite(part.values[Metric.POWER])
    assert not power[:, 299].all()
    assert power[:, :285].any()


def test_a_hang_moves_nothing() -> None:
    case = first(Cause.HANG, lambda case: case.job.model.nvlink is not None)
    assert case.fault is not None
    assert case.fault.since_s is not None
    play, since = case.play, case.fault.since_s
    assert play is not None
    times, workers, _ = play.integrals()
    moved = workers[times > since + 2 * case.job.step_s][:, :, NVLINK]
    assert np.ptp(moved, axis=0).max() < 1e-6


def test_a_play_ends_at_the_given_time() -> None:
    job = a_job()
    play = Play(job=job, rng=rng(), start=0.0)
    perform(play, 100.0, None, [])
    assert 100.0 <= play.now < 100.0 + 2 * job.step_s


def first(cause: Cause, wanted: object) -> Case:
    assert callable(wanted)
    return next(case for number in range(80) if wanted(case := faulty(3, cause, number)))


def test_levels_of_a_timeline_are_bytes() -> None:
    case = healthy(1, 3)
    assert case.timeline
    levels: Floats = case.recording.values[Metric.UTIL] * 250
    known = levels[np.isfinite(levels)]
    assert np.allclose(known, np.round(known))
    assert case.recording.values[Metric.UTIL].shape[1] <= 256
