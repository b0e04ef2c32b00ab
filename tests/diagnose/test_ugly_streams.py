"""Unknown values remain unknown, and no GPU is accused because of incomplete or noisy data."""

from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import groups_given
from slurm_gpu.diagnose.series import JobWorker, align, worker_series_of_timeline
from slurm_gpu.diagnose.verdict import Cause, Verdict
from slurm_gpu.wire import Timeline
from slurm_gpu.wire.timeline import level as byte_of
from tests.diagnose.faults import SEEDS, a_slow_clock, as_read, as_series, culprits
from tests.diagnose.training import Training


class TestHonesty:
    def test_gaps_of_a_tenth_change_nothing(self):
        training = a_slow_clock()
        values = training.values()
        gaps = training.random.random(training.clock.shape) < 0.1
        for matrix in values.values():
            matrix[gaps] = np.nan
        assert culprits(diagnose(as_series(training, values))) == [5]

    def test_below_the_coverage_that_it_takes_nothing_is_judged(self):
        training = a_slow_clock()
        values = training.values()
        for matrix in values.values():
            matrix[:, :200] = np.nan
        verdict = diagnose(as_series(training, values))
        assert verdict.cause is Cause.INCONCLUSIVE
        assert "67%" in verdict.why_not[0]

    def test_the_first_minute_of_a_job_is_inconclusive(self):
        verdict = diagnose(Training(n_bins=50).series())
        assert verdict.cause is Cause.INCONCLUSIVE
        assert verdict.why_not == ("it has computed for less than 60 s",)
        assert verdict.next_step == "Repeat the diagnosis in a minute."
        assert "Ask again" not in diagnose(Training(n_bins=50).series(), running=False).next_step

    @pytest.mark.parametrize(("seconds", "cause"), [(100, Cause.INCONCLUSIVE), (150, Cause.STARVATION)])
    def test_in_its_first_two_minutes_a_job_may_have_little_to_run(self, seconds, cause):
        training = Training(n_bins=seconds)
        training.fetch[:] = 0.7
        verdict = diagnose(training.series())
        assert verdict.cause is cause
        assert [
            why.endswith("which is normal in the first 120 s of computing") for why in verdict.why_not
        ] == ([True] if cause is Cause.INCONCLUSIVE else [])

    def test_a_missing_node_may_be_the_one(self):
        training = Training(n=24)
        present = [course for course in training.worker_series() if course.worker.node != "n3"]
        verdict = diagnose(align(present, missing=training.workers[16:]))
        assert verdict.cause is Cause.INCONCLUSIVE
        assert "8 GPUs on n3: no data" in verdict.why_not

    def test_a_missing_node_does_not_cause_the_lack_of_input_of_others(self):
        training = Training(n=24)
        training.fetch[:] = 0.7
        present = [course for course in training.worker_series() if course.worker.node != "n3"]
        verdict = diagnose(align(present, missing=training.workers[16:]))
        assert (verdict.cause, verdict.kind) == (Cause.STARVATION, "all")
        assert verdict.why_not == ("8 GPUs on n3: no data",)

    def test_a_node_of_which_little_has_come_so_far_is_not_called_without_data(self):
        training = Training(n=24)
        values = training.values()
        for matrix in values.values():
            matrix[16:, 30:] = np.nan
        verdict = diagnose(as_series(training, values))
        assert verdict.cause is Cause.INCONCLUSIVE
        assert "8 GPUs on n3: data for less than 20% of the time" in verdict.why_not

    def test_a_missing_node_does_not_hide_who_is_seen_to_be_slow(self):
        training = a_slow_clock(n=24)
        present = [course for course in training.worker_series() if course.worker.node != "n3"]
        verdict = diagnose(align(present, missing=training.workers[16:]))
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [5])
        assert verdict.why_not == ("8 GPUs on n3: no data",)

    @pytest.mark.parametrize("healthy", [True, False])
    def test_clocks_that_are_two_seconds_apart_change_nothing(self, healthy):
        training = Training(n=32) if healthy else a_slow_clock(n=32)
        for minute in (2, 5, 8):
            training.runs[training.at(minute) : training.at(minute) + 25] = False
        off = {"n1": 0.0, "n2": 2.0, "n3": -2.0, "n4": 1.0}
        courses = [
            replace(course, start_s=course.start_s + off[course.worker.node])
            for course in training.worker_series()
        ]
        verdict = diagnose(align(courses))
        assert culprits(verdict) == ([] if healthy else [5])
        assert verdict.cause is (Cause.HEALTHY if healthy else Cause.SLOW)

    def test_one_gpu_has_no_peers(self):
        verdict = diagnose(Training(n=1).series())
        assert verdict.cause is Cause.INCONCLUSIVE
        assert "no peers" in verdict.why_not[0]

    def test_one_gpu_that_waits_for_data_needs_none(self):
        training = Training(n=1)
        training.fetch[:] = 0.6
        assert diagnose(training.series()).cause is Cause.STARVATION

    def test_a_shared_gpu_is_not_judged(self):
        training = a_slow_clock()
        training.workers = tuple(replace(w, shared=w.rank == 5) for w in training.workers)
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.INCONCLUSIVE, [])
        assert "shared with other jobs" in verdict.why_not[0]

    def test_a_shared_gpu_does_not_hide_who_is_seen_to_be_slow(self):
        training = a_slow_clock()
        training.workers = tuple(replace(w, shared=w.rank == 6) for w in training.workers)
        assert culprits(diagnose(training.series())) == [5]

    def test_a_job_on_shared_gpus_only_is_inconclusive(self):
        training = Training()
        training.workers = tuple(replace(w, shared=True) for w in training.workers)
        assert diagnose(training.series()).cause is Cause.INCONCLUSIVE

    def test_utilisation_alone_makes_only_a_suspicion(self):
        training = Training(metrics=(Metric.UTIL, Metric.MEM_USED))
        training.fetch[8:] = 0.3
        verdict = diagnose(training.series())
        assert verdict.suspect
        assert "only utilisation" in verdict.why_not[0]

    def test_a_lower_clock_of_who_has_nothing_to_do_accuses_no_gpu(self):
        training = Training()
        training.fetch[5] = 0.6
        training.clock[5] *= 0.85
        verdict = diagnose(training.series())
        assert verdict.cause is Cause.STARVATION
        assert "clocks are also lower" in verdict.why_not[0]

    def test_a_lower_clock_of_who_waits_for_its_peers_is_a_contradiction(self):
        training = Training()
        training.clock[5] *= 0.9
        training.work[5] *= 0.6
        verdict = diagnose(training.series())
        assert verdict.cause is Cause.INCONCLUSIVE
        assert "yet they wait longer" in verdict.why_not[0]

    def test_no_data_at_all(self):
        worker = JobWorker(node="n1", device="GPU-1")
        assert diagnose(align([], missing=[worker])).cause is Cause.INCONCLUSIVE

    def test_a_job_of_two_seconds_is_inconclusive(self):
        assert diagnose(Training(n_bins=2).series()).cause is Cause.INCONCLUSIVE

    def test_groups_of_another_job_are_refused(self):
        with pytest.raises(ValueError, match="contain 8 workers, but the job has 16"):
            diagnose(Training().series(), groups=groups_given("pp=2", 8))

    def test_rules_have_bounds(self):
        with pytest.raises(ValueError, match="min_coverage"):
            DiagnosisThresholds(min_coverage=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_rounding_of_a_barely_used_link_accuses_no_gpu(seed):
    training = Training(seed=seed, width_s=64.0, n_bins=128)
    values = training.values()
    values[Metric.PCIE] = values[Metric.PCIE] * 0.08  # one and a half steps of a timeline
    values[Metric.PCIE][3] *= 1.1
    values[Metric.PCIE][4] *= 0.9
    courses = [
        worker_series_of_timeline(
            worker,
            Timeline(
                width_s=64,
                start_s=1_795_000_000 // 64 * 64,
                series={
                    m.value: bytes(map(byte_of, v[row]))
                    for m, v in values.items()
                    if m is not Metric.THROTTLE
                },
            ),
        )
        for row, worker in enumerate(training.workers)
    ]
    assert diagnose(align(courses)).cause is Cause.HEALTHY


class TestReading:
    """Each node reads its counters every ten seconds, at different moments."""

    @pytest.mark.parametrize("phases", [(0, 5), (2, 9), (1, 8)])
    @pytest.mark.parametrize("seed", SEEDS)
    def test_pauses_accuse_no_gpu(self, seed, phases):
        training = Training(seed=seed, n=32)
        for minute in (1.2, 3.1, 5.4, 7.7, 9.8):
            training.runs[training.at(minute) : training.at(minute) + 14] = False
        assert diagnose(as_read(training, training.values(), phases=phases)).cause is Cause.HEALTHY

    @pytest.mark.parametrize("end", range(540, 600, 7))
    def test_a_beginning_pause_accuses_no_gpu(self, end):
        training = Training(n=32, n_bins=end)
        training.runs[536:] = False
        read = as_read(training, training.values(), phases=(1, 8))
        assert diagnose(read).cause in (Cause.HEALTHY, Cause.INCONCLUSIVE)
        assert diagnose(read).culprits == ()

    def test_a_slow_gpu_is_named_all_the_same(self):
        training = a_slow_clock(n=32)
        assert culprits(diagnose(as_read(training, training.values()))) == [5]

    def test_a_stumble_of_seconds_accuses_no_gpu(self):
        training = Training(n=16)
        training.fetch[7, 400:406] = 20.0
        assert diagnose(as_read(training, training.values())).cause is Cause.HEALTHY
        assert diagnose(as_read(training, training.values(), phases=(6, 6))).cause is Cause.HEALTHY


class TestUgly:
    @pytest.mark.parametrize("level", [np.nan, 0.0, 0.5, 1.0])
    @pytest.mark.parametrize("metric", [Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.NVLINK])
    def test_a_series_without_information_accuses_no_gpu(self, metric, level):
        training = Training()
        values = training.values()
        values[metric][:] = level
        verdict = diagnose(as_series(training, values))
        assert verdict.cause in (Cause.HEALTHY, Cause.INCONCLUSIVE)

    @pytest.mark.parametrize("metric", [Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.SM_CLOCK])
    def test_one_gpu_that_lacks_a_metric_is_not_accused(self, metric):
        training = Training()
        values = training.values()
        values[metric][5] = np.nan
        assert diagnose(as_series(training, values)).cause is Cause.HEALTHY

    def test_a_job_of_three_minutes_is_judged(self):
        assert diagnose(Training(n_bins=180).series()).cause is Cause.HEALTHY
        training = Training(n_bins=180)
        training.clock[5] *= 0.8
        assert culprits(diagnose(training.series())) == [5]

    def test_instances_of_a_gpu_report_their_memory_alone(self):
        verdict = diagnose(Training(metrics=(Metric.MEM_USED,)).series())
        assert verdict.cause is Cause.INCONCLUSIVE
        assert "the power and activity of its GPUs were not measured" in verdict.why_not[0]

    @pytest.mark.parametrize("ahead_s", [-2, 2])
    def test_a_gap_of_one_node_and_a_clock_that_is_off_hide_no_gpu(self, ahead_s):
        training = a_slow_clock(n=32)
        courses = training.worker_series()
        late = [
            replace(course, start_s=course.start_s + ahead_s) if course.worker.node == "n2" else course
            for course in courses
        ]
        gone = [
            replace(
                course,
                values={m: np.where(np.arange(600) // 60 == 3, np.nan, v) for m, v in course.values.items()},
            )
            if course.worker.node == "n3"
            else course
            for course in late
        ]
        assert culprits(diagnose(align(gone))) == [5]


def test_the_next_step_of_a_suspicion_is_to_verify():
    sure = Verdict(cause=Cause.SLOW, strength=0.9)
    assert sure.next_step.startswith("Exclude the node")
    assert replace(sure, strength=0.55).next_step.startswith("Do not drain the node yet")
