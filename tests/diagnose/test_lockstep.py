"""GPUs that do not train together have no peers: no GPU is accused because others work differently."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import Series
from slurm_gpu.diagnose.verdict import Cause
from tests.diagnose.faults import SEEDS, a_slow_clock, as_read, as_series, culprits
from tests.diagnose.training import Training

OLDER = (Metric.UTIL, Metric.MEM_USED, Metric.POWER, Metric.SM_CLOCK, Metric.THROTTLE, Metric.PCIE)
HOPPER = (*OLDER, Metric.SM_ACTIVE, Metric.TENSOR, Metric.NVLINK)
BUSY = (Metric.UTIL, Metric.SM_ACTIVE, Metric.TENSOR)


def independent_programs(metrics, seed=1, n=8, *, alike=True) -> tuple[Training, dict[Metric, np.ndarray]]:
    """Return programs, one per GPU, that evaluate and save independently and send each other nothing."""
    training = Training(n=n, seed=seed, metrics=metrics)
    values = training.values()
    random = training.random
    for row in range(n):
        level = 1.0 if alike else random.uniform(0.5, 1.0)
        pauses = np.arange(600) % random.integers(150, 300) < random.integers(45, 60)
        for metric in (*BUSY, Metric.POWER):
            if metric in values:
                values[metric][row] *= level
                values[metric][row, np.roll(pauses, random.integers(300))] = (
                    0.13 if metric is Metric.POWER else 0.0
                )
    for metric in (Metric.NVLINK, Metric.PCIE):
        if metric in values:
            values[metric][:] = 0.0 if metric is Metric.NVLINK else 0.004
    return training, values


def quiet_since(values, rows, first):
    """Set the GPUs in these rows to idle from the bin `first` on."""
    for metric, matrix in values.items():
        if metric not in (Metric.MEM_USED, Metric.SM_CLOCK):
            matrix[rows, first:] = 0.13 if metric is Metric.POWER else 0.0


def judged(training, values, **more):
    return diagnose(as_series(training, values), **more)


def test_bursts_of_traffic_in_long_steps_are_no_sign_of_different_paces():
    """A block contains four or five bursts over both links; the number varies by chance."""
    training = Training(n=16)
    training.work[3] = 1.5
    values = training.values()
    block, more = np.arange(training.n_bins) // 15, np.arange(16) % 2
    five = (block[None, :] + more[:, None]) % 2 == 0
    five[more == 1, -30:] = True
    five[more == 0, -30:] = False
    for metric in (Metric.NVLINK, Metric.PCIE):
        values[metric] = 0.04 * np.where(five, 5.0, 4.0)
    verdict = judged(training, values)
    assert verdict.cause is Cause.IMBALANCE
    assert culprits(verdict) == []


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("seconds", [4.3, 5.7, 7.4, 12.3])
def test_samples_of_other_parts_of_own_steps_are_no_unequal_sequences(seconds, n):
    training = Training(n=n, noise=0.003)
    values, at = training.values(), np.arange(training.n_bins)
    for row in range(n):
        computes = (at / seconds / (1 + 0.003 * row) + row / n) % 1 < 2 / 3
        for metric in (Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER):
            values[metric][row] *= np.where(computes, 1.2, 0.2)
        values[Metric.NVLINK][row] *= np.where(computes, 0.1, 2.0)
    verdict = diagnose(as_read(training, values))
    assert verdict.cause is Cause.INCONCLUSIVE
    assert "its GPUs are not in step" in verdict.why_not[0]


@pytest.mark.parametrize("slow_from_s", [0, 420])
def test_a_slower_job_without_data_of_a_worker_is_in_step(slow_from_s):
    training = Training()
    slower = slice(slow_from_s, slow_from_s + 180)
    training.talk[:, slower] = 1.6
    training.clock[5, 200:420] *= 0.8
    values = training.values()
    for matrix in values.values():
        matrix[3, slower] = np.nan
    verdict = judged(training, values)
    assert "in step" not in " ".join(verdict.why_not)


@pytest.mark.parametrize(("times", "seconds"), [(0.1, 150), (4, 60), (6, 30), (3, 120)])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_short_burst_of_one_program_does_not_make_it_a_peer(seed, times, seconds):
    metrics = (*OLDER, Metric.SM_ACTIVE, Metric.TENSOR)
    training = Training(n=8, seed=seed, metrics=metrics)
    values = training.values()
    pace = training.random.uniform(0.6, 1.0, (8, 1))
    for metric in (Metric.TENSOR, Metric.SM_ACTIVE, Metric.PCIE):
        values[metric] *= pace
    values[Metric.PCIE][2, 200 : 200 + seconds] *= times
    verdict = judged(training, values)
    assert verdict.cause is Cause.INCONCLUSIVE
    assert "in step" in verdict.why_not[0]


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("metrics", [OLDER, HOPPER], ids=["older", "hopper"])
@pytest.mark.parametrize("seed", SEEDS)
def test_programs_side_by_side_have_no_peers(seed, metrics, alike):
    verdict = judged(*independent_programs(metrics, seed, alike=alike))
    assert verdict.cause is Cause.INCONCLUSIVE
    assert verdict.why_not[0].startswith("its GPUs ")


@pytest.mark.parametrize("metrics", [OLDER, HOPPER], ids=["older", "hopper"])
@pytest.mark.parametrize("seed", SEEDS)
def test_those_that_end_one_after_the_other_hang_not(seed, metrics):
    training, values = independent_programs(metrics, seed)
    for row in range(8):
        quiet_since(values, row, 250 + 25 * row)
    assert judged(training, values).cause is Cause.INCONCLUSIVE


def test_gpus_that_send_each_other_nothing_are_not_compared():
    training = Training(metrics=HOPPER)
    training.fetch[3:6] = 0.3
    values = training.values()
    values[Metric.NVLINK][:] = 0.0
    values[Metric.PCIE][:] = 0.004
    verdict = judged(training, values)
    assert verdict.cause is Cause.INCONCLUSIVE
    assert "send each other nothing" in verdict.why_not[0]


def test_heat_is_reported_for_them_too():
    training, values = independent_programs(HOPPER)
    values[Metric.SM_CLOCK][5, 200:] *= 0.7
    values[Metric.THROTTLE][5, 200:] = 0.9
    verdict = judged(training, values)
    assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.SLOW, "throttled", [5])


@pytest.mark.parametrize("metrics", [OLDER, HOPPER], ids=["older", "hopper"])
def test_workers_that_leave_an_elastic_training_are_not_accused(metrics):
    training = Training(metrics=metrics)
    values = training.values()
    quiet_since(values, slice(8, None), 300)
    verdict = judged(training, values)
    assert (verdict.cause, verdict.culprits) == (Cause.INCONCLUSIVE, ())
    assert "n2" in verdict.why_not[0]


@pytest.mark.parametrize("metrics", [OLDER, HOPPER], ids=["older", "hopper"])
class TestUnused:
    def test_gpus_that_were_never_used_are_not_accused(self, metrics):
        training = Training(metrics=metrics)
        values = training.values()
        quiet_since(values, [3, 9], 0)
        verdict = judged(training, values)
        assert (verdict.cause, verdict.culprits) == (Cause.INCONCLUSIVE, ())
        assert verdict.why_not[0].startswith("2 GPUs on n1, n2: not used by the job")

    def test_independent_gpus_do_not_hide_a_slow_one(self, metrics):
        training = a_slow_clock(metrics=metrics)
        values = training.values()
        quiet_since(values, [3, 9], 0)
        assert culprits(judged(training, values)) == [5]

    def test_a_job_that_has_done_nothing_starves_not(self, metrics):
        training = Training(metrics=metrics)
        values = training.values()
        quiet_since(values, slice(None), 0)
        verdict = judged(training, values)
        assert verdict.cause is Cause.INCONCLUSIVE
        assert "have had nothing to run" in verdict.why_not[0]
        assert "whether the program uses GPUs" in verdict.next_step


@pytest.mark.parametrize("metrics", [OLDER, HOPPER], ids=["older", "hopper"])
def test_a_worker_with_another_role_is_not_starved(metrics):
    """A worker that only gathers parameters uses less memory and does less than workers that train."""
    training = Training(metrics=metrics)
    training.memory[0], training.work[0] = 0.2, 0.05
    values = training.values()
    values[Metric.UTIL][0] *= 0.2
    assert judged(training, values).culprits == ()


class TestEvaluation:
    """The first worker evaluates for all, and the others wait for it, spinning."""

    def series(self, metrics, util=0.85) -> Series:
        training = Training(metrics=metrics)
        values = training.values()
        part = slice(400, None)
        for metric, level in ((Metric.NVLINK, 0.0), (Metric.PCIE, 0.0), (Metric.TENSOR, 0.0)):
            if metric in values:
                values[metric][:, part] = level
        values[Metric.UTIL][:, part] = 1.0
        values[Metric.POWER][:, part] = 0.35
        values[Metric.UTIL][0, part], values[Metric.POWER][0, part] = util, 0.72
        if Metric.TENSOR in values:
            values[Metric.SM_ACTIVE][:, part], values[Metric.SM_ACTIVE][0, part] = 0.12, 0.3
            values[Metric.TENSOR][0, part] = 0.2
        return as_series(training, values)

    @pytest.mark.parametrize("util", [0.6, 1.0])
    @pytest.mark.parametrize("metrics", [OLDER, HOPPER], ids=["older", "hopper"])
    def test_it_is_no_hang_and_it_is_not_starved(self, metrics, util):
        verdict = diagnose(self.series(metrics, util))
        assert (verdict.finds_nothing, verdict.culprits) == (True, ())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_permanent_difference_of_power_is_only_a_suspicion(seed):
    training = Training(n=16, seed=seed, metrics=OLDER)
    values = training.values()
    values[Metric.POWER][6] *= 1.09
    verdict = judged(training, values)
    assert verdict.culprits == ()
    assert verdict.finds_nothing or verdict.suspect
