"""The verdict names slow links or late input, and no worker that only waits."""

import json
from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu.diagnose.case import DiagnosisThresholds, build_case
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import groups_given
from slurm_gpu.diagnose.series import HostSeries
from slurm_gpu.diagnose.signals import Signal
from slurm_gpu.diagnose.supply import links
from slurm_gpu.diagnose.verdict import UNEXPLAINED, Cause
from tests.diagnose.faults import OLDER, SEEDS, as_series, culprits
from tests.diagnose.training import EVERYTHING, START_S, Training


class TestSupply:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_all_wait_for_each_other_longer_than_before(self, seed):
        training = Training(seed=seed)
        training.talk[:, training.at(5) :] *= 2
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.COMMUNICATION, [])
        assert verdict.since_s == pytest.approx(START_S + 300, abs=30)

    def test_a_job_that_does_less_for_no_known_reason_is_not_called_healthy(self):
        training = Training(metrics=(Metric.SM_ACTIVE, Metric.TENSOR, Metric.SM_CLOCK))
        training.talk[:, training.at(5) :] *= 2
        verdict = diagnose(training.series())
        assert verdict.cause is Cause.INCONCLUSIVE
        assert "the data show no cause" in verdict.why_not[0]

    @pytest.mark.parametrize("metrics", [EVERYTHING, OLDER])
    def test_a_single_gpu_is_not_slowed_by_links(self, metrics):
        training = Training(n=1, metrics=metrics)
        training.talk[:, training.at(5) :] *= 2
        assert diagnose(training.series()).cause is Cause.INCONCLUSIVE

    @pytest.mark.parametrize("busy", [1.0, 0.9])
    def test_workers_as_busy_as_before_do_not_wait(self, busy):
        training = Training()
        values = training.values()
        for metric in (Metric.TENSOR, Metric.NVLINK, Metric.PCIE):
            values[metric][:, training.at(5) :] *= 0.7
        values[Metric.SM_ACTIVE][:, training.at(5) :] *= busy
        verdict = diagnose(as_series(training, values))
        assert verdict.cause is Cause.INCONCLUSIVE
        assert "the data show no cause" in verdict.why_not[0]

    def test_partial_data_is_shown_for_its_workers(self):
        training = Training()
        values = training.values()
        values[Metric.NVLINK][[4, 5]] *= 0.4
        values[Metric.PCIE][4] *= 3
        values[Metric.PCIE][5] = np.nan
        verdict = diagnose(as_series(training, values))
        assert [item.workers for item in verdict.evidence] == [
            ("rank 4 (n1)", "rank 5 (n1)"),
            ("rank 4 (n1)",),
        ]
        json.dumps(verdict.to_json(), allow_nan=False)

    def test_a_link_that_carries_less_names_its_ends(self):
        training = Training()
        values = training.values()
        values[Metric.NVLINK][[4, 5]] *= 0.4
        values[Metric.PCIE][[4, 5]] *= 3
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict), verdict.nodes) == (Cause.COMMUNICATION, [4, 5], ("n1",))
        assert [item.metric for item in verdict.evidence] == ["nvlink", "pcie"]

    @pytest.mark.parametrize(("apart", "is_slow"), [(-0.27, True), (-0.01, False)])
    def test_a_link_that_only_fell_to_the_level_of_its_peers_is_not_slow(self, apart, is_slow):
        case = build_case(Training().series(), None, DiagnosisThresholds(), running=True)
        fifth = np.arange(16) == 5
        fell = replace(
            case.deviations[Signal.PCIE],
            level=np.where(fifth, -0.27, 0.0),
            z=np.where(fifth, -7.0, 0.0),
            apart=np.where(fifth, apart, 0.0),
        )
        found = links(replace(case, deviations={**case.deviations, Signal.PCIE: fell}))
        assert (found is not None) is is_slow

    def test_a_node_whose_infiniband_carries_less_is_named(self):
        training = Training(n=32)
        hosts = [
            HostSeries(
                node=f"n{i + 1}",
                start_s=START_S,
                width_s=10.0,
                values={
                    Metric.INFINIBAND: 2e9 * (0.5 if i == 2 else 1) * (1 + 0.02 * training.random.random(60))
                },
            )
            for i in range(4)
        ]
        verdict = diagnose(training.series(hosts=hosts))
        assert (verdict.cause, verdict.nodes) == (Cause.COMMUNICATION, ("n3",))

    @pytest.mark.parametrize(("slower", "cause"), [(True, Cause.COMMUNICATION), (False, Cause.HEALTHY)])
    def test_constant_node_traffic_is_no_evidence_about_the_job(self, slower, cause):
        """Traffic of 1 MB/s for logs does not fall if steps take longer, but may fall on one node."""
        training = Training(n=32)
        training.talk[:, training.at(5) :] *= 1.6 if slower else 1.0
        hosts = []
        for number in range(4):
            logs = 1e6 * (1 + 0.05 * training.random.standard_normal(60))
            logs[35:] *= 0.5 if number == 1 else 1.0
            values = {Metric.NETWORK: logs, Metric.INFINIBAND: np.full(60, 1e3)}
            hosts.append(HostSeries(node=f"n{number + 1}", start_s=START_S, width_s=10.0, values=values))
        verdict = diagnose(training.series(hosts=hosts))
        assert (verdict.cause, culprits(verdict)) == (cause, [])
        assert verdict.kind in ("all", "")

    @pytest.mark.parametrize(("since", "cause"), [(0, Cause.HEALTHY), (30, Cause.COMMUNICATION)])
    def test_a_network_that_other_things_use_counts_where_its_difference_began(self, since, cause):
        training = Training(n=32)
        hosts = []
        for number in range(4):
            carried = 4e8 * (1 + 0.02 * training.random.standard_normal(60))
            carried[since:] *= 0.6 if number == 1 else 1.0
            values = {Metric.NETWORK: carried}
            hosts.append(HostSeries(node=f"n{number + 1}", start_s=START_S, width_s=10.0, values=values))
        assert diagnose(training.series(hosts=hosts)).cause is cause

    def test_gpus_that_have_nothing_to_run(self):
        training = Training()
        training.fetch[:] = 0.7
        cpu = [
            HostSeries(node=node, start_s=START_S, width_s=10.0, values={Metric.CPU: np.full(60, 0.98)})
            for node in ("n1", "n2")
        ]
        verdict = diagnose(training.series(hosts=cpu))
        assert (verdict.cause, culprits(verdict)) == (Cause.STARVATION, [])
        assert not verdict.suspect

    @pytest.mark.parametrize(
        ("second", "text"), [(0.7, "all GPUs have nothing"), (0.95, "all GPUs of stage 1 have")]
    )
    def test_a_stage_is_named_where_the_others_have_more_to_run(self, second, text):
        training = Training()
        training.fetch[:8], training.fetch[8:] = 0.7, second
        verdict = diagnose(training.series(), groups=groups_given("pp=2", 16))
        assert (verdict.cause, verdict.evidence[0].text[: len(text)]) == (Cause.STARVATION, text)

    def test_the_begin_of_starvation_is_reported(self):
        training = Training()
        training.fetch[:, training.at(5) :] = 0.25
        verdict = diagnose(training.series())
        assert verdict.cause is Cause.STARVATION
        assert verdict.since_s == pytest.approx(START_S + 300, abs=30)

    def test_a_node_that_feeds_its_gpus_too_slowly(self):
        training = Training()
        training.fetch[8:] = 0.3
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.nodes) == (Cause.STARVATION, ("n2",))

    def test_loaders_that_are_late_alternately_concern_all_workers(self):
        training = Training(n=16)
        for worker in range(0, 16, 2):
            begin = worker * 35
            training.fetch[worker, begin : begin + 90] = 0.5
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.STARVATION, "all", [])

    def test_random_variation_among_many_workers_accuses_no_loader(self):
        training = Training(n=128, noise=0.02)
        training.talk[:, training.at(5) :] *= 2
        values = training.values()
        restless = 0.02 * training.random.standard_normal((128, training.n_bins // 15)).repeat(15, axis=1)
        values[Metric.UTIL] = np.clip(0.93 + restless, 0, 1)
        assert diagnose(as_series(training, values)).cause is Cause.COMMUNICATION

    def test_the_loader_that_is_always_behind_is_one(self):
        training = Training(n=16)
        training.fetch[6, 120:] = 0.4
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.STARVATION, [6])

    def test_without_activity_the_links_show_how_often_steps_come(self):
        training = Training(metrics=OLDER)
        training.talk[:, training.at(5) :] = 0.6
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.COMMUNICATION, [])
        assert verdict.suspect

    def test_steps_that_are_longer_as_they_do_more_are_no_problem(self):
        training = Training(metrics=OLDER)
        values = training.values()
        for metric in (Metric.NVLINK, Metric.PCIE):
            values[metric][:, training.at(5) :] *= 0.5  # the batch grew: a step lasts twice as long
        assert diagnose(as_series(training, values)).finds_nothing

    @pytest.mark.parametrize("seed", SEEDS)
    def test_an_evaluation_is_not_how_it_trained_before(self, seed):
        training = Training(seed=seed)
        evaluates = slice(training.at(2), training.at(3))
        training.talk[:, evaluates] = 0.02
        assert diagnose(training.series()).finds_nothing
        training.talk[:, training.at(5) :] *= 1.6
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.COMMUNICATION, [])
        assert verdict.since_s == pytest.approx(START_S + 300, abs=30)

    def test_varying_common_delays_come_from_outside(self):
        training = Training(n=16)
        late = training.random.gamma(1.0, 0.1, training.n_bins // 15).repeat(15)
        training.fetch[:] = late
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.STARVATION, "all", [])

    def test_gaps_between_kernels_that_are_always_the_same_are_how_it_is(self):
        training = Training(n=16)
        training.fetch[:] = 0.06
        assert diagnose(training.series()).finds_nothing

    def test_a_node_that_fell_back_to_sockets_is_reported_where_a_stage_is_a_node(self):
        training = Training(n=32)
        hosts = [
            HostSeries(
                node=f"n{i + 1}",
                start_s=START_S,
                width_s=10.0,
                values={
                    Metric.INFINIBAND: np.full(60, 0.0 if i == 2 else 2e9),
                    Metric.NETWORK: np.full(60, 2.1e9 if i == 2 else 1e8),
                },
            )
            for i in range(4)
        ]
        verdict = diagnose(training.series(hosts=hosts), groups=groups_given("pp=4", 32))
        assert (verdict.cause, verdict.nodes) == (Cause.COMMUNICATION, ("n3",))

    def test_one_short_pause_of_some_is_no_starvation(self):
        training = Training(n=16, n_bins=200)
        values = training.values()
        values[Metric.UTIL][[4, 7], 162:168] = 0.0
        assert diagnose(as_series(training, values)).finds_nothing

    @pytest.mark.parametrize(("seconds", "cause"), [(60, Cause.INCONCLUSIVE), (90, Cause.STARVATION)])
    def test_a_worker_that_briefly_writes_or_evaluates_is_not_starved(self, seconds, cause):
        training = Training(n=16, n_bins=600)
        values = training.values()
        values[Metric.UTIL][0, -seconds:] = 0.6
        assert diagnose(as_series(training, values)).cause is cause

    def test_a_worsening_starvation_counts_from_its_beginning(self):
        values = (training := Training(n=16)).values()
        values[Metric.UTIL][0, 200:] = 0.7
        values[Metric.UTIL][0, -50:] = 0.4
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict)) == (Cause.STARVATION, [0])


@pytest.mark.parametrize("pauses", [((385, 405), (460, 480)), ((390, 480),)])
def test_two_short_pauses_of_one_worker_are_not_one_long_lack_of_input(pauses):
    """An evaluation and a checkpoint by the first worker may be a minute apart."""
    training = Training(metrics=OLDER, n_bins=480)
    values = training.values()
    for first, stop in pauses:
        values[Metric.UTIL][0, first:stop] *= 0.4
    verdict = diagnose(as_series(training, values))
    assert (verdict.cause is Cause.STARVATION) is (len(pauses) == 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_of_long_steps_that_does_a_quarter_less_is_not_called_healthy(seed):
    """Samples contain one or two steps, so the level changes from sample to sample."""
    training = Training(seed=seed)
    values = training.values()
    alternates = np.repeat(np.tile([0.8, 1.0, 1.2, 0.9, 1.1], 4), 15)
    for metric in (Metric.TENSOR, Metric.SM_ACTIVE, Metric.NVLINK, Metric.PCIE, Metric.POWER):
        values[metric][:, 300:] *= 0.75 * alternates
    verdict = diagnose(as_series(training, values))
    assert (verdict.cause, verdict.kind) == (Cause.INCONCLUSIVE, UNEXPLAINED)
