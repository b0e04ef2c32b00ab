"""Losses that come and go: a job that loses a tenth of its time is not called healthy."""

import numpy as np
import pytest

from slurm_gpu.diagnose.judge import combine_verdicts, diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.verdict import UNEXPLAINED, Cause, Verdict
from tests.diagnose.faults import OLDER, SEEDS, as_read, as_series, culprits
from tests.diagnose.training import EVERYTHING, Training

LOSS = 0.1
BOTH = pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])


def idle_at_times(rows, gap_s, every_s, **more) -> Training:
    """Return a training run in which these workers, in turn, have nothing to run for a while."""
    training = Training(**more)
    at = np.arange(training.n_bins)
    for turn, row in enumerate(rows):
        training.fetch[row, (at + every_s - every_s * turn // len(rows)) % every_s < gap_s] = 200.0
    return training


@BOTH
@pytest.mark.parametrize("n", [2, 16])
@pytest.mark.parametrize(("gap_s", "every_s"), [(9, 45), (12, 90), (30, 90)])
def test_a_gpu_that_often_has_nothing_to_run_is_noticed(gap_s, every_s, n, metrics):
    training = idle_at_times([n - 1], gap_s, every_s, n=n, metrics=metrics)
    verdict = diagnose(as_read(training, training.values()))
    assert not verdict.finds_nothing
    assert culprits(verdict) in ([], [n - 1])


@pytest.mark.parametrize(("n", "rows", "gap_s"), [(2, [0, 1], 18), (4, [0, 1], 18), (16, [3, 7, 11], 9)])
def test_gpus_that_have_nothing_to_run_in_turn_cost_the_sum_of_their_gaps(n, rows, gap_s):
    training = idle_at_times(rows, gap_s, 200, n=n)
    assert diagnose(training.series()).cause in (Cause.INCONCLUSIVE, Cause.STARVATION)


def test_the_cost_of_gaps_is_stated_in_a_job_of_two_gpus():
    training = Training(n=2)
    values = training.values()
    values[Metric.UTIL][:] = 0.99
    values[Metric.UTIL][1, np.arange(training.n_bins) % 60 < 8] = 0.0
    verdict = diagnose(as_series(training, values))
    assert verdict.why_not[0].startswith("rank 1 (n1): at times nothing to run while its peers are busy")
    assert "13% of the time" in verdict.why_not[0]


def test_equal_times_of_steps_do_not_explain_gaps():
    """Timings of the forward and backward pass do not contain the time without input."""
    gaps = diagnose(idle_at_times([3], 9, 45, n=8).series())
    timed = combine_verdicts(gaps, Verdict(cause=Cause.HEALTHY, strength=0.8))
    assert (timed.cause, timed.roles) == (Cause.INCONCLUSIVE, ("rank 3 (n1)",))


def fault(kind: str, on: np.ndarray, **more) -> tuple[Training, float]:
    """Return a training run with a fault at these times, and the share of the time that it costs."""
    training = Training(**more)
    match kind:
        case "slow GPU":
            training.speed[1, on] = 0.5
        case "slow node":
            training.speed[:8, on] = 0.5
        case "slow links":
            training.talk[:, on] = 1.5
        case "late input":
            training.fetch[:, on] = 0.7
    step = (1 / training.speed + training.talk + training.fetch).max(axis=0)
    return training, float(1 - (1.3 / step).mean())


@BOTH
@pytest.mark.parametrize("kind", ["slow GPU", "slow node", "slow links", "late input"])
@pytest.mark.parametrize(("on_s", "every_s"), [(30, 60), (45, 90)])
def test_regular_episodes_are_noticed(on_s, every_s, kind, metrics):
    at = np.arange(600)
    training, loss = fault(kind, at % every_s >= every_s - on_s, metrics=metrics)
    assert loss > LOSS
    assert not diagnose(as_read(training, training.values())).finds_nothing


@pytest.mark.parametrize("kind", ["slow GPU", "slow links", "late input"])
@pytest.mark.parametrize("seed", range(4))
def test_irregular_episodes_are_noticed(seed, kind):
    random = np.random.default_rng(seed)
    on, first = np.zeros(600, dtype=bool), int(random.integers(80))
    while first < 600:
        length = int(random.integers(10, 40))
        on[first : first + length] = True
        first += length + int(random.integers(20, 80))
    training, loss = fault(kind, on, n=8, seed=seed)
    assert loss < LOSS or not diagnose(as_read(training, training.values())).finds_nothing


@BOTH
@pytest.mark.parametrize("spin", [True, False])
@pytest.mark.parametrize(("pause_s", "every_s"), [(12, 30), (15, 60), (40, 100)])
def test_frequent_pauses_are_noticed(pause_s, every_s, spin, metrics):
    training = Training(metrics=metrics)
    training.runs[np.arange(training.n_bins) % every_s >= every_s - pause_s] = False
    values = training.values()
    values[Metric.UTIL][:, ~training.runs] = float(spin)
    assert not diagnose(as_series(training, values)).finds_nothing


@pytest.mark.parametrize("seconds", [13, 20])
def test_long_steps_are_no_episodes(seconds):
    """A block contains either more computing or more communication."""
    training = Training()
    values = training.values()
    computes = np.arange(training.n_bins) % seconds < 2 * seconds / 3
    for metric in (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER):
        values[metric] *= np.where(computes, 1.2, 0.4)
    for metric in (Metric.NVLINK, Metric.PCIE):
        values[metric] *= np.where(computes, 0.1, 2.0)
    assert diagnose(as_series(training, values)).finds_nothing


def test_short_dips_of_many_gpus_cost_little():
    """Each GPU rarely has less to run, but at any time this is the case for one of them."""
    training = Training(n=512, n_bins=120, width_s=64.0, noise=0.005)
    values = training.values()
    values[Metric.UTIL] = 1 - 0.05 * (training.random.random(values[Metric.UTIL].shape) < 0.004)
    assert diagnose(as_series(training, values)).cause is Cause.HEALTHY


def test_a_gpu_that_was_unusual_before_is_not_said_to_differ():
    """The utilisation of one GPU was 3 % above that of its peers, and is 2 % below it."""
    training = Training(n=4, noise=0.01)
    values = training.values()
    values[Metric.UTIL] = 0.9 + 0.005 * training.random.standard_normal((4, 600))
    values[Metric.UTIL][0, :300] += 0.03
    values[Metric.UTIL][0, 300:] -= 0.02
    assert diagnose(as_series(training, values)).cause is Cause.HEALTHY


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("n", "seconds"), [(2, 40), (8, 30), (16, 20)])
def test_a_job_whose_workers_are_slow_in_turn_is_not_healthy(n, seconds, seed):
    training = Training(n=n, seed=seed)
    turn = np.arange(training.n_bins) // seconds % n
    training.speed[turn, np.arange(training.n_bins)] = 0.7
    assert diagnose(training.series()).kind == UNEXPLAINED
