"""Small jobs with any share of slow workers: a fault that costs time is found, or no verdict is given."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import MODELS, Groups, groups_given
from slurm_gpu.diagnose.steps.judge import judge_steps
from slurm_gpu.diagnose.steps.table import read_steps
from slurm_gpu.diagnose.verdict import (
    LONG_PAUSE,
    NO_DIFFERENCE,
    TWO_GROUPS,
    UNEXPLAINED,
    Cause,
    Verdict,
)
from tests.diagnose.faults import OLDER, as_read, as_series, culprits
from tests.diagnose.test_steps import a_table
from tests.diagnose.training import EVERYTHING, Training

# Minimum loss of a job that is not healthy, and the number of generated jobs (about 10 s).
_LOSS = 0.1
_JOBS = 240
_MOST_WRONG = 0.02


def timings(times: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds forward and backward; `times` contains each worker's factor, by replica and stage."""
    factors = np.array(times)[:, :, None, None]
    random = np.random.default_rng(1)
    shape = (*factors.shape[:2], 40, 4)
    forward = factors * (1 + 0.02 * random.standard_normal(shape))
    backward = 2 * factors * (1 + 0.02 * random.standard_normal(shape))
    return forward, backward


def timed(times: list[list[float]]) -> Verdict:
    """Judge a job by such timings."""
    return judge_steps(read_steps(a_table(*timings(times))))


@pytest.mark.parametrize(
    ("times", "who"),
    [
        ([1, 2], "rank 1 takes 2.0 times"),
        ([2, 1], "rank 0 takes 2.0 times"),
        ([1, 1.3], "rank 1 takes 1.3 times"),
        ([1, 1, 2], "rank 2 takes 2.0 times"),
        ([1, 1, 2, 2], "ranks 2-3 take 2.0 times"),
        ([1, 1, 1, 1, 1, 2, 2, 2], "ranks 5-7 take 2.0 times"),
        ([1, 2, 2, 2], "ranks 1-3 take 2.0 times"),
        ([4, 1, 1, 1, 1, 3, 3, 3, 3], "ranks 0 and 5-8 take 3.0 to 4.0 times"),
    ],
)
def test_few_peers_or_many_slow_ones_are_two_groups_in_timings(times, who):
    verdict = timed([[one] for one in times])
    assert (verdict.cause, verdict.kind, verdict.culprits) == (Cause.INCONCLUSIVE, TWO_GROUPS, ())
    assert verdict.why_not[0] == f"{who} as long as the others, because of slow GPUs or more work"


def test_a_small_difference_is_not_rounded_away():
    assert timed([[1], [1.05]]).why_not[0].startswith("rank 1 takes 1.05 times")


def test_a_long_list_of_ranks_is_shortened():
    why = timed([[1.0 + 0.5 * (replica % 2)] for replica in range(64)]).why_not[0]
    assert why.startswith("ranks 1, 3, 5, 7, 9, 11, 13, 15 and 24 more take 1.5 times")


def varied(n: int, sigma: float, rare: float) -> Verdict:
    """Judge equal workers with a share `rare` of microbatches that take ten times the usual time."""
    random = np.random.default_rng(1)
    forward, backward = (1 + sigma * random.standard_normal((n, 1, 40, 1)) for _ in range(2))
    forward[random.random(forward.shape) < rare] *= 10
    return judge_steps(read_steps(a_table(forward, 2 * backward)))


def test_usual_variation_is_no_loss_of_some_worker():
    """The slowest of 256 equal workers takes 5 % longer in each step by chance."""
    assert varied(256, 0.03, 0.0).cause is Cause.HEALTHY


def test_operations_without_duration_cause_no_warning():
    """In a table in milliseconds, most operations may be rounded to 0."""
    forward = np.tile([0.0, 0.0, 0.0, 1.0], (4, 1, 10, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict = judge_steps(read_steps(a_table(forward, forward)))
    assert (verdict.culprits, verdict.roles) == ((), ())


@pytest.mark.parametrize("share", [0.0005, 0.01])
def test_rare_long_microbatches_accuse_no_worker(share):
    verdict = varied(256, 0.02, share)
    assert (verdict.cause, verdict.kind) == (Cause.INCONCLUSIVE, UNEXPLAINED)
    assert verdict.why_not[0].endswith("shorter if all microbatches of each worker took the same time")


@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
@pytest.mark.parametrize("pause", [False, True])
def test_workers_that_take_longer_are_named_although_counters_find_nothing(metrics, pause):
    training = Training(n=2, metrics=metrics)
    training.runs[200:400] = not pause
    slow, equal = (
        diagnose(training.series(), steps=read_steps(a_table(*times)))
        for times in (timings([[1], [2]]), timings([[1], [1]]))
    )
    assert (slow.kind, slow.roles, slow.finds_nothing) == (TWO_GROUPS, ("rank 1",), False)
    assert slow.why_not[0].startswith("rank 1 takes 2.0 times")
    assert equal.kind == (LONG_PAUSE if pause else "")


def test_one_slow_place_of_two_replicas_is_no_imbalance_of_stages():
    verdict = timed([[1, 1], [1, 2]])
    assert (verdict.cause, verdict.kind, verdict.roles) == (Cause.INCONCLUSIVE, TWO_GROUPS, ("rank 3",))


def test_with_one_replica_a_busy_stage_may_also_be_a_slow_gpu():
    verdict = timed([[1, 1, 1.7, 1]])
    assert (verdict.cause, verdict.suspect) == (Cause.IMBALANCE, True)
    assert verdict.why_not == ("with one replica, a slow GPU of the stage has the same symptoms",)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_equal_workers_are_healthy_in_timings(n):
    assert timed([[1.0]] * n).cause is Cause.HEALTHY


@pytest.mark.parametrize(("n", "slow"), [(2, 1), (3, 1), (4, 1), (4, 2), (8, 2), (8, 3), (8, 4)])
@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
def test_gpus_at_half_speed_are_never_healthy(n, slow, metrics):
    training = Training(n=n, metrics=metrics)
    training.speed[n - slow :] = 0.5
    verdict = diagnose(training.series())
    assert verdict.cause is not Cause.HEALTHY
    if metrics is EVERYTHING:
        accused = culprits(verdict) or [int(role.split()[1]) for role in verdict.roles]
        assert accused == list(range(n - slow, n))


def test_a_throttled_gpu_needs_no_peers():
    """Throttle one GPU of a job with four stages of one GPU each."""
    training = Training(n=4)
    training.clock[2], training.throttle[2] = 0.6, 0.9
    verdict = diagnose(training.series(), groups=groups_given("pp=4", 4))
    assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.SLOW, "throttled", [2])


def test_a_clock_far_below_that_of_other_stages_is_named():
    training = Training(n=4)
    training.clock[2] = 0.6
    verdict = diagnose(training.series(), groups=groups_given("pp=4", 4))
    assert verdict.cause is not Cause.HEALTHY
    assert "rank 2" in verdict.why_not[0]


def test_a_lower_clock_of_another_model_is_no_difference():
    """The maximum clock of an H100 is higher, and its usual clock is further below it."""
    training = Training(n=4)
    training.clock[:2], training.speed[:2] = 0.75, 0.95 / 0.75
    models = Groups(of=np.array([0, 0, 1, 1]), names=("NVIDIA H100", "NVIDIA A100"), source=MODELS)
    assert diagnose(training.series(), groups=models).cause is Cause.HEALTHY


def test_a_group_without_data_is_not_compared():
    training = Training(n=4)
    values = training.values()
    values[Metric.SM_ACTIVE][:] = np.nan
    groups = Groups(of=np.array([0, 0, 2, 2]), names=("a", "none", "b"), source="--groups")
    assert diagnose(as_series(training, values), groups=groups).cause is not Cause.SLOW


@pytest.mark.parametrize(("n", "own"), [(2, 0.6), (4, 0.6)])
def test_the_clock_of_the_others_is_stated_as_it_is(n, own):
    training = Training(n=n)
    training.clock[-1] = own
    verdict = diagnose(training.series(), groups=groups_given(f"pp={n}", n))
    assert verdict.why_not[0].endswith("60% of the maximum clock, compared with 95% on the other GPUs")


def with_stalls(spin: bool, first: int, length: int, every: int, **more) -> Verdict:
    training = Training(**more)
    at = np.arange(training.n_bins)
    training.runs[(at >= first) & ((at - first) % every < length)] = False
    values = training.values()
    if spin:
        values[Metric.UTIL][:, ~training.runs] = 1.0
    return diagnose(as_series(training, values))


@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
@pytest.mark.parametrize("n", [2, 8])
def test_stalls_that_begin_are_late_input_or_at_least_not_healthy(n, metrics):
    """From minute 6 on, all GPUs compute for 5 of 20 s."""
    verdict = with_stalls(False, 360, 15, 20, n=n, metrics=metrics)
    assert (verdict.cause, verdict.suspect, verdict.kind) == (Cause.STARVATION, True, "all")
    verdict = with_stalls(True, 360, 15, 20, n=n, metrics=metrics)
    assert (verdict.cause, verdict.kind) == (Cause.INCONCLUSIVE, UNEXPLAINED)
    why = "the GPUs compute nothing for 75% of the time, compared with 0% before"
    assert verdict.why_not[0].startswith(why)


def test_a_job_that_has_just_become_slower_is_not_healthy():
    training = Training(n=8)
    training.talk[:, 510:] = 1.0
    verdict = diagnose(training.series())
    assert (verdict.cause, verdict.kind) == (Cause.INCONCLUSIVE, UNEXPLAINED)
    assert "too recent or too irregular" in verdict.why_not[0]


def test_a_job_that_is_slow_again_after_an_evaluation_is_not_healthy():
    training = Training(n=8)
    training.talk[:, 375:450] = training.talk[:, 510:] = 1.0
    values = training.values()
    values[Metric.TENSOR][:, 450:510] *= 1.2
    verdict = diagnose(as_series(training, values))
    assert not verdict.finds_nothing
    assert "too recent or too irregular" in verdict.why_not[0]


@pytest.mark.parametrize(("gap_s", "every_s"), [(3, 30), (6, 60)])
def test_a_gpu_with_gaps_in_few_blocks_is_not_healthy(gap_s, every_s):
    """A step takes longer than a block, so most blocks of the GPU contain no gap."""
    training = Training(n=16)
    values = training.values()
    values[Metric.UTIL] = np.minimum(1.0, 0.99 + 0 * values[Metric.UTIL])
    values[Metric.UTIL][3, np.arange(training.n_bins) % every_s < gap_s] = 0.0
    verdict = diagnose(as_series(training, values))
    assert verdict.cause in (Cause.INCONCLUSIVE, Cause.STARVATION)
    assert "rank 3 (n1)" in " ".join((*verdict.why_not, *(item.text for item in verdict.evidence)))


def test_missing_utilisation_is_no_gap():
    """All GPUs have gaps in the first minutes, and the values of one of them end there."""
    training = Training()
    training.fetch[:, :180] = 0.3
    values = training.values()
    values[Metric.UTIL][3, 300:] = np.nan
    assert diagnose(as_series(training, values)).cause is Cause.HEALTHY


def test_regular_checkpoints_are_healthy():
    assert with_stalls(False, 60, 15, 100).cause is Cause.HEALTHY


@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
def test_long_evaluations_at_regular_intervals_are_no_change(metrics):
    """The first evaluation is due after one interval."""
    verdict = with_stalls(False, 600, 100, 600, n_bins=3600, metrics=metrics)
    assert verdict.finds_nothing
    assert verdict.kind != LONG_PAUSE


def test_a_gap_before_the_first_step_makes_the_start_no_pause():
    training = Training()
    training.runs[:100] = False
    values = training.values()
    for matrix in values.values():
        matrix[:, :2] = np.nan
    assert diagnose(as_series(training, values)).cause is Cause.HEALTHY


def test_a_hang_that_ended_remains_in_the_verdict():
    verdict = with_stalls(True, 200, 200, 1000)
    assert (verdict.cause, verdict.kind) == (Cause.INCONCLUSIVE, LONG_PAUSE)
    assert verdict.finds_nothing
    assert verdict.why_not[0] == "nothing computed for 200 s; then the job continued"
    assert (verdict.until_s or 0.0) - (verdict.since_s or 0.0) == 200


def test_without_sm_activity_no_job_is_called_healthy():
    verdict = diagnose(Training(metrics=OLDER).series())
    assert (verdict.cause, verdict.kind) == (Cause.INCONCLUSIVE, NO_DIFFERENCE)
    assert verdict.finds_nothing


def independent(training: Training) -> dict[Metric, np.ndarray]:
    """Return the metrics of workers that take their own steps, without waiting for each other."""
    values = training.values()
    computes = training.work / (training.speed * training.clock / 0.95)
    step = computes + training.talk + training.fetch
    shown = {
        Metric.UTIL: 1 - training.fetch / step,
        Metric.SM_ACTIVE: 0.9 * computes / step,
        Metric.TENSOR: 0.6 * training.work / (step * training.clock),
        Metric.POWER: 0.15 + 0.7 * computes * training.clock**2 * training.speed / step,
        Metric.NVLINK: 0.4 / step,
        Metric.PCIE: 0.1 / step,
    }
    noise = 1 + training.noise * np.random.default_rng(training.seed).standard_normal(step.shape)
    for metric in values.keys() & shown.keys():
        values[metric] = np.where(training.runs, np.clip(shown[metric] * noise, 0, 1), values[metric])
    return values


@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_independent_workers_are_not_compared(n, metrics):
    """Such workers use a parameter server, train asynchronously, or run the trials of one search."""
    training = Training(n=n, metrics=metrics)
    training.work[: n // 2] = 1.5
    verdict = diagnose(as_series(training, independent(training)))
    assert verdict.cause is Cause.INCONCLUSIVE
    assert "its GPUs are not in step" in verdict.why_not[0]


@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize(("every_s", "length_s"), [(70, 15), (75, 11), (80, 20)])
def test_independent_workers_with_common_pauses_are_not_compared(every_s, length_s, n):
    """The pauses leave few blocks without a gap."""
    training = Training(n=n)
    training.work[: n // 4] = 1.5
    training.runs[np.arange(training.n_bins) % every_s >= every_s - length_s] = False
    verdict = diagnose(as_read(training, independent(training)))
    assert verdict.cause is Cause.INCONCLUSIVE


@pytest.mark.parametrize("step_s", [10, 30, 60])
def test_independent_workers_with_rare_bursts_of_traffic_are_not_compared(step_s):
    """Most blocks of 15 s contain no traffic."""
    training = Training(n=8)
    training.work[:2] = 1.5
    values = independent(training)
    for metric in (Metric.NVLINK, Metric.PCIE):
        for row, work in enumerate(training.work[:, 0]):
            bursts = (np.arange(training.n_bins) + 7 * row) % (step_s * (work + 0.3) / 1.3) < 3
            values[metric][row] = 0.5 * bursts
    verdict = diagnose(as_series(training, values))
    assert verdict.cause is Cause.INCONCLUSIVE
    assert "its GPUs are not in step" in verdict.why_not[0]


@dataclass
class _Job:
    training: Training
    values: dict[Metric, np.ndarray]
    groups: Groups | None
    slow: set[int]
    causes: set[Cause]
    loss: float

    def is_right(self, verdict: Verdict) -> bool:
        """Return whether the claim of a verdict, which must not be inconclusive, holds."""
        if verdict.cause is Cause.HEALTHY:
            return self.loss < _LOSS
        return verdict.cause in self.causes and set(culprits(verdict)) <= self.slow


def a_job(seed: int) -> _Job:
    """Generate a job of 1 to 8 workers, of which a share of 10 to 60 % may be slow or have more work."""
    random = np.random.default_rng(seed)
    n, factor = int(random.integers(1, 9)), float(random.uniform(0.4, 0.95))
    topology = random.choice(["data parallel", "pipeline", "asynchronous"])
    kind = random.choice(["speed", "clock", "throttled", "work", "none"])
    metrics = EVERYTHING if random.random() < 0.7 else OLDER
    training = Training(n=n, seed=seed, metrics=metrics, noise=float(random.uniform(0.01, 0.04)))
    rows = random.choice(n, max(1, round(float(random.uniform(0.1, 0.6)) * n)), replace=False)
    since = int(random.choice([0, 180, 300]))
    match kind:
        case "speed":
            training.speed[rows, since:] = factor
        case "clock" | "throttled":
            training.clock[rows, since:] *= factor
            training.throttle[rows, since:] = 0.9 * (kind == "throttled")
        case "work":
            training.work[rows, since:] = 1 / factor
    groups = None
    if topology == "pipeline" and n % 2 == 0:
        stages = int(random.choice([size for size in (2, 4, 8) if n % size == 0]))
        training.memory = np.repeat(np.linspace(0.5, 0.8, stages), n // stages)
        groups = groups_given(f"pp={stages}", n) if random.random() < 0.5 else None
    stalls = random.random() < 0.15
    if stalls:
        length = int(random.integers(11, 40))
        at = np.arange(training.n_bins)
        training.runs[(at >= 330) & (at % (length + int(random.integers(5, 30))) < length)] = False
    computes = training.work / (training.speed * training.clock / 0.95)
    step = computes + training.talk
    paces = step if topology == "asynchronous" else step.max(axis=0)
    best = computes.mean(axis=0) if kind == "work" else training.work * 1.0
    loss = 1 - ((best + 0.3) / paces).mean() * training.runs.mean()
    values = independent(training) if topology == "asynchronous" else training.values()
    slow = {int(row) for row in rows} if kind in ("speed", "clock", "throttled") else set()
    causes = {"none": set(), "work": {Cause.IMBALANCE}}.get(kind, {Cause.SLOW})
    causes = causes | ({Cause.STARVATION} if stalls else set())
    return _Job(training, values, groups, slow, causes, float(loss))


@pytest.fixture(scope="module")
def judged() -> list[tuple[_Job, Verdict]]:
    """Return generated jobs with their verdicts."""
    jobs = [a_job(seed) for seed in range(_JOBS)]
    return [(job, diagnose(as_series(job.training, job.values), groups=job.groups)) for job in jobs]


def test_no_job_with_a_loss_is_called_healthy_and_no_healthy_gpu_accused(judged):
    for job, verdict in judged:
        assert verdict.cause is not Cause.HEALTHY or job.loss < _LOSS, (job.training.seed, job.loss)
    wrong = sum(not set(culprits(verdict)) <= job.slow for job, verdict in judged)
    assert wrong <= _MOST_WRONG * _JOBS


def test_the_stated_confidence_is_the_share_of_right_verdicts(judged):
    """The expected calibration error is at most 0.05."""
    claims: dict[float, list[bool]] = {}
    for job, verdict in judged:
        if verdict.cause is Cause.INCONCLUSIVE:
            assert verdict.confidence == 0
        else:
            claims.setdefault(verdict.confidence, []).append(job.is_right(verdict))
    error = sum(abs(stated * len(right) - sum(right)) for stated, right in claims.items())
    assert error <= 0.05 * sum(map(len, claims.values()))


@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
def test_a_slower_clock_is_named_although_the_gpu_has_no_peers(metrics):
    training = Training(n=4, metrics=metrics)
    training.clock[2, 300:] *= 0.7
    verdict = diagnose(training.series(), groups=groups_given("pp=4", 4))
    assert (verdict.cause, verdict.kind, culprits(verdict)) == (Cause.SLOW, "clock", [2])


@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
@pytest.mark.parametrize(("slow", "groups"), [(1, "pp=4"), (3, "pp=8")])
def test_links_are_not_blamed_if_some_workers_wait_less(slow, groups, metrics):
    n = int(groups.removeprefix("pp="))
    training = Training(n=n, metrics=metrics)
    training.speed[:slow, 300:] = 0.7
    assert diagnose(training.series(), groups=groups_given(groups, n)).cause is Cause.INCONCLUSIVE


@pytest.mark.parametrize("slow", [2, 4])
def test_waiting_gpus_with_a_higher_clock_do_not_have_more_work(slow):
    training = Training(n=6, metrics=OLDER)
    training.clock[:slow] *= 0.6
    verdict = diagnose(training.series())
    assert verdict.cause is not Cause.IMBALANCE
    assert set(culprits(verdict)) <= set(range(slow))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_independent_workers_of_equal_pace_have_no_unequal_sequences(n):
    training = Training(n=n, noise=0.04)
    verdict = diagnose(as_series(training, independent(training)))
    assert "its GPUs are not in step" in verdict.why_not[0]


@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
def test_an_independent_worker_that_slows_down_has_no_slow_link(metrics):
    training = Training(n=4, metrics=metrics)
    training.speed[1, 300:] = 0.8
    verdict = diagnose(as_series(training, independent(training)))
    assert verdict.cause is not Cause.COMMUNICATION


def evaluated(n: int, metrics: tuple[Metric, ...], *, spin: bool, width: int) -> Verdict:
    """Judge a training run in which rank 0 evaluates alone for 20 of 150 s, in bins of `width` seconds."""
    training = Training(n=n, metrics=metrics, n_bins=600 * max(1, width // 10))
    values = training.values()
    there = (np.arange(training.n_bins) - 60) % 150 < 20
    waits = {Metric.SM_ACTIVE: 0.12 * spin, Metric.UTIL: 1.0 * spin, Metric.POWER: 0.35 if spin else 0.13}
    for metric, matrix in values.items():
        if metric in (Metric.NVLINK, Metric.PCIE):
            matrix[:, there] = 0
        elif metric in waits or metric is Metric.TENSOR:
            matrix[1:, there] = waits.get(metric, 0.0)
    wide = {metric: matrix.reshape(n, -1, width).mean(2) for metric, matrix in values.items()}
    training.width_s = float(width)
    return diagnose(as_series(training, wide))


@pytest.mark.parametrize("metrics", [EVERYTHING, OLDER], ids=["hopper", "older"])
@pytest.mark.parametrize("spin", [True, False])
@pytest.mark.parametrize("width", [1, 10, 60, 100])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_an_evaluation_by_one_worker_is_not_unequal_sequences_or_late_input(n, width, spin, metrics):
    """In wide bins, the verdict may be that rank 0 has more work than the others, which is true."""
    verdict = evaluated(n, metrics, spin=spin, width=width)
    more_work = (verdict.kind, verdict.roles) == ("workers", ("rank 0 (n1)",))
    assert verdict.cause in (Cause.HEALTHY, Cause.INCONCLUSIVE) or more_work
