"""Limits are proposed if they shorten waits at no group's cost and the model is reliable."""

from __future__ import annotations

import dataclasses
import math

import pytest

from slurm_gpu.reports.recommend.past import rebuild, scheduling_of
from slurm_gpu.reports.recommend.rules import RuleLimit, count_by, counters
from slurm_gpu.reports.recommend.waits import ALL
from slurm_gpu.simulate.limits import Resource
from slurm_gpu.simulate.scheduler import Scheduling
from tests.reports.recommending import HOUR, T0, nodes, past_run, policy, recorded, search

TWO_EACH = """\
version: 1
mode: enforce
manages: {accounts: [vision]}
groups: {grads: {accounts: [vision]}}
rules:
  - {id: share, for: grads, per: user, why: "Two each.", limits: {gpus_running: 2}}
"""
TWO_GROUPS = """\
version: 1
mode: enforce
manages: {accounts: [vision, nlp]}
groups: {grads: {accounts: [vision]}, others: {accounts: [nlp]}}
rules:
  - {id: share, for: grads, per: user, why: "Four each.", limits: {gpus_running: 4}}
  - {id: rest, for: others, per: group, why: "Eight.", limits: {gpus_running: 8}}
"""
SHARE = RuleLimit("share", "gpus_running")


def bursts(user: str = "alice", days: int = 10, jobs: int = 6, gpus: int = 1) -> list:  # type: ignore[type-arg]
    """Return `n` simultaneous jobs of an hour for each day."""
    return [past_run(24 * day + job / 1000, user, gpus) for day in range(days) for job in range(jobs)]


def test_a_limit_that_causes_waits_next_to_free_gpus_is_raised_by_a_step() -> None:
    limits = policy(TWO_EACH)
    found = search(recorded(bursts(), limits), limits).findings(most_changes=1)
    assert not found.refused
    assert found.reproduction[ALL].within_2x == 1
    assert [(change.limit, change.old, change.new) for change in found.changes] == [(SHARE, 2000, 3000)]
    # Six jobs of an hour: two at a time wait 0, 0, 1, 1, 2, 2 hours, three at a time half of that.
    assert found.before[ALL].mean_h == pytest.approx(1, abs=0.01)
    assert found.after[ALL].mean_h == pytest.approx(0.5, abs=0.01)
    assert found.before[ALL].by_limits_h == pytest.approx(1, abs=0.02)


def test_free_gpus_while_a_group_waited_are_counted() -> None:
    """Test eight GPUs: two of alice's six daily one-hour jobs run at a time, so some wait two hours."""
    limits = policy(TWO_EACH)
    bob = [past_run(24 * day - 0.5, "bob", gpus=3, run_h=1, account="nlp") for day in range(1, 10)]
    cpu = [past_run(24 * day + 12, "alice", gpus=0) for day in range(10)]
    idle = search(recorded(bursts(), limits) + bob + cpu, limits).findings().idle
    # On nine of ten days, bob has three GPUs in the first half hour, while alice has two.
    expected = 6 - 3 * 0.5 * 9 / 20
    assert (idle["grads"].waited_h, idle["grads"].gpus) == pytest.approx((20, expected), abs=0.05)
    assert idle[ALL] == idle["grads"], "bob's began at once"
    nothing = search(bob, limits).findings().idle["grads"]
    assert nothing.waited_h == 0
    assert math.isnan(nothing.gpus)


def test_steps_continue_until_they_are_ineffective_or_sufficient() -> None:
    limits = policy(TWO_EACH.replace("2}", "4}"))
    roomy = recorded(bursts(), policy(TWO_EACH.replace("2}", "8}")))
    found = search(roomy, policy(TWO_EACH.replace("2}", "8}"))).findings()
    assert not found.changes
    assert {trial.worth_it for trial in found.trials} == {False}
    tight = search(recorded(bursts(), limits), limits).findings(most_changes=1)
    assert [(change.old, change.new) for change in tight.changes] == [(4000, 5000)]


@pytest.mark.parametrize("small", [0, 5])
@pytest.mark.parametrize("large", [1, 5])
def test_a_limit_under_which_jobs_would_never_start_is_not_proposed(small: int, large: int) -> None:
    """Test a limit of two: the last jobs request two GPUs, and would never start under a limit of one."""
    limits = policy(TWO_EACH)
    asked = [
        *bursts(days=small),
        *(past_run(24 * (small + day) + job / 1000, gpus=2) for day in range(large) for job in range(36)),
    ]
    found = search(recorded(asked, limits), limits, until_h=2000).findings(most_changes=1)
    assert not found.refused
    lower = next(trial for trial in found.trials if trial.change.new == 1000)
    assert set(lower.hurts) == {ALL, "grads"}
    assert lower.waits[ALL].mean_h >= 0
    assert not found.changes


def test_no_group_gains_at_the_cost_of_another() -> None:
    limits = policy(TWO_GROUPS)
    # bob's short jobs use a whole node and alice's long ones fill the other; a fifth one would delay bob's.
    mine = [past_run(24 * day, run_h=6) for day in range(40) for _ in range(5)]
    theirs = [past_run(24 * day + 1, "bob", 4, 0.2, account="nlp") for day in range(40)]
    runs = recorded(sorted([*mine, *theirs], key=lambda run: run.eligible_s), limits)
    found = search(runs, limits).findings()
    raised = next(trial for trial in found.trials if trial.change.limit == SHARE and trial.change.new > 4000)
    assert raised.worth_it
    assert "others" in raised.hurts
    assert not [change for change in found.changes if change.limit == SHARE and change.new > change.old]


def test_nothing_is_proposed_if_the_model_does_not_reproduce_the_recorded_waits() -> None:
    limits = policy(TWO_EACH)
    runs = [
        dataclasses.replace(run, start_s=run.start_s + 9 * HOUR, end_s=run.end_s + 9 * HOUR)
        for run in recorded(bursts(), limits)
    ]
    found = search(runs, limits).findings()
    assert not found.changes
    assert not found.trials
    assert found.refused[0].startswith(
        "all jobs: the model does not reproduce the recorded waits (mean wait 1.0"
    )


def test_nothing_is_proposed_of_too_few_jobs() -> None:
    limits = policy(TWO_EACH)
    found = search(recorded(bursts(days=2), limits), limits).findings()
    assert found.refused == (
        "all jobs: only 12 jobs to compare with the model; 30 are required",
        "grads: only 12 jobs to compare with the model; 30 are required",
    )
    assert not found.changes


def test_within_bounds_a_limit_is_moved_to_the_bound_and_no_further_and_others_not_at_all() -> None:
    limits = policy(TWO_EACH.replace("2}", "8}"))
    runs = recorded(bursts(jobs=40), limits)
    in_all = search(runs, limits)
    assert in_all.findings(bounds={}).trials == ()
    tried = in_all.findings(bounds={SHARE: (8000, 9000)}).trials
    assert [(trial.change.old, trial.change.new) for trial in tried] == [(8000, 9000)]


def test_an_exception_keeps_its_own_limit() -> None:
    text = TWO_EACH + (
        "exceptions:\n  - {rule: share, user: bob, limits: {gpus_running: 5}, until: 2099-01-01, why: x}\n"
    )
    limits = policy(text)
    counted = count_by(limits, [past_run(0), past_run(0, "bob")])
    caps = [dict(counter.caps) for counter in counters(limits, counted, T0)]
    assert caps == [{Resource.MGPU: 2000}, {Resource.MGPU: 5000}]
    assert counted.of_job == ((0,), (1,))


def test_limits_of_a_type_count_what_has_that_type_alone() -> None:
    limits = policy(TWO_EACH.replace("gpus_running: 2", "gpus_running: {a100: 2}, jobs_running: 9"))
    counted = count_by(limits, [past_run(0), past_run(0, gpu_type="v100")])
    caps = [dict(counter.caps) for counter in counters(limits, counted, T0)]
    assert caps == [{Resource.JOBS: 9}, {Resource.MGPU: 2000}]
    assert counted.of_job == ((0, 1), (0,))


def test_runs_at_the_start_of_the_period_continue_and_waiting_jobs_arrive_at_once() -> None:
    runs = [
        past_run(-2, run_h=5, time_limit_s=7 * HOUR),
        past_run(-1, start_s=T0 + HOUR, end_s=T0 + 2 * HOUR),
        past_run(-9, run_h=1),
        past_run(1),
    ]
    past = rebuild(runs, nodes(), T0, T0 + 10 * HOUR)
    times = [(job.submit_s - T0, job.run_s, job.limit_s) for job in past.jobs]
    assert times == [(0, 3 * HOUR, 5 * HOUR), (0, HOUR, 2 * HOUR), (HOUR, HOUR, 2 * HOUR)]
    assert past.jobs[0].priority == math.inf
    assert past.judged.tolist() == [False, False, True]


def test_jobs_of_the_same_second_queue_in_the_order_of_their_ids() -> None:
    ids = [(7, 0), (5, 2), (5, 1), (6, 0)]
    runs = [past_run(0, job_id=job_id, array_task=task) for job_id, task in ids]
    past = rebuild([past_run(1, job_id=1), *runs], nodes(), T0, T0 + 10 * HOUR)
    assert [(run.job_id, run.array_task) for run in past.runs] == [(5, 1), (5, 2), (6, 0), (7, 0), (1, 0)]


def test_runs_that_cannot_be_replayed_are_left_out_with_a_remark() -> None:
    runs = [
        past_run(0, start_s=None),  # cancelled while it waited
        past_run(1, partition="gone"),
        past_run(2, tres_requested={}, tres_allocated={}),
        past_run(3),
    ]
    past = rebuild(runs, nodes(), T0, T0 + 10 * HOUR)
    assert len(past.jobs) == 1
    assert past.remarks == (
        "left out: 1 run cancelled before starting",
        "left out: 1 run of partition gone, which has no nodes now",
        "left out: 1 run without a request in Slurm's accounting",
    )


def test_requests_are_per_node_and_shards_are_parts_of_a_gpu() -> None:
    tres = {"cpu": 16.0, "mem": 64000.0, "gres/gpu": 8.0, "gres/gpu:a100": 8.0}
    shards = {"cpu": 2.0, "gres/shard": 3.0}
    runs = [
        past_run(0, n_nodes=2, tres_requested=tres, tres_allocated=tres),
        past_run(1, tres_requested=shards, tres_allocated=shards),
    ]
    two, share = (job.request for job in rebuild(runs, nodes(shards=16), T0, T0 + 10 * HOUR).jobs)
    assert (two.nodes, two.gpus, two.cpus, two.memory_mib, two.gpu_type) == (2, 4, 8, 32000, "a100")
    assert (share.gpus, share.share_mgpu) == (0, 750)


@pytest.mark.parametrize(
    ("raw", "scheduling"),
    [
        ({}, Scheduling(backfill_every_s=30, depth=500)),
        (
            {"SchedulerParameters": "bf_interval=60,bf_continue,bf_max_job_test=100"},
            Scheduling(True, 60, 100),
        ),
        ({"SchedulerType": "sched/builtin"}, Scheduling(backfill=False)),
    ],
)
def test_the_scheduling_follows_slurm_conf(raw: dict[str, str], scheduling: Scheduling) -> None:
    assert scheduling_of(raw) == scheduling


def test_requested_gpus_are_those_of_the_run_if_its_nodes_differ() -> None:
    """Test uneven nodes; the model would give every node the request of the largest one."""
    uneven = {"cpu": 3.0, "mem": 3.0, "gres/gpu": 8.0}
    runs = [
        past_run(0, n_nodes=3, tres_requested=uneven, tres_allocated=uneven),
        past_run(1, tres_requested={"cpu": 1.0}, tres_allocated={"cpu": 1.0}),
    ]
    past = rebuild(runs, nodes(3), T0, T0 + HOUR * 9)
    assert [job.request.mgpu for job in past.jobs] == [9000, 0]
    assert past.requested_mgpu().tolist() == [8000, 0]
