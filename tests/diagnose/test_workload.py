"""Workers with more work are reported, and no GPU is accused."""

import numpy as np
import pytest

from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import groups_given
from slurm_gpu.diagnose.verdict import UNEXPLAINED, Cause
from tests.diagnose.faults import SEEDS, as_read, as_series, culprits, in_steps_of
from tests.diagnose.training import EVERYTHING, START_S, Training

# Metrics of GPUs before Hopper.
OLDER = (Metric.UTIL, Metric.MEM_USED, Metric.POWER, Metric.SM_CLOCK, Metric.NVLINK, Metric.PCIE)


class TestImbalance:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("more", [0.08, 0.4])
    def test_a_worker_that_has_more_to_do_is_not_accused(self, seed, more):
        training = Training(seed=seed)
        training.work[7] *= 1 + more
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.IMBALANCE, "workers", [])
        assert verdict.roles == (training.workers[7].name,)

    def test_more_work_that_lowers_the_clock_is_no_slow_gpu(self):
        training = Training()
        training.work[7] *= 1.3
        training.clock[7] *= 0.96
        assert diagnose(training.series()).cause is Cause.IMBALANCE

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_small_change_is_found_against_the_worker_s_own_past(self, seed):
        training = Training(seed=seed, n=32)
        training.clock *= 1 + 0.01 * training.random.standard_normal((32, 1))
        training.work[7, training.at(4) :] *= 1.05
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.roles) == (Cause.IMBALANCE, (training.workers[7].name,))
        assert verdict.since_s == pytest.approx(START_S + 240, abs=45)

    def test_a_stage_with_more_layers(self):
        training = Training(n=16)
        training.work[12:] *= 1.6
        verdict = diagnose(training.series(), groups=groups_given("pp=4", 16))
        assert (verdict.cause, verdict.kind, verdict.roles) == (
            Cause.IMBALANCE,
            "pipeline stage",
            ("stage 3",),
        )
        assert culprits(verdict) == []

    @pytest.mark.parametrize("seed", SEEDS)
    def test_sequences_of_unequal_length(self, seed):
        training = Training(seed=seed)
        length = 1 + training.random.pareto(4, training.work.shape)
        training.work *= length
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.IMBALANCE, "sequence", [])

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("metrics", [EVERYTHING, OLDER])
    def test_sequences_that_a_whole_node_has_in_common(self, seed, metrics):
        """With tensor parallelism over eight GPUs, all GPUs of a node process the same sequences."""
        training = Training(seed=seed, n=32, metrics=metrics)
        length = 1 + training.random.pareto(4, (4, 120))
        training.work *= np.repeat(np.repeat(length, 8, axis=0), 5, axis=1)
        verdict = diagnose(as_read(training, training.values(), phases=(0, 4, 7, 9)))
        assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.IMBALANCE, "sequence", [])

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("metrics", [EVERYTHING, OLDER])
    @pytest.mark.parametrize("alike", [1, 2])
    def test_small_variations_count_if_neighbours_have_them_in_common(self, seed, metrics, alike):
        """With tensor parallelism over two GPUs, neighbours process the same sequences."""
        training = Training(seed=seed, n=32, metrics=metrics, noise=0.005)
        length = 1 + 0.018 * training.random.standard_normal((32 // alike, 60))
        training.work *= np.repeat(np.repeat(length, alike, axis=0), 10, axis=1)
        verdict = diagnose(training.series())
        assert (verdict.kind == "sequence") is (alike == 2)
        assert culprits(verdict) == []

    @pytest.mark.parametrize("metrics", [EVERYTHING, OLDER])
    @pytest.mark.parametrize("noise", [0.003, 0.02])
    @pytest.mark.parametrize("seconds", [3, 7, 9, 9.6, 10.4, 13, 14.4, 20])
    def test_readings_of_only_one_or_two_steps_are_not_sequences(self, seconds, noise, metrics):
        training = Training(n=32, noise=noise, metrics=metrics)
        series = in_steps_of(seconds, training, ahead=(0, 0, 0, 0))
        values = {metric: matrix.copy() for metric, matrix in series.values.items()}
        verdict = diagnose(as_read(training, values, phases=(0, 4, 7, 9)))
        assert verdict.finds_nothing

    def test_a_stage_with_a_layer_more(self):
        """Waiting workers spin and keep SMs active, so only part of the difference is measured."""
        training = Training(n=32)
        training.work[24:] *= 1.13
        verdict = diagnose(training.series(), groups=groups_given("pp=4", 32))
        assert (verdict.cause, verdict.kind) == (Cause.IMBALANCE, "pipeline stage")
        assert (verdict.roles, culprits(verdict)) == (("stage 3",), [])

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize(("more", "cause"), [(0.08, Cause.IMBALANCE), (0.03, Cause.HEALTHY)])
    def test_the_cost_of_an_embedding_or_a_loss_is_only_a_suspicion(self, seed, more, cause):
        training = Training(n=32, seed=seed)
        training.work[24:] *= 1 + more
        verdict = diagnose(training.series(), groups=groups_given("pp=4", 32))
        assert verdict.cause is cause
        if cause is Cause.IMBALANCE:
            assert (verdict.kind, verdict.roles, verdict.suspect) == ("pipeline stage", ("stage 3",), True)

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize(("sigma", "kind"), [(0.005, ""), (0.02, UNEXPLAINED)])
    def test_work_that_varies_more_than_equal_microbatches_is_not_healthy(self, sigma, kind, seed):
        """With short steps, unequal sequences cause a variation that is too small to be reported."""
        training = Training(seed=seed, noise=0.003)
        training.work *= 1 + sigma * training.random.standard_normal(training.work.shape)
        assert diagnose(training.series()).kind == kind

    @pytest.mark.parametrize("seed", SEEDS)
    def test_work_that_varies_little_between_nodes_is_not_healthy(self, seed):
        """All GPUs of a node process the same sequences, in short steps."""
        training = Training(seed=seed, n=32, noise=0.003)
        length = 1 + 0.05 * training.random.standard_normal((4, 60))
        training.work *= np.repeat(np.repeat(length, 8, axis=0), 10, axis=1)
        assert not diagnose(training.series()).finds_nothing

    @pytest.mark.parametrize("seed", SEEDS)
    def test_nodes_that_read_long_steps_at_different_times_have_equal_work(self, seed):
        training = Training(seed=seed, noise=0.003)
        values = training.values()
        computes = np.arange(training.n_bins) % 13 < 9
        for metric in (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER):
            values[metric] = np.clip(values[metric] * np.where(computes, 1.2, 0.2), 0, 1)
        assert diagnose(as_read(training, values)).cause is Cause.HEALTHY

    @pytest.mark.parametrize("metrics", [EVERYTHING, OLDER])
    def test_a_larger_batch_halfway_makes_no_stage_where_other_minutes_are_missing(self, metrics):
        training = Training(metrics=metrics)
        training.talk[:, 300:] = 0.15
        values = training.values()
        for matrix in values.values():
            matrix[:8, 500:560] = matrix[8:, 40:100] = np.nan
        verdict = diagnose(as_series(training, values), groups=groups_given("pp=2", 16))
        assert verdict.finds_nothing

    def test_two_stages_whose_gpus_differ_in_power_by_as_much_are_none(self):
        """The standard deviation of four GPUs may be 0 by chance; that of the other four is typical."""
        training = Training(n=8, per_node=4, metrics=OLDER)
        values = training.values()
        usual = np.array([1.05, 1.05, 1.05, 1.05, 0.94, 0.98, 1.02, 1.06])
        values[Metric.POWER] = np.full((8, 600), 0.6) * usual[:, None]
        verdict = diagnose(as_series(training, values), groups=groups_given("pp=2", 8))
        assert verdict.finds_nothing

    def test_a_replica_with_more_to_do_is_reported_by_the_power_of_all_its_gpus(self):
        """Individually, the replica's GPUs deviate no more than GPUs with equal work do."""
        training = Training(n=32, metrics=OLDER)
        replica = np.flatnonzero(np.arange(32) // 2 % 4 == 1)  # pp=4, dp=4, tp=2
        training.work[replica] *= 1.12
        verdict = diagnose(training.series(), groups=groups_given("pp=4", 32))
        assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.IMBALANCE, "replica", [])
        assert verdict.roles == tuple(training.workers[row].name for row in replica)
        assert verdict.suspect

    @pytest.mark.parametrize("seed", range(10))
    def test_power_that_differs_from_gpu_to_gpu_makes_no_replica(self, seed):
        training = Training(n=32, metrics=OLDER, seed=seed)
        values = training.values()
        values[Metric.POWER] *= 1 + 0.025 * training.random.standard_normal((32, 1))
        verdict = diagnose(as_series(training, values), groups=groups_given("pp=4", 32))
        assert verdict.kind != "replica"

    @pytest.mark.parametrize("step_s", [13, 23])
    @pytest.mark.parametrize("seed", range(6))
    def test_nodes_that_read_long_steps_at_different_times_are_no_replicas(self, seed, step_s):
        training = Training(n=16, seed=seed, metrics=OLDER, noise=0.01)
        values = training.values()
        computes = np.arange(training.n_bins) % step_s < 2 * step_s / 3
        values[Metric.POWER] *= np.where(computes, 1.2, 0.4)
        for metric in (Metric.NVLINK, Metric.PCIE):
            values[metric] *= np.where(computes, 0.1, 2.0)
        phases = tuple(np.random.default_rng(seed).integers(0, 10, 2))
        assert diagnose(as_read(training, values, phases=phases)).cause is Cause.INCONCLUSIVE

    def test_a_stage_with_more_layers_is_reported_where_all_do_less_than_before_as_well(self):
        training = Training(n=32)
        training.work[24:] *= 1.5
        values = training.values()
        later = training.at(5)
        for metric in (Metric.SM_ACTIVE, Metric.TENSOR):
            values[metric][:, later:] *= 0.85
        verdict = diagnose(as_series(training, values), groups=groups_given("pp=4", 32))
        assert (verdict.cause, verdict.kind) == (Cause.IMBALANCE, "pipeline stage")

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("since_s", [20, 40, 50])
    def test_a_gpu_that_has_just_become_slow_is_no_matter_of_sequences(self, seed, since_s):
        training = Training(seed=seed, n=8, per_node=4, n_bins=120 + since_s)
        training.clock[3, 120:] *= 0.75
        assert diagnose(training.series()).cause in (Cause.HEALTHY, Cause.SLOW)

    def test_a_stage_is_reported_by_power_where_that_is_all_there_is(self):
        training = Training(n=32, metrics=OLDER)
        training.work[24:] *= 1.4
        verdict = diagnose(training.series(), groups=groups_given("pp=4", 32))
        assert (verdict.cause, verdict.kind, verdict.roles) == (
            Cause.IMBALANCE,
            "pipeline stage",
            ("stage 3",),
        )

    def test_stages_that_do_as_much_are_none_by_power(self):
        training = Training(n=32, metrics=OLDER)
        training.work[24:] *= 1.03
        assert diagnose(training.series(), groups=groups_given("pp=4", 32)).finds_nothing

    @pytest.mark.parametrize("seed", SEEDS)
    def test_without_activity_sequences_are_reported_by_power_and_only_suspected(self, seed):
        training = Training(seed=seed, metrics=OLDER)
        training.work *= np.repeat(1 + training.random.pareto(4, (16, 60)), 10, axis=1)
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.IMBALANCE, "sequence", [])
        assert verdict.suspect

    def test_power_that_comes_and_goes_slowly_is_no_sequence(self):
        training = Training(metrics=OLDER)
        values = training.values()
        waves = np.sin(np.arange(600) / 40 + training.random.uniform(0, 6.3, (16, 1)))
        values[Metric.POWER] *= 1 + 0.04 * waves
        assert diagnose(as_series(training, values)).finds_nothing
