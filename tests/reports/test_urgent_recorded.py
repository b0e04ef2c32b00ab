"""Urgent jobs in the model of the queue: their order, concurrency limit and preemption."""

from __future__ import annotations

import dataclasses

import pytest

from slurm_gpu.reports.recommend.past import PastRun, rebuild
from slurm_gpu.reports.recommend.rules import count_by, jobs_under, preemption_of
from tests.reports.recommending import HOUR, T0, nodes, past_run, policy, recorded

POLICY = """\
version: 1
mode: enforce
manages: {qos: [urgent, normal, sg-*], accounts: [vision]}
groups: {leads: {users: [alice]}, vision: {accounts: [vision]}}
urgent: {for: [leads], jobs_running: 1, why: "Deadlines."}
rules: []
"""
REQUEUES = POLICY.replace("jobs_running: 1,", "jobs_running: 1, preempts: [normal],")


def urgent(at_h: float, **changes: object) -> PastRun:
    return past_run(at_h, "alice", gpus=4, qos="urgent", **changes)


def starts_h(runs: list[PastRun], text: str) -> list[float]:
    """Return the last start of each job in hours from T0, in the order of submission."""
    found = recorded(runs, policy(text))
    return [round((run.start_s - T0) / HOUR, 2) for run in found if run.start_s is not None]


def test_an_urgent_job_passes_waiting_jobs_but_no_running_ones() -> None:
    runs = [past_run(0, "bob", gpus=4, run_h=2) for _ in range(2)]  # all there is
    runs += [past_run(0.1, "carol", gpus=4), past_run(0.2, "carol", gpus=4), urgent(0.3)]
    assert starts_h(runs, POLICY) == [0, 0, 2, 3, 2]
    others = [dataclasses.replace(run, qos="normal") for run in runs]
    assert starts_h(others, POLICY) == [0, 0, 2, 2, 3]


def test_concurrent_urgent_jobs_are_limited() -> None:
    assert starts_h([urgent(0), urgent(0), past_run(0.5, "bob", gpus=4)], POLICY) == [0, 1, 0.5]


def test_jobs_of_a_preemptible_qos_are_requeued_for_it() -> None:
    runs = [past_run(0, "bob", gpus=4, run_h=2), past_run(0.25, "bob", gpus=4, run_h=2), urgent(0.5)]
    stays, gives_way, comes = recorded(runs, policy(REQUEUES))
    assert comes.start_s == pytest.approx(T0 + 0.5 * HOUR, abs=60)
    assert stays.end_s == T0 + 2 * HOUR
    # The preempted job is the one with the shorter run; it restarts after the urgent job.
    assert gives_way.end_s == pytest.approx(T0 + 3.5 * HOUR, abs=60)


def test_runs_at_the_start_of_the_period_precede_an_urgent_job() -> None:
    runs = [past_run(-1, "bob", gpus=4, run_h=3), urgent(0)]
    under = policy(POLICY)
    past = rebuild(runs, nodes(), T0, T0 + HOUR)
    jobs = jobs_under(under, past, count_by(under, past.runs))
    assert jobs.priority[0] > jobs.priority[1] > 0


def test_an_urgent_job_preempts_loans_too() -> None:
    lent = REQUEUES + "owners: {vision: {gpus: 4, lend_in: sg-loans, return_within: 10m}}\n"
    assert preemption_of(policy(lent)).of == {
        "sg-vision": {"sg-loans"},
        "normal": {"sg-loans"},
        "urgent": {"sg-loans", "normal"},
    }
    assert preemption_of(policy(POLICY)).of == {"urgent": frozenset()}
