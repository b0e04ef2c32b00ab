"""If all workers became slower, the worker that changed differently is the cause."""

import pytest

from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import groups_given
from slurm_gpu.diagnose.verdict import Cause
from tests.diagnose.faults import OLDER, SEEDS, as_series, culprits
from tests.diagnose.training import START_S, Training

BEGINS_MINUTE = 5


def all_slower(rises=0.0, **more):
    """Return a training run with longer steps from minute 5 on; kernel gaps of 2 % shrink by `rises`."""
    training = Training(metrics=OLDER, **more)
    training.talk[:, training.at(BEGINS_MINUTE) :] = 0.6
    values = training.values()
    values[Metric.UTIL] = 0.98 + 0.003 * training.random.standard_normal((training.n, training.n_bins))
    values[Metric.UTIL][:, training.at(BEGINS_MINUTE) :] += rises
    return training, values


class TestWithoutActivity:
    """GPUs before Hopper report only power, utilisation, clocks and links."""

    @pytest.mark.parametrize(("own", "cause"), [(1.0, Cause.COMMUNICATION), (0.92, Cause.SLOW)])
    def test_the_one_whose_power_changed(self, own, cause):
        training, values = all_slower()
        values[Metric.POWER][5, training.at(BEGINS_MINUTE) :] *= own
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict)) == (cause, [5] if cause is Cause.SLOW else [])
        assert verdict.suspect

    @pytest.mark.parametrize("own", [0.965, 1.035])
    def test_the_change_of_power_of_an_outlier_is_reported(self, own):
        training, values = all_slower()
        values[Metric.POWER][5, training.at(BEGINS_MINUTE) :] *= own
        verdict = diagnose(as_series(training, values))
        assert (verdict.kind, culprits(verdict)) == ("power", [5])
        assert verdict.evidence[-1].value == pytest.approx(own - 1, abs=0.008)
        assert f"changed by {'-' if own < 1 else '+'}" in verdict.evidence[-1].text

    @pytest.mark.parametrize("heavy", [[5], [4, 5, 6, 7]])
    def test_a_worker_that_takes_as_much_power_as_before_has_more_work(self, heavy):
        training = Training(metrics=OLDER, n=8)
        training.work[heavy, training.at(BEGINS_MINUTE) :] = 1.08
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.IMBALANCE, [])
        assert verdict.roles == tuple(training.workers[row].name for row in heavy)
        assert verdict.suspect

    @pytest.mark.parametrize("row", [4, 5])
    @pytest.mark.parametrize("own", [0.965, 1.035])
    def test_with_two_workers_in_a_stage_the_changed_one_is_unknown(self, row, own):
        training, values = all_slower(n=8)
        values[Metric.POWER][row, training.at(BEGINS_MINUTE) :] *= own
        verdict = diagnose(as_series(training, values), groups=groups_given("pp=4", 8))
        assert culprits(verdict) == []

    @pytest.mark.parametrize("row", [3, 4, 5])
    @pytest.mark.parametrize("own", [0.965, 1.035])
    def test_with_three_workers_in_a_stage_the_changed_one_is_named(self, row, own):
        training, values = all_slower(n=12, per_node=4)
        values[Metric.POWER][row, training.at(BEGINS_MINUTE) :] *= own
        verdict = diagnose(as_series(training, values), groups=groups_given("pp=4", 12))
        assert culprits(verdict) == [row]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_one_whose_utilisation_did_not_rise(self, seed):
        training, values = all_slower(rises=0.008, seed=seed)
        values[Metric.UTIL][5, training.at(BEGINS_MINUTE) :] -= 0.01
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.SLOW, "never waits", [5])
        assert verdict.since_s == pytest.approx(START_S + 300, abs=30)
        assert verdict.suspect

    @pytest.mark.parametrize("seed", SEEDS)
    def test_an_equal_rise_of_all_workers_points_to_links(self, seed):
        training, values = all_slower(rises=0.008, seed=seed)
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict)) == (Cause.COMMUNICATION, [])

    @pytest.mark.parametrize("seed", SEEDS)
    def test_no_gpu_is_accused_if_two_did_not_rise(self, seed):
        training, values = all_slower(rises=0.008, seed=seed)
        values[Metric.UTIL][[5, 9], training.at(BEGINS_MINUTE) :] -= 0.01
        assert culprits(diagnose(as_series(training, values))) == []

    def test_two_gpus_have_no_majority(self):
        training, values = all_slower(rises=0.008, n=2)
        values[Metric.UTIL][1, training.at(BEGINS_MINUTE) :] -= 0.01
        assert culprits(diagnose(as_series(training, values))) == []


class TestWaitForData:
    """All workers are slower, so utilisation falls by only a part of the slowdown."""

    @pytest.mark.parametrize("metrics", [OLDER, None])
    def test_a_worker(self, metrics):
        training = Training() if metrics is None else Training(metrics=metrics)
        starts = training.at(BEGINS_MINUTE)
        training.fetch[5, starts:] = 0.04 + 0.3 * (training.random.random(training.n_bins - starts) < 0.3)
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.STARVATION, [5])

    def test_a_little_less_to_run_counts_where_the_pace_fell_by_little(self):
        training = Training(metrics=OLDER)
        training.talk[:, training.at(BEGINS_MINUTE) :] = 0.39
        values = training.values()
        values[Metric.UTIL][:] = 0.98 + 0.003 * training.random.standard_normal((training.n, training.n_bins))
        values[Metric.UTIL][5, training.at(BEGINS_MINUTE) :] -= 0.042
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict)) == (Cause.STARVATION, [5])
        assert "while the others wait" in verdict.evidence[-1].text
