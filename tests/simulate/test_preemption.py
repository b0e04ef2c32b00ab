"""Preemption of running jobs, and GPUs that jobs share."""

from __future__ import annotations

from slurm_gpu.simulate.preemption import Preemption
from slurm_gpu.simulate.scheduler import Scheduling
from tests.simulate.building import cluster, job, run

OWNER_FIRST = Preemption({"owner": frozenset({"loan"})})


def test_an_owner_takes_its_gpus_back_and_the_borrower_starts_again_from_the_beginning() -> None:
    outcome = run(cluster(1), job(0, qos="loan"), job(40, qos="owner"), preemption=OWNER_FIRST)
    assert outcome.start_s.tolist() == [0, 40]
    assert outcome.end_s.tolist() == [240, 140]
    assert outcome.restarts.tolist() == [1, 0]


def test_no_job_is_requeued_if_gpus_are_free_or_it_would_not_help() -> None:
    roomy = run(cluster(2), job(0, qos="loan"), job(1, qos="owner"), preemption=OWNER_FIRST)
    vain = run(cluster(2), job(0, qos="loan"), job(0), job(1, gpus=2, qos="owner"), preemption=OWNER_FIRST)
    assert not roomy.restarts.any()
    assert not vain.restarts.any()
    assert vain.start_s.tolist() == [0, 0, 100]


def test_only_as_many_give_way_as_have_to_and_those_that_lose_least() -> None:
    outcome = run(
        cluster(4),
        job(0, gpus=2, qos="loan"),
        job(10, gpus=1, qos="loan"),
        job(20, gpus=1, qos="loan"),
        job(30, gpus=1, qos="owner"),
        preemption=OWNER_FIRST,
    )
    assert outcome.restarts.tolist() == [0, 0, 1, 0]


def test_an_unnecessary_victim_keeps_running() -> None:
    # The job with the shortest run time frees too little, and the next job frees enough by itself.
    outcome = run(
        cluster(3),
        job(0, gpus=2, qos="loan"),
        job(10, gpus=1, qos="loan"),
        job(20, gpus=2, qos="owner"),
        preemption=OWNER_FIRST,
    )
    assert outcome.restarts.tolist() == [1, 0, 0]


def test_resources_left_by_a_requeued_job_are_used_at_once_and_it_waits_for_requeue_after_s() -> None:
    slow = Preemption({"owner": frozenset({"loan"})}, requeue_after_s=60)
    outcome = run(
        cluster(4),
        job(0, gpus=4, qos="loan"),
        job(1, gpus=2),
        job(5, gpus=1, qos="owner", priority=1),
        preemption=slow,
    )
    assert outcome.start_s.tolist() == [0, 5, 5]
    assert outcome.end_s[0] == 205


def test_preemption_works_without_backfill_too() -> None:
    outcome = run(
        cluster(1),
        job(0, qos="loan"),
        job(40, qos="owner"),
        preemption=OWNER_FIRST,
        scheduling=Scheduling(backfill=False),
    )
    assert outcome.start_s.tolist() == [0, 40]
