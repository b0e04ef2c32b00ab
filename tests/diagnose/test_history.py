"""Clocks of earlier runs of an application show a slow GPU that has no peers, or whose peers are slow too."""

import pytest

from slurm_gpu.diagnose.history import usual_clock
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.verdict import Cause
from tests.diagnose.faults import OLDER, as_series, culprits
from tests.diagnose.test_any_shape import a_job
from tests.diagnose.training import EVERYTHING, Training

EARLIER = (0.95, 0.94, 0.96, 0.95, 0.95, 0.93)


@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
@pytest.mark.parametrize("n", [1, 4])
def test_gpus_that_are_slower_than_in_earlier_runs_are_suspected(n, metrics):
    training = Training(n=n, metrics=metrics)
    training.clock *= 0.7
    assert diagnose(training.series()).cause in (Cause.HEALTHY, Cause.INCONCLUSIVE)
    verdict = diagnose(training.series(), earlier_clocks=EARLIER)
    assert (verdict.cause, verdict.kind, verdict.suspect) == (Cause.SLOW, "clock", True)
    assert culprits(verdict) == list(range(n))
    assert "SM clock 66%, compared with 95% in 6 earlier runs" in verdict.evidence[0].text


@pytest.mark.parametrize(
    ("earlier", "factor"),
    [
        (EARLIER[:4], 0.7),  # too few runs
        ((0.6, 0.95, 0.7, 0.9, 0.65, 0.8), 0.7),  # clocks that always vary
        (EARLIER, 0.96),  # a usual difference
    ],
)
def test_other_clocks_than_before_are_not_always_a_fault(earlier, factor):
    training = Training(n=1)
    training.clock *= factor
    assert diagnose(training.series(), earlier_clocks=earlier) == diagnose(training.series())


def test_a_lower_clock_at_the_power_limit_is_no_fault():
    training = Training(n=1)
    training.clock *= 0.7
    values = training.values()
    values[Metric.POWER][:] = 0.99
    series = as_series(training, values)
    assert diagnose(series, earlier_clocks=EARLIER) == diagnose(series)


def test_earlier_runs_explain_more_jobs_of_any_shape_and_accuse_no_healthy_gpu():
    explained = 0
    for seed in range(120):
        job = a_job(seed)
        series = as_series(job.training, job.values)
        verdict = diagnose(series, groups=job.groups, earlier_clocks=EARLIER)
        if verdict != diagnose(series, groups=job.groups):
            assert job.is_right(verdict)
            explained += 1
    assert explained >= 5


def test_the_usual_clock_is_that_of_computing():
    training = Training(n=2)
    training.runs[:200] = False
    training.clock[:, :200] = 0.2
    assert usual_clock(training.series()) == pytest.approx(0.95, abs=0.01)
