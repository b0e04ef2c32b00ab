"""The verdict names slow or failing GPUs and nodes, and the time at which the problem began."""

import numpy as np
import pytest

from slurm_gpu.diagnose.case import DiagnosisThresholds, build_case
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import HostSeries
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.wire import Event
from tests.diagnose.faults import SEEDS, a_hang, a_slow_clock, as_series, culprits
from tests.diagnose.training import START_S, Training


class TestSlow:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("slowdown", [0.05, 0.15, 0.5])
    def test_a_gpu_that_heat_slows_down(self, seed, slowdown):
        verdict = diagnose(a_slow_clock(slowdown, seed=seed).series())
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [5])
        assert verdict.since_s == pytest.approx(START_S + 240, abs=30)
        assert verdict.until_s is None
        assert verdict.strength > 0.8

    def test_a_past_slowdown_is_reported_with_its_end(self):
        training = a_slow_clock()
        training.clock[5, training.at(7) :] = training.clock[4, training.at(7) :]
        training.throttle[5, training.at(7) :] = 0
        verdict = diagnose(training.series())
        assert culprits(verdict) == [5]
        assert verdict.until_s == pytest.approx(START_S + 420, abs=30)

    def test_evidence_of_heat_is_reported_only_where_there_is_some(self):
        training = a_slow_clock()
        metrics = [item.metric for item in diagnose(training.series()).evidence]
        training.throttle[:] = 0.0
        verdict = diagnose(training.series())
        assert culprits(verdict) == [5]
        assert "throttle" in metrics
        assert "throttle" not in [item.metric for item in verdict.evidence]

    def test_a_clock_that_wanders_by_itself_accuses_no_gpu(self):
        """Under a power cap, a clock may fall by 4 % for some minutes without a reported reason."""
        training = Training()
        training.clock[5, training.at(4) : training.at(8)] *= 0.96
        assert diagnose(training.series()).cause is Cause.HEALTHY

    def test_it_is_reported_within_three_minutes(self):
        training = a_slow_clock(0.15, n_bins=240 + 180)
        assert culprits(diagnose(training.series())) == [5]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_gpu_whose_clock_is_right_and_that_never_waits(self, seed):
        training = Training(seed=seed)
        training.speed[9] = 0.85
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [9])
        assert "equal work" in verdict.kind

    @pytest.mark.parametrize(("clock", "cause"), [(1.0, Cause.SLOW), (0.955, Cause.HEALTHY)])
    def test_a_gpu_that_is_busy_longer_because_its_clock_is_always_lower_is_not_accused(self, clock, cause):
        training = Training()
        training.clock[9] *= clock
        training.speed[9] = 0.955 / clock
        assert diagnose(training.series()).cause is cause

    def test_a_clock_that_fell_in_between_is_no_excuse(self):
        """Links are not at fault if a GPU has been busier since its clock fell."""
        training = Training()
        training.clock[9, 240:] *= 0.96
        training.speed[9, 240:] = 0.985
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [9])

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("before", [False, True])
    def test_a_clock_that_falls_again_explains_longer_activity(self, before, seed):
        """With steps as long as the interval between samples, clocks seem to change every few minutes."""
        training = Training(seed=seed)
        for first, stop in ((90, 210), (360, 600)) if before else ((360, 600),):
            training.clock[9, first:stop] *= 0.965
            training.speed[9, first:stop] *= 0.985
        verdict = diagnose(training.series())
        assert (verdict.kind == "busy longer with equal work") is not before

    @pytest.mark.parametrize("n", [16, 32])
    def test_a_node_of_slow_gpus_is_named(self, n):
        training = Training(n=n)
        training.clock[8:16] *= 0.85
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.nodes) == (Cause.SLOW, ("n2",))
        assert culprits(verdict) == list(range(8, 16))

    def test_a_node_that_is_a_stage_is_judged_by_its_own_past(self):
        training = Training(n=16)
        training.memory[:8] = 0.85
        training.clock[8:, training.at(5) :] *= 0.8
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.nodes) == (Cause.SLOW, ("n2",))
        assert verdict.since_s == pytest.approx(START_S + 300, abs=30)

    def test_without_counters_of_activity_clocks_and_power_do(self):
        older = (Metric.UTIL, Metric.MEM_USED, Metric.POWER, Metric.SM_CLOCK)
        assert culprits(diagnose(a_slow_clock(metrics=older).series())) == [5]

    def test_a_gpu_that_fell_off_the_bus_comes_before_the_hang_that_it_makes(self):
        training, values = a_hang()
        lost = Event(
            node="n1",
            boot_id="b",
            n=1,
            at_s=int(START_S) + 480,
            kind="xid",
            device="GPU-003",
            data={"code": 79},
        )
        verdict = diagnose(as_series(training, values, events=[lost]))
        assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.SLOW, "xid 79", [3])

    def test_an_error_of_the_program_accuses_no_gpu(self):
        error = Event(
            node="n1", boot_id="b", n=1, at_s=int(START_S), kind="xid", device="GPU-003", data={"code": 31}
        )
        assert diagnose(Training().series(events=[error])).cause is Cause.HEALTHY

    def test_heat_everywhere_is_reported_for_all(self):
        training = Training()
        training.throttle[:] = 0.6
        training.clock[:] *= 0.8
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.nodes) == (Cause.SLOW, ("n1", "n2"))


def test_timelines_of_a_day_are_judged_as_windows_are():
    training = a_slow_clock(width_s=512.0, n_bins=170, n=32)
    training.clock[5] = 0.95
    training.clock[5, 80:] *= 0.8
    verdict = diagnose(training.series())
    assert culprits(verdict) == [5]
    assert verdict.since_s == pytest.approx(START_S + 80 * 512, abs=1024)


class TestEvidence:
    """The numbers in the evidence are the values of the GPUs."""

    @pytest.mark.parametrize("usual", [1.03, 1.0, 0.97])
    def test_the_expected_value_is_that_of_peers(self, usual):
        training = Training()
        training.clock[5] *= usual
        training.clock[5, training.at(5) :] *= 0.9
        verdict = diagnose(training.series())
        assert culprits(verdict) == [5]
        assert verdict.evidence[0].expected == pytest.approx(0.95, abs=0.005)
        assert " peers 95%" in verdict.evidence[0].text

    def test_without_data_of_peers_the_usual_level_is_given(self):
        """A verdict must not fail because no other worker has data in the period."""
        case = build_case(a_slow_clock().series(), None, DiagnosisThresholds(), running=False)
        everyone = np.ones(case.n, dtype=bool)
        for signal in case.deviations:
            evidence = case.evidence(signal, everyone)
            assert np.isfinite([evidence.value, evidence.expected]).all()
            assert ", usually " in evidence.text

    def test_a_link_without_data_differs_from_its_peers(self):
        training = Training(n=32)
        hosts = [
            HostSeries(
                node=f"n{i + 1}",
                start_s=START_S,
                width_s=10.0,
                values={Metric.INFINIBAND: (0.0 if i == 2 else 2e9) * np.ones(60)},
            )
            for i in range(4)
        ]
        verdict = diagnose(training.series(hosts=hosts))
        assert verdict.nodes == ("n3",)
        assert "InfiniBand 0.0 MB/s, their 24 peers 2000 MB/s" in verdict.evidence[0].text
