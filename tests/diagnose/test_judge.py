"""The judge returns one verdict for healthy training runs, and for timings combined with counters."""

import pytest

from slurm_gpu.diagnose.judge import combine_verdicts, diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import groups_given
from slurm_gpu.diagnose.steps.judge import judge_steps
from slurm_gpu.diagnose.steps.table import read_steps
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.wire import Event
from tests.diagnose.faults import SEEDS, a_slow_clock, as_series, culprits, in_steps_of
from tests.diagnose.test_steps import a_table, a_training
from tests.diagnose.training import EVERYTHING, Training


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
    def test_checkpoints_and_loading_are_no_problem(self, seed):
        training = Training(seed=seed)
        training.runs[:90] = False
        for minute in (3, 5, 7, 9):
            training.runs[training.at(minute) : training.at(minute) + 20] = False
        assert diagnose(training.series()).cause is Cause.HEALTHY

    def test_an_evaluation_is_no_problem(self):
        training = Training()
        training.work[:, training.at(4) : training.at(7)] *= 0.7
        values = training.values()
        values[Metric.NVLINK][:, training.at(4) : training.at(7)] *= 0.02
        assert diagnose(as_series(training, values)).cause is Cause.HEALTHY

    def test_stages_of_a_pipeline_are_not_compared_with_each_other(self):
        training = Training(n=16)
        training.memory[:8] = 0.85
        training.work[:8] *= 1.04
        training.clock[:8] *= 0.97
        verdict = diagnose(training.series())
        assert verdict.cause is Cause.HEALTHY
        assert list(verdict.groups) == ["role 0", "role 1"]
        assert "memory" in verdict.groups_by


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

    def test_evidence_of_the_hardware_is_kept_despite_timings(self):
        verdict = diagnose(a_slow_clock().series(), steps=self.timings(last=1.6))
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [5])

    def test_timings_of_more_ranks_than_there_are_gpus_are_a_suspicion(self):
        verdict = diagnose(Training(n=8).series(), steps=self.timings(last=1.6))
        assert (verdict.cause, verdict.suspect) == (Cause.IMBALANCE, True)
        assert "16 ranks, but the job has 8 GPUs" in verdict.why_not[-1]

    def test_gpu_counters_do_not_overrule_timings(self):
        verdict = diagnose(Training().series(), steps=self.timings(slow=5), groups=groups_given("pp=2", 16))
        assert (verdict.cause, verdict.groups_by) == (Cause.SLOW, "--groups pp=2")
        assert list(verdict.groups) == ["stage 0", "stage 1"]
        assert all("no worker differs" not in item.text for item in verdict.evidence)
        assert "no worker differs" in verdict.why_not[-1]

    def test_timings_by_which_nothing_is_wrong_are_reported(self):
        verdict = diagnose(Training().series(), steps=self.timings())
        assert verdict.cause is Cause.HEALTHY
        assert "no step would be more than 3% shorter" in verdict.evidence[-1].text

    def test_insufficient_timings_and_missing_ranks_are_reported(self):
        table = a_table(*a_training(steps=3))
        few = {name: column[table["rank"] == 0] for name, column in table.items()}
        verdict = diagnose(Training().series(), steps=read_steps(few))
        assert verdict.cause is Cause.HEALTHY
        assert verdict.why_not == (
            "timings: 3 steps with 100% of the operations; at least 4 steps with 50 % are required",
            "the timings contain only 1 rank of 16 GPUs",
        )

    @pytest.mark.parametrize("kinds", [["xid"], ["xid", "gpu_lost"], ["gpu_hung"]])
    def test_a_gpu_that_is_lost_is_not_hidden_by_a_slow_stage(self, kinds):
        training = Training()
        events = [
            Event(
                node="n1", boot_id="b", n=n, at_s=1795000500, kind=kind, device="GPU-003", data={"code": 79}
            )
            for n, kind in enumerate(kinds)
        ]
        verdict = diagnose(training.series(events=events), steps=self.timings(last=1.6))
        assert (verdict.cause, culprits(verdict)) == (Cause.SLOW, [3])

    def test_timings_that_name_no_rank_are_not_of_none(self):
        table = a_table(*a_training(replicas=4, stages=4))
        table["rank"][:] = -1
        verdict = diagnose(Training().series(), steps=read_steps(table))
        assert (verdict.cause, verdict.why_not) == (Cause.HEALTHY, ())

    def test_a_rank_that_is_late_where_no_gpu_is_slow_is_a_suspicion(self):
        """The rank's process may wait for something else within the timed operations."""
        verdict = diagnose(Training().series(), steps=self.timings(slow=5))
        assert (verdict.cause, culprits(verdict), verdict.suspect) == (Cause.SLOW, [5], True)
        assert any("no worker differs" in why for why in verdict.why_not)

    def test_both_together_are_surer(self):
        training = Training()
        training.speed[5] = 0.85
        counters = diagnose(training.series())
        both = combine_verdicts(counters, judge_steps(self.timings(slow=5)))
        assert culprits(both) == [5]
        assert both.strength > counters.strength


def test_a_verdict_is_json():
    data = diagnose(a_slow_clock().series()).to_json()
    assert data["cause"] == "slow or failing"
    assert data["culprits"] == [{"node": "n1", "device": "GPU-005", "rank": 5}]
    assert set(EVERYTHING) >= {
        Metric(item["metric"]) for item in data["evidence"] if item["metric"] == "power"
    }
    assert "slurm" not in data["next_step"].lower() or "sbatch" in data["next_step"]
