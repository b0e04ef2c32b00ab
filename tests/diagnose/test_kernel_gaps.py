"""Before Hopper, a worker with more work is identified only by higher power together with longer kernels."""

import numpy as np
import pytest

from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.verdict import Cause
from tests.diagnose.faults import OLDER, SEEDS, as_series
from tests.diagnose.training import EVERYTHING, Training


def a_training(heavy, power, gaps, metrics=OLDER, **more):
    """Return a training run in which power and kernel gaps of `heavy` workers differ by these values."""
    training = Training(metrics=metrics, **more)
    values = training.values()
    noise = 0.003 * training.random.standard_normal((training.n, training.n_bins))
    values[Metric.UTIL] = np.clip(0.99 + noise, 0, 1)
    values[Metric.UTIL][heavy] -= gaps
    values[Metric.POWER][heavy] *= 1 + power
    return as_series(training, values)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_together(seed):
    verdict = diagnose(a_training([2, 7], 0.05, 0.005, seed=seed))
    assert (verdict.cause, verdict.kind, verdict.suspect) == (Cause.IMBALANCE, "workers", True)
    assert verdict.roles == ("rank 2 (n1)", "rank 7 (n1)")
    assert verdict.culprits == ()
    assert verdict.evidence[0].value == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_of_several_may_take_no_more_power(seed):
    power = np.array([0.06, 0.0, 0.06, 0.05])[:, None]
    verdict = diagnose(a_training([1, 4, 9, 14], power, 0.005, seed=seed))
    assert (verdict.cause, verdict.suspect) == (Cause.IMBALANCE, True)
    assert len(verdict.roles) == 4


@pytest.mark.parametrize(
    ("heavy", "power", "gaps"),
    [
        ([2, 7], 0.05, 0.0),  # GPUs differ
        ([0], -0.02, 0.005),  # the CPU also writes logs and launches late
        ([2], 0.04, 0.005),  # one GPU may always take more
        ([0, 2, 3, 5, 7, 8, 10, 13, 15], 0.05, 0.005),  # most of them: the others have less to do
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_power_or_gaps_without_the_other_are_no_evidence(heavy, power, gaps, seed):
    assert diagnose(a_training(heavy, power, gaps, seed=seed)).finds_nothing


def test_reported_sm_activity_is_used_instead():
    assert diagnose(a_training([2, 7], 0.05, 0.005, metrics=EVERYTHING)).kind != "workers"
