"""Timings of steps show the cause of delays, and accuse no worker of effects of the workload."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from slurm_gpu.diagnose.steps.judge import judge_steps
from slurm_gpu.diagnose.steps.table import COLUMNS, StepSeries, read_steps
from slurm_gpu.diagnose.verdict import Cause

FORWARD_S, BACKWARD_S = 0.05, 0.1


def a_training(seed=1, replicas=4, stages=4, steps=12, micro=4, noise=0.02):
    """Return the seconds (forward, backward) of each microbatch, equal except for noise."""
    random = np.random.default_rng(seed)
    shape = (replicas, stages, steps, micro)
    return tuple(base * (1 + noise * random.standard_normal(shape)) for base in (FORWARD_S, BACKWARD_S))


def a_table(forward, backward):
    """Return the rows of a trace, including some operations that do not compute."""
    rows = {name: [] for name in COLUMNS}
    for optype, cost in (("forward-compute", forward), ("backward-compute", backward)):
        for (replica, stage, step, micro), seconds in np.ndenumerate(cost):
            here = (replica, stage, stage * len(cost) + replica, 10 + step, optype, seconds, micro)
            for name, value in zip(COLUMNS, here, strict=True):
                rows[name].append(value)
    for name, value in zip(COLUMNS, (0, 0, 0, 10, "optimizer", 99.0, -1), strict=True):
        rows[name].append(value)
    return {name: np.array(values) for name, values in rows.items()}


def judged(forward, backward):
    return judge_steps(read_steps(a_table(forward, backward)))


def test_alike_is_healthy():
    assert judged(*a_training()).cause is Cause.HEALTHY


def test_a_stage_that_has_more_to_do_is_named_and_no_worker():
    forward, backward = a_training()
    forward[:, 3] *= 2
    backward[:, 3] *= 1.4
    verdict = judged(forward, backward)
    assert (verdict.cause, verdict.kind, verdict.roles) == (Cause.IMBALANCE, "pipeline stage", ("stage 3",))
    assert verdict.culprits == ()
    assert "last stage" in verdict.evidence[0].text
    assert verdict.evidence[0].value == pytest.approx(1.6, abs=0.02)


@pytest.mark.parametrize(("times", "cause"), [(1.07, Cause.IMBALANCE), (1.03, Cause.HEALTHY)])
def test_a_stage_that_has_a_little_more_to_do_is_named_though_it_costs_less_than_three_per_cent(times, cause):
    forward, backward = a_training()
    forward[:, 3] *= times
    backward[:, 3] *= times
    verdict = judged(forward, backward)
    assert verdict.cause is cause
    if cause is Cause.IMBALANCE:
        assert (verdict.kind, verdict.roles) == ("pipeline stage", ("stage 3",))
        assert 1 - verdict.evidence[-1].expected / verdict.evidence[-1].value < 0.03


def test_sequences_of_unequal_length_are_reported_and_no_worker():
    forward, backward = a_training(replicas=8, stages=2, micro=8)
    length = 1 + np.random.default_rng(2).pareto(3, (8, 1, 12, 8))
    verdict = judged(forward * length, backward * length)
    assert (verdict.cause, verdict.kind, verdict.culprits) == (Cause.IMBALANCE, "sequence", ())


def test_microbatches_that_vary_without_any_pattern_are_not_called_sequences():
    forward, backward = a_training(noise=0.25)
    assert judged(np.abs(forward), np.abs(backward)).kind != "sequence"


@pytest.mark.parametrize("slowdown", [1.07, 1.6])
def test_a_worker_that_is_slow_in_each_step_is_named(slowdown):
    forward, backward = a_training(replicas=8)
    forward[5, 2] *= slowdown
    backward[5, 2] *= slowdown
    verdict = judged(forward, backward)
    assert verdict.cause is Cause.SLOW
    assert [worker.rank for worker in verdict.culprits] == [2 * 8 + 5]
    assert verdict.evidence[0].value == pytest.approx(slowdown, abs=0.02)


@pytest.mark.parametrize(
    ("replicas", "times", "options"),
    [
        (2, 1.07, {}),
        (2, 1.5, {}),
        (8, 1.3, {}),
        (8, 1.15, {"steps": 4, "micro": 2, "noise": 0.05}),
        (8, 1.5, {"steps": 4, "micro": 2, "noise": 0.1}),
    ],
)
def test_a_replica_that_takes_longer_in_all_its_stages_has_more_to_do(replicas, times, options):
    """With few steps, factors per worker also remove noise and therefore explain more."""
    forward, backward = a_training(replicas=replicas, **options)
    forward[1] *= times
    backward[1] *= times
    verdict = judged(forward, backward)
    assert (verdict.cause, verdict.kind, verdict.culprits) == (Cause.IMBALANCE, "replica", ())
    assert verdict.roles == tuple(f"rank {stage * replicas + 1}" for stage in range(4))


def test_sequences_that_differ_little_are_reported_where_forward_and_backward_agree():
    forward, backward = a_training(replicas=8, stages=2, micro=2, noise=0.005)
    length = np.random.default_rng(2).lognormal(0, 0.065, (8, 1, 12, 2))
    assert judged(forward * length, backward * length).kind == "sequence"


def test_the_what_if_estimates_the_duration_of_a_step():
    forward, backward = a_training(noise=0.0)
    forward[:, 3] *= 2
    verdict = judged(forward, backward)
    # Four microbatches in the last stage, and one in each of the other three.
    assert verdict.evidence[-1].value == pytest.approx(4 * 0.2 + 3 * 0.15)


def test_too_few_steps_are_not_judged():
    verdict = judged(*a_training(steps=3))
    assert verdict.cause is Cause.INCONCLUSIVE
    assert "3 steps" in verdict.why_not[0]


def test_replicas_without_data_are_no_zeros():
    forward, backward = a_training()
    table = a_table(forward, backward)
    there = ~((table["dp_rank"] == 1) & (table["stage"] == 2))
    steps = read_steps({name: column[there] for name, column in table.items()})
    assert isinstance(steps, StepSeries)
    assert steps.ranks[1, 2] == -1
    assert judge_steps(steps).cause is Cause.HEALTHY


@pytest.mark.parametrize(("column", "place"), [("stage", 2), ("dp_rank", 2)])
def test_a_place_with_only_the_forward_pass_is_not_judged(column, place):
    table = a_table(*a_training())
    there = ~((table["optype"] == "backward-compute") & (table[column] == place))
    verdict = judge_steps(read_steps({name: values[there] for name, values in table.items()}))
    assert verdict.cause is Cause.HEALTHY
    assert verdict.evidence[0].value < 0.03
    json.dumps(verdict.to_json(), allow_nan=False)


def test_tensor_parallel_ranks_take_as_long_as_the_slowest_and_all_of_them_may_be_it():
    table = a_table(*a_training(replicas=8, stages=2, noise=0.0))
    both = {name: np.concatenate([values, values]) for name, values in table.items()}
    both["rank"] = np.concatenate([2 * table["rank"], 2 * table["rank"] + 1])
    both["duration"] = np.where(both["rank"] == 6, 1.5, 1.0) * both["duration"]
    steps = read_steps(both)
    assert (steps.ranks >= 0).sum() == 32
    verdict = judge_steps(steps)
    assert verdict.cause is Cause.SLOW
    assert [worker.rank for worker in verdict.culprits] == [6, 7]
    assert verdict.suspect
    assert verdict.evidence[0].value == pytest.approx(1.5)
    # Four microbatches in the slow place, and one in the other stage.
    assert verdict.evidence[-1].value == pytest.approx(4 * 0.225 + 0.15)


def test_an_unknown_rank_is_not_accused():
    forward, backward = a_training(replicas=8)
    forward[5, 2] *= 1.5
    backward[5, 2] *= 1.5
    table = a_table(forward, backward)
    table["rank"][:] = -1
    verdict = judge_steps(read_steps(table))
    assert (verdict.cause, verdict.culprits) == (Cause.SLOW, ())
    assert verdict.evidence[0].text.startswith("replica 5, stage 2: 1.5")


def test_ranks_that_are_none_do_not_make_a_huge_table():
    table = a_table(*a_training(steps=400))
    table["rank"] = np.arange(len(table["rank"]))
    with pytest.raises(ValueError, match="rows are too few"):
        read_steps(table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": np.uint64(2**63)}, "rank must be at most 10000000"),
        ({"stage": None}, "missing column stage"),
        ({"optype": "recv"}, "neither forward-compute"),
        ({"duration": -1.0}, "duration must be seconds"),
        ({"step": 0.5}, "step must be whole numbers"),
    ],
)
def test_an_invalid_table_is_an_error_with_the_column(change, message):
    table = a_table(*a_training(replicas=1, stages=1, steps=1))
    for name, value in change.items():
        if value is None:
            del table[name]
        else:
            table[name] = np.full(len(table["dp_rank"]), value)
    with pytest.raises(ValueError, match=message):
        read_steps(table)


TRACES = Path(os.environ.get("SLURM_GPU_DATA", "")) / "straggler"
traced = pytest.mark.skipif(
    not (TRACES / "trace-ST.parquet").exists(),
    reason="SLURM_GPU_DATA names no folder with straggler/trace-ST.parquet",
)


def traced_columns(name):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(TRACES / f"trace-{name}.parquet", columns=list(COLUMNS))
    return {column: table.column(column).to_pylist() for column in COLUMNS}


@traced
def test_the_traced_job_st_has_a_last_stage_that_does_more():
    verdict = judge_steps(read_steps(traced_columns("ST")))
    assert (verdict.cause, verdict.kind, verdict.roles) == (Cause.IMBALANCE, "pipeline stage", ("stage 3",))
    assert verdict.evidence[0].value == pytest.approx(1.63, abs=0.01)
    assert verdict.culprits == ()


@traced
def test_the_traced_job_se_has_sequences_of_unequal_length():
    verdict = judge_steps(read_steps(traced_columns("SE")))
    assert (verdict.cause, verdict.kind, verdict.culprits) == (Cause.IMBALANCE, "sequence", ())
