"""Verdicts: each cause by its signs, nobody accused without, and `cannot tell` where it cannot be told."""

from dataclasses import replace

import numpy as np
import pytest

from slurm_gpu.diagnose.case import Rules
from slurm_gpu.diagnose.judge import diagnose, sharpened
from slurm_gpu.diagnose.peers import groups_given
from slurm_gpu.diagnose.series import Course, HostCourse, Metric, Worker, align, course_of_timeline
from slurm_gpu.diagnose.steps import judge_steps, read_steps
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.records import Event, Timeline
from slurm_gpu.records.timeline import level as byte_of
from tests.diagnose.test_steps import a_table, a_training
from tests.diagnose.training import EVERYTHING, START_S, Training

SEEDS = range(3)


def culprits(verdict):
    return [worker.rank for worker in verdict.culprits]


def a_slow_clock(slowdown=0.2, **more):
    """Worker 5, from the fourth minute on, by heat."""
    training = Training(**more)
    training.clock[5, training.at(4) :] *= 1 - slowdown
    training.throttle[5, training.at(4) :] = 0.8
    return training


def a_hang(**more):
    """Worker 3 stops after eight minutes, and the others spin."""
    training = Training(**more)
    values = training.values()
    stop = training.at(8)
    for metric, level in ((Metric.TENSOR, 0), (Metric.NVLINK, 0), (Metric.PCIE, 0), (Metric.SM_ACTIVE, 0.1)):
        values[metric][:, stop:] = level
    values[Metric.POWER][:, stop:] = 0.3
    values[Metric.UTIL][:, stop:] = 1.0
    values[Metric.UTIL][3, stop:] = 0.0
    return training, values


def as_series(training, values, **more):
    courses = [
        Course(
            worker=worker,
            start_s=START_S,
            width_s=training.width_s,
            values={metric: matrix[row] for metric, matrix in values.items()},
        )
        for row, worker in enumerate(training.workers)
    ]
    return align(courses, **more)


def in_steps_of(seconds, training, ahead=(0, 0)):
    """What a training of long steps shows each second: computing, then a third of the time communication.

    `ahead`: seconds by which the clocks of its nodes are.
    """
    values = training.values()
    at = np.arange(training.n_bins)
    for row, worker in enumerate(training.workers):
        computes = (at + ahead[int(worker.node[1:]) - 1]) % seconds < 2 * seconds / 3
        for metric in (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER):
            values[metric][row] *= np.where(computes, 1.2, 0.2)
        values[Metric.NVLINK][row] *= np.where(computes, 0.1, 2.0)
    return as_series(training, {metric: np.clip(matrix, 0, 1) for metric, matrix in values.items()})


class TestHealthy:
    @pytest.mark.parametrize("ahead", [(0, 0), (0, 2), (-1, 2)])
    @pytest.mark.parametrize("seconds", [3, 7, 20])
    def test_steps_that_last_for_seconds_are_no_pauses(self, seconds, ahead):
        assert diagnose(in_steps_of(seconds, Training(), ahead)).cause is Cause.HEALTHY
        verdict = diagnose(in_steps_of(seconds, a_slow_clock(), ahead))
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [5])

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("n", [8, 32])
    def test_workers_that_are_alike(self, seed, n):
        verdict = diagnose(Training(n=n, seed=seed).series())
        assert (verdict.cause, culprits(verdict)) == (Cause.HEALTHY, [])

    @pytest.mark.parametrize("seed", SEEDS)
    def test_checkpoints_and_loading_are_no_trouble(self, seed):
        training = Training(seed=seed)
        training.runs[:90] = False
        for minute in (3, 5, 7, 9):
            training.runs[training.at(minute) : training.at(minute) + 20] = False
        assert diagnose(training.series()).cause is Cause.HEALTHY

    def test_an_evaluation_is_no_trouble(self):
        training = Training()
        training.work[:, training.at(4) : training.at(7)] *= 0.7
        values = training.values()
        values[Metric.NVLINK][:, training.at(4) : training.at(7)] *= 0.02
        assert diagnose(as_series(training, values)).cause is Cause.HEALTHY

    def test_stages_of_a_pipeline_are_not_compared_with_each_other(self):
        training = Training(n=16)
        training.memory[:8] = 0.85
        training.work[:8] *= 1.1
        training.clock[:8] *= 0.97
        verdict = diagnose(training.series())
        assert verdict.cause is Cause.HEALTHY
        assert list(verdict.groups) == ["role 0", "role 1"]
        assert "memory" in verdict.groups_by


class TestSlow:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("slowdown", [0.05, 0.15, 0.5])
    def test_a_gpu_that_heat_slows_down(self, seed, slowdown):
        verdict = diagnose(a_slow_clock(slowdown, seed=seed).series())
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [5])
        assert verdict.since_s == pytest.approx(START_S + 240, abs=30)
        assert verdict.until_s is None
        assert verdict.confidence > 0.8

    def test_what_is_over_is_told_with_its_end(self):
        training = a_slow_clock()
        training.clock[5, training.at(7) :] = training.clock[4, training.at(7) :]
        training.throttle[5, training.at(7) :] = 0
        verdict = diagnose(training.series())
        assert culprits(verdict) == [5]
        assert verdict.until_s == pytest.approx(START_S + 420, abs=30)

    def test_it_is_told_within_three_minutes(self):
        training = a_slow_clock(0.15, n_bins=240 + 180)
        assert culprits(diagnose(training.series())) == [5]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_gpu_whose_clock_is_right_and_that_never_waits(self, seed):
        training = Training(seed=seed)
        training.speed[9] = 0.85
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [9])
        assert "equal work" in verdict.kind

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
        assert culprits(diagnose(a_slow_clock(told=older).series())) == [5]

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

    def test_heat_in_the_whole_room_is_told_of_all(self):
        training = Training()
        training.throttle[:] = 0.6
        training.clock[:] *= 0.8
        verdict = diagnose(training.series())
        assert (verdict.cause, verdict.nodes) == (Cause.SLOW, ("n1", "n2"))


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
    def test_what_is_small_is_clear_against_its_own_past(self, seed):
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


class TestSupply:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_all_wait_for_each_other_longer_than_before(self, seed):
        training = Training(seed=seed)
        training.talk[:, training.at(5) :] *= 2
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.COMMUNICATION, [])
        assert verdict.since_s == pytest.approx(START_S + 300, abs=30)

    def test_a_job_that_does_less_for_no_reason_told_is_not_called_healthy(self):
        training = Training(told=(Metric.SM_ACTIVE, Metric.TENSOR, Metric.SM_CLOCK))
        training.talk[:, training.at(5) :] *= 2
        verdict = diagnose(training.series())
        assert verdict.cause is Cause.UNKNOWN
        assert "nothing that was told says why" in verdict.why_not[0]

    def test_a_link_that_carries_less_names_its_ends(self):
        training = Training()
        values = training.values()
        values[Metric.NVLINK][[4, 5]] *= 0.4
        values[Metric.PCIE][[4, 5]] *= 3
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict), verdict.nodes) == (Cause.COMMUNICATION, [4, 5], ("n1",))
        assert [item.metric for item in verdict.evidence] == ["nvlink", "pcie"]

    def test_a_node_whose_infiniband_carries_less_is_named(self):
        training = Training(n=32)
        hosts = [
            HostCourse(
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

    def test_gpus_that_have_nothing_to_run(self):
        training = Training()
        training.fetch[:] = 0.7
        cpu = [
            HostCourse(node=node, start_s=START_S, width_s=10.0, values={Metric.CPU: np.full(60, 0.98)})
            for node in ("n1", "n2")
        ]
        verdict = diagnose(training.series(hosts=cpu))
        assert (verdict.cause, culprits(verdict)) == (Cause.STARVATION, [])
        assert not verdict.suspect

    def test_that_it_began_later_is_told(self):
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


class TestHang:
    def test_who_does_not_take_part_is_named(self):
        training, values = a_hang()
        verdict = diagnose(as_series(training, values))
        assert (verdict.cause, culprits(verdict)) == (Cause.HANG, [3])
        assert verdict.since_s == pytest.approx(START_S + 480, abs=3)

    def test_it_is_told_within_thirty_seconds(self):
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
            HostCourse(node=node, start_s=START_S, width_s=1.0, values={Metric.NETWORK: traffic})
            for node in ("n1", "n2")
        ]
        assert diagnose(as_series(training, values, hosts=hosts)).cause is not Cause.HANG

    def test_the_end_of_a_job_is_none(self):
        training, values = a_hang()
        assert diagnose(as_series(training, values), running=False).cause is not Cause.HANG


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
        assert verdict.cause is Cause.UNKNOWN
        assert "67%" in verdict.why_not[0]

    def test_a_missing_node_may_be_the_one(self):
        training = Training(n=24)
        told = [course for course in training.courses() if course.worker.node != "n3"]
        verdict = diagnose(align(told, missing=training.workers[16:]))
        assert verdict.cause is Cause.UNKNOWN
        assert "8 GPUs on n3: told nothing" in verdict.why_not

    def test_a_missing_node_does_not_hide_who_is_seen_to_be_slow(self):
        training = a_slow_clock(n=24)
        told = [course for course in training.courses() if course.worker.node != "n3"]
        verdict = diagnose(align(told, missing=training.workers[16:]))
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [5])
        assert verdict.why_not == ("8 GPUs on n3: told nothing",)

    @pytest.mark.parametrize("healthy", [True, False])
    def test_clocks_that_are_two_seconds_apart_change_nothing(self, healthy):
        training = Training(n=32) if healthy else a_slow_clock(n=32)
        for minute in (2, 5, 8):
            training.runs[training.at(minute) : training.at(minute) + 25] = False
        off = {"n1": 0.0, "n2": 2.0, "n3": -2.0, "n4": 1.0}
        courses = [
            replace(course, start_s=course.start_s + off[course.worker.node]) for course in training.courses()
        ]
        verdict = diagnose(align(courses))
        assert culprits(verdict) == ([] if healthy else [5])
        assert verdict.cause is (Cause.HEALTHY if healthy else Cause.SLOW)

    def test_one_gpu_has_no_peers(self):
        verdict = diagnose(Training(n=1).series())
        assert verdict.cause is Cause.UNKNOWN
        assert "no peers" in verdict.why_not[0]

    def test_one_gpu_that_waits_for_data_needs_none(self):
        training = Training(n=1)
        training.fetch[:] = 0.6
        assert diagnose(training.series()).cause is Cause.STARVATION

    def test_a_shared_gpu_is_not_judged(self):
        training = a_slow_clock()
        training.workers = tuple(replace(w, shared=w.rank == 5) for w in training.workers)
        verdict = diagnose(training.series())
        assert (verdict.cause, culprits(verdict)) == (Cause.UNKNOWN, [])
        assert "shared with other jobs" in verdict.why_not[0]

    def test_a_shared_gpu_does_not_hide_who_is_seen_to_be_slow(self):
        training = a_slow_clock()
        training.workers = tuple(replace(w, shared=w.rank == 6) for w in training.workers)
        assert culprits(diagnose(training.series())) == [5]

    def test_where_all_are_shared_nothing_is_said(self):
        training = Training()
        training.workers = tuple(replace(w, shared=True) for w in training.workers)
        assert diagnose(training.series()).cause is Cause.UNKNOWN

    def test_utilisation_alone_makes_only_a_suspicion(self):
        training = Training(told=(Metric.UTIL, Metric.MEM_USED))
        training.fetch[8:] = 0.3
        verdict = diagnose(training.series())
        assert verdict.suspect
        assert "only utilisation" in verdict.why_not[0]

    def test_a_lower_clock_of_who_has_nothing_to_do_accuses_nobody(self):
        training = Training()
        training.fetch[5] = 0.6
        training.clock[5] *= 0.85
        verdict = diagnose(training.series())
        assert verdict.cause is Cause.STARVATION
        assert "clocks are lower as well" in verdict.why_not[0]

    def test_a_lower_clock_of_who_waits_for_its_peers_is_a_contradiction(self):
        training = Training()
        training.clock[5] *= 0.9
        training.work[5] *= 0.6
        verdict = diagnose(training.series())
        assert verdict.cause is Cause.UNKNOWN
        assert "yet they wait longer" in verdict.why_not[0]

    def test_nothing_told_at_all(self):
        worker = Worker(node="n1", device="GPU-1")
        assert diagnose(align([], missing=[worker])).cause is Cause.UNKNOWN

    def test_a_job_that_has_hardly_begun(self):
        assert diagnose(Training(n_bins=2).series()).cause is Cause.UNKNOWN

    def test_groups_of_another_job_are_refused(self):
        with pytest.raises(ValueError, match="of 8 workers, the job has 16"):
            diagnose(Training().series(), groups=groups_given("pp=2", 8))

    def test_rules_have_bounds(self):
        with pytest.raises(ValueError, match="min_coverage"):
            Rules(min_coverage=0)


class TestWithSteps:
    def timings(self, slow=None, last=1.0):
        forward, backward = a_training(replicas=4, stages=4)
        for cost in (forward, backward):
            cost[:, 3] *= last
            if slow is not None:
                cost[slow % 4, slow // 4] *= 1.25
        return read_steps(a_table(forward, backward))

    def test_timings_clear_a_gpu_that_is_only_busy(self):
        training = Training(seed=4)
        training.speed[9] = 0.85
        assert diagnose(training.series()).cause is Cause.SLOW
        verdict = diagnose(training.series(), steps=self.timings(last=1.6))
        assert (verdict.cause, culprits(verdict)) == (Cause.IMBALANCE, [])

    def test_what_the_hardware_says_stands(self):
        verdict = diagnose(a_slow_clock().series(), steps=self.timings(last=1.6))
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [5])

    def test_both_together_are_surer(self):
        training = Training()
        training.speed[5] = 0.85
        counters = diagnose(training.series())
        both = sharpened(counters, judge_steps(self.timings(slow=5)))
        assert culprits(both) == [5]
        assert both.confidence > counters.confidence


def test_timelines_of_a_day_are_judged_as_windows_are():
    training = a_slow_clock(width_s=512.0, n_bins=170, n=32)
    training.clock[5] = 0.95
    training.clock[5, 80:] *= 0.8
    verdict = diagnose(training.series())
    assert culprits(verdict) == [5]
    assert verdict.since_s == pytest.approx(START_S + 80 * 512, abs=1024)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_rounding_makes_of_a_link_that_is_hardly_used_accuses_nobody(seed):
    training = Training(seed=seed, width_s=64.0, n_bins=128)
    values = training.values()
    values[Metric.PCIE] = values[Metric.PCIE] * 0.08  # one and a half steps of a timeline
    values[Metric.PCIE][3] *= 1.1
    values[Metric.PCIE][4] *= 0.9
    courses = [
        course_of_timeline(
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


def test_a_verdict_is_json():
    told = diagnose(a_slow_clock().series()).to_json()
    assert told["cause"] == "slow or failing"
    assert told["culprits"] == [{"node": "n1", "device": "GPU-005", "rank": 5}]
    assert set(EVERYTHING) >= {
        Metric(item["metric"]) for item in told["evidence"] if item["metric"] == "power"
    }
    assert "slurm" not in told["next_step"].lower() or "sbatch" in told["next_step"]
