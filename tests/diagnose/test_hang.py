"""A stalled job is reported as a hang, and jobs that only pause are not."""

import numpy as np
import pytest

from slurm_gpu.diagnose.hangs import CLEAR_HANG
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import HostSeries
from slurm_gpu.diagnose.verdict import TOO_EARLY, Cause
from tests.diagnose.faults import OLDER, a_hang, a_slow_clock, as_read, as_series, culprits
from tests.diagnose.training import EVERYTHING, START_S, Training


class TestHang:
    def test_a_worker_that_does_not_take_part_is_named(self):
        training, values = a_hang()
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [3])
        assert verdict.since_s == pytest.approx(START_S + 480, abs=3)
        (name,) = [worker.name for worker in verdict.culprits]
        assert f"{name} stopped first, or is idle while the others wait" in [
            item.text for item in verdict.evidence
        ]

    def test_it_is_reported_within_thirty_seconds(self):
        training, values = a_hang(n_bins=480 + 30)
        assert diagnose(as_series(training, values)).cause is Cause.HANG

    def test_a_pause_no_longer_than_others_before_is_none(self):
        training = Training(n_bins=580)
        for minute in (2, 5):
            training.runs[training.at(minute) : training.at(minute) + 60] = False
        training.runs[-100:] = False
        assert diagnose(training.series()).cause is not Cause.HANG

    def test_hosts_that_write_a_checkpoint_do_not_hang(self):
        training, values = a_hang()
        traffic = np.concatenate([np.full(480, 1e8), np.full(120, 2e9)])
        hosts = [
            HostSeries(node=node, start_s=START_S, width_s=1.0, values={Metric.NETWORK: traffic})
            for node in ("n1", "n2")
        ]
        assert diagnose(as_series(training, values, hosts=hosts)).cause is not Cause.HANG

    @pytest.mark.parametrize("infiniband", [True, False])
    def test_constant_node_traffic_is_not_loading(self, infiniband):
        """Monitoring and logs continue, and sometimes increase."""
        training, values = a_hang(n_bins=480 + 45)
        always = 4e5 * (1 + training.random.random(525))
        always[500:] *= 5
        host = {Metric.NETWORK: always}
        if infiniband:
            host[Metric.INFINIBAND] = np.concatenate([np.full(480, 2e9), np.full(45, 2e4)])
        hosts = [HostSeries(node=node, start_s=START_S, width_s=1.0, values=host) for node in ("n1", "n2")]
        verdict = diagnose(as_series(training, values, hosts=hosts))
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [3])

    def test_a_node_that_begins_to_read_loads_though_it_never_did(self):
        training, values = a_hang()
        traffic = np.concatenate([np.zeros(480), np.full(120, 3e8)])
        hosts = [
            HostSeries(node=node, start_s=START_S, width_s=1.0, values={Metric.NETWORK: traffic})
            for node in ("n1", "n2")
        ]
        assert diagnose(as_series(training, values, hosts=hosts)).cause is not Cause.HANG

    @pytest.mark.parametrize("metrics", [EVERYTHING, OLDER])
    @pytest.mark.parametrize("silent", [False, True])
    def test_computing_without_traffic_is_not_a_hang(self, metrics, silent):
        """Evaluation and generation may compute without tensor cores and with little or no traffic."""
        training = Training(metrics=metrics)
        values = training.values()
        since = training.at(7)
        shares = {Metric.NVLINK: 0, Metric.PCIE: 0.02, Metric.POWER: 0.95}
        shares |= {Metric.TENSOR: 0.08, Metric.SM_ACTIVE: 0.8}
        for metric, share in shares.items():
            if metric in values:
                values[metric][:, since:] *= share
        if silent:
            for matrix in values.values():
                matrix[:, -15:] = np.nan
        assert diagnose(as_series(training, values)).cause is not Cause.HANG
        verdict = diagnose(as_series(training, values), running=False, cut_short=True)
        assert verdict.finds_nothing

    def test_the_end_of_a_job_is_none(self):
        training, values = a_hang()
        assert diagnose(as_series(training, values), running=False).cause is not Cause.HANG

    @pytest.mark.parametrize("phases", [None, (1, 7)])
    def test_one_that_is_cancelled_while_workers_wait_is_reported_for_the_ended_job(self, phases):
        training, values = a_hang(n_bins=480 + 120)
        for matrix in values.values():
            matrix[:, -3:] = 0.0  # its processes end
        series = as_series(training, values) if phases is None else as_read(training, values, phases=phases)
        verdict = diagnose(series, running=False, cut_short=True)
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [3])

    @pytest.mark.parametrize(
        ("seconds", "cut_short", "cause"),
        [
            (120, True, Cause.INCONCLUSIVE),
            (40, True, Cause.HEALTHY),
            (120, False, Cause.HEALTHY),
        ],
    )
    def test_an_idle_end_of_a_job_that_is_cut_short_may_have_been_one(self, seconds, cut_short, cause):
        """Instead of hanging, the job may have uploaded its results."""
        training = Training(n_bins=480 + seconds)
        training.runs[480:] = False
        verdict = diagnose(training.series(), running=False, cut_short=cut_short)
        assert verdict.cause is cause
        if cause is Cause.INCONCLUSIVE:
            assert (
                "nothing computed for the last 115 s: the job hung or had nothing more" in verdict.why_not[0]
            )

    def test_a_fault_before_an_idle_end_is_reported_first(self):
        training = Training(n_bins=480 + 120)
        training.clock[5, 100:] *= 0.8
        training.runs[480:] = False
        assert diagnose(training.series(), running=False, cut_short=True).cause is Cause.SLOW

    def test_without_activity_idle_links_show_who_spins(self):
        training, values = a_hang(metrics=OLDER)
        values[Metric.POWER][:, training.at(8) :] = 0.5  # a spinning GPU draws half of its maximum power
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [3])

    @pytest.mark.parametrize(("idle", "cause"), [(0, Cause.HEALTHY), (3, Cause.HANG)])
    def test_the_worker_that_writes_for_all_is_the_first(self, idle, cause):
        training, values = a_hang(n_bins=480 + 40)
        values[Metric.UTIL][:, training.at(8) :] = 1.0
        values[Metric.UTIL][idle, training.at(8) :] = 0.0
        assert diagnose(as_series(training, values)).cause is cause

    @pytest.mark.parametrize("phases", [(0, 0), (1, 7), (3, 9)])
    def test_counters_that_are_read_each_ten_seconds_name_no_worker_who_did_not_stop(self, phases):
        training, values = a_hang(n_bins=480 + 45)
        values[Metric.UTIL][3, training.at(8) :] = 1.0
        verdict = diagnose(as_read(training, values, phases=phases))
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [])

    @pytest.mark.parametrize("metrics", [EVERYTHING, OLDER])
    @pytest.mark.parametrize(
        ("seconds", "copies", "cause"),
        [
            (40, 0.0, Cause.INCONCLUSIVE),
            (40, 0.3, Cause.HEALTHY),
            (85, 0.0, Cause.INCONCLUSIVE),
            (95, 0.0, Cause.HANG),
        ],
    )
    def test_without_data_of_hosts_an_idle_job_may_be_loading_data(self, seconds, copies, cause, metrics):
        """Data that takes half a minute to write is first copied over PCIe; data that is read is not."""
        training = Training(n_bins=480 + seconds, metrics=metrics)
        training.runs[480:] = False
        values = training.values()
        values[Metric.PCIE][:, 480:483] = copies
        verdict = diagnose(as_series(training, values))
        assert verdict.cause is cause or (cause is Cause.HEALTHY and verdict.finds_nothing)
        if cause is Cause.INCONCLUSIVE:
            assert verdict.kind == TOO_EARLY
            assert "no host reports whether the job loads or writes" in verdict.why_not[0]

    def test_a_fault_before_a_pause_that_may_be_a_hang_is_reported(self):
        training = a_slow_clock(n_bins=480 + 40)
        training.runs[480:] = False
        assert culprits(diagnose(training.series())) == [5]

    def test_pauses_with_host_traffic_do_not_excuse_one_without(self):
        training, values = a_hang(n_bins=480 + 40)
        network = np.full(520, 1e8)
        for matrix in values.values():
            matrix[:, 200:260] = 0.0
        network[200:260], network[480:] = 2e9, 0.0
        hosts = [
            HostSeries(node=node, start_s=START_S, width_s=1.0, values={Metric.NETWORK: network})
            for node in ("n1", "n2")
        ]
        assert diagnose(as_series(training, values, hosts=hosts)).cause is Cause.HANG

    def test_a_training_that_has_just_begun_compiles_for_as_long(self):
        training = Training(n_bins=120 + 40 + 40)
        training.runs[:120] = training.runs[160:] = False
        hosts = [
            HostSeries(
                node=node,
                start_s=START_S,
                width_s=1.0,
                values={Metric.NETWORK: np.where(training.runs, 1e8, 0.0), Metric.CPU: np.full(200, 0.2)},
            )
            for node in ("n1", "n2")
        ]
        assert diagnose(training.series(hosts=hosts)).cause is not Cause.HANG

    def test_a_worker_that_resumes_after_writing_ends_the_hang(self):
        training, values = a_hang(n_bins=480 + 45)
        values[Metric.UTIL][:, training.at(8) :] = 1.0
        values[Metric.UTIL][0, training.at(8) : -8] = 0.0
        values[Metric.UTIL][4, training.at(8) : -8] = 0.0
        assert diagnose(as_series(training, values)).finds_nothing

    def test_workers_that_resumed_two_seconds_ago_end_the_hang(self):
        training = Training(n_bins=480 + 100)
        training.runs[480:] = False
        values = training.values()
        assert diagnose(as_series(training, values)).cause is Cause.HANG
        values[Metric.UTIL][5:8, -2:] = 1.0
        assert diagnose(as_series(training, values)).finds_nothing

    @pytest.mark.parametrize(("seconds", "cut_short"), [(120, True), (320, False)])
    def test_a_moment_of_work_ends_no_hang_of_a_job_that_was_ended_or_has_stood_for_long(
        self, seconds, cut_short
    ):
        training, values = a_hang(n_bins=480 + seconds)
        end = -5 if cut_short else None  # processes end in the last seconds
        values[Metric.UTIL][3, slice(-7 if cut_short else -2, end)] = 0.5
        verdict = diagnose(as_series(training, values), running=not cut_short, cut_short=cut_short)
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [3])

    def test_cpus_that_work_put_off_what_is_only_suspected(self):
        training = Training(n_bins=480 + 40)
        training.runs[480:] = False
        for cpu, cause in ((0.05, Cause.HANG), (0.6, Cause.HEALTHY)):
            use = np.where(training.runs, 0.5, cpu)
            hosts = [
                HostSeries(node=node, start_s=START_S, width_s=1.0, values={Metric.CPU: use})
                for node in ("n1", "n2")
            ]
            verdict = diagnose(training.series(hosts=hosts))
            assert verdict.cause is cause
            assert not any("no host reports" in why for why in verdict.why_not)

    @pytest.mark.parametrize("metrics", [EVERYTHING, OLDER])
    def test_one_that_fills_most_of_what_is_sampled_is_reported(self, metrics):
        training, values = a_hang(metrics=metrics, n_bins=600)
        values = {metric: matrix[:, 380:] for metric, matrix in values.items()}
        training.n_bins = 220
        values = {metric: np.hstack([matrix, *[matrix[:, -120:]] * 3]) for metric, matrix in values.items()}
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [3])

    def test_one_who_works_for_all_while_they_wait_is_no_hang(self):
        training, values = a_hang(n_bins=480 + 60)
        since = training.at(8)
        for metric in (Metric.TENSOR, Metric.SM_ACTIVE, Metric.UTIL):
            values[metric][3, since:] = values[metric][3, since - 60 : since]  # for example an evaluation
        assert diagnose(as_series(training, values)).cause is not Cause.HANG

    @pytest.mark.parametrize(
        ("cpu", "seconds", "suspect"),
        [
            (None, 120, True),
            (0.9, 60, True),
            (0.2, 60, True),
            (0.12, 60, True),
            (0.05, 60, False),
            (0.9, 310, False),
        ],
    )
    def test_the_first_may_evaluate_on_cpus_while_the_others_wait(self, cpu, seconds, suspect):
        """Such an evaluation is short and uses CPUs; without host data, a hang is only suspected."""
        training, values = a_hang(n_bins=480 + seconds)
        values[Metric.UTIL][:, training.at(8) :] = 1.0
        values[Metric.UTIL][0, training.at(8) :] = 0.0
        host = (
            {
                Metric.CPU: np.concatenate([np.full(480, 0.2), np.full(seconds, cpu)]),
                Metric.NETWORK: np.concatenate([np.full(480, 1e8), np.zeros(seconds)]),
            }
            if cpu is not None
            else {}
        )
        hosts = [HostSeries(node=node, start_s=START_S, width_s=1.0, values=host) for node in ("n1", "n2")]
        verdict = diagnose(as_series(training, values, hosts=hosts if cpu is not None else ()))
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [0])
        assert verdict.suspect is suspect

    def test_a_partial_reading_at_the_stop_counts(self):
        training, values = a_hang(n_bins=480 + 20, metrics=OLDER)
        values[Metric.POWER][:, 480:] = 0.13
        values[Metric.UTIL][3, 480:] = 0.0
        verdict = diagnose(as_read(training, values, phases=(5, 5)))
        assert verdict.cause is Cause.HANG
        assert "for 20 s" in verdict.evidence[0].text

    @pytest.mark.parametrize(("seconds", "cause"), [(20, Cause.HEALTHY), (30, Cause.HANG)])
    def test_a_job_whose_gpus_and_hosts_are_idle_may_be_ending(self, seconds, cause):
        """Slurm reports a job as running until all of its processes have ended."""
        training = Training(n_bins=480 + seconds)
        training.runs[480:] = False
        host = {Metric.CPU: np.where(training.runs, 0.2, 0.02), Metric.NETWORK: 1e8 * training.runs}
        hosts = [HostSeries(node=node, start_s=START_S, width_s=1.0, values=host) for node in ("n1", "n2")]
        assert diagnose(training.series(hosts=hosts)).cause is cause

    @pytest.mark.parametrize(("cpu", "sure"), [(0.02, True), (0.2, False)])
    def test_without_spinning_workers_idle_hosts_make_a_hang_certain(self, cpu, sure):
        """Compiling and loading use CPUs; waiting for a hung file system does not."""
        training, values = a_hang(n_bins=480 + 40)
        values[Metric.UTIL][:, training.at(8) :] = 0.0
        host = {
            Metric.CPU: np.concatenate([np.full(480, 0.2), np.full(40, cpu)]),
            Metric.NETWORK: np.concatenate([np.full(480, 1e8), np.zeros(40)]),
        }
        hosts = [HostSeries(node=node, start_s=START_S, width_s=1.0, values=host) for node in ("n1", "n2")]
        verdict = diagnose(as_series(training, values, hosts=hosts))
        assert verdict.cause is Cause.HANG
        assert (verdict.strength >= CLEAR_HANG) is sure


class TestValuesEachTenSeconds:
    """Values are momentary, as in the watch over running jobs, and some nodes lack the last value."""

    def a_table(self, idle, **last):
        training, values = a_hang(n_bins=480 + 30)
        values[Metric.UTIL][:, training.at(8) :] = 1.0
        values[Metric.UTIL][idle, training.at(8) :] = 0.0
        values = {metric: matrix[:, 9::10] for metric, matrix in values.items()}
        for name, (row, value) in last.items():
            values[Metric(name)][row, -1] = value
        training.width_s, training.n_bins = 10.0, values[Metric.UTIL].shape[1]
        return diagnose(as_series(training, values))

    def test_a_hang_is_reported_and_sure(self):
        verdict = self.a_table(3)
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [3])
        assert verdict.strength >= CLEAR_HANG

    def test_a_worker_that_resumes_ends_the_hang(self):
        assert self.a_table(3, util=(3, 0.4)).cause is Cause.HEALTHY

    def test_the_first_may_write_for_all_though_its_last_value_is_missing(self):
        assert self.a_table(0, util=(slice(0, 8), np.nan)).cause is Cause.HEALTHY
