"""The place of a pending job in the queue follows priorities and partitions."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpu.monitor.cluster.pending import Wait, find_job, wait_of
from slurm_gpu.wire.answers.cluster import ClusterJob
from tests.monitor.clusters import NOW_S, cluster, job, waiting


def wait(*others: ClusterJob, **mine: Any) -> Wait:
    """Return the wait of a pending job with priority 50 in the partition gpu."""
    own = waiting(9, **{"priority": 50, **mine})
    found = wait_of(cluster([], [*others, own]), own)
    assert found is not None
    return found


def test_jobs_with_a_higher_priority_in_one_of_its_partitions_are_ahead() -> None:
    others = (
        waiting(1, priority=60, n_gpus=2.0, n_tasks=3),
        waiting(2, priority=40),
        waiting(3, priority=60, partition="cpu"),
        waiting(4, priority=60, partition="long,gpu", n_gpus=4.0),
        waiting(5, "JobHeldUser", priority=0),
        job(6, priority=99),
    )
    found = wait(*others)
    assert (found.place, found.n_jobs, found.gpus_ahead) == (5, 6, 10.0)
    found = wait(*others, partition="cpu,gpu")
    assert (found.place, found.n_jobs) == (6, 7)


def test_among_equal_priorities_the_earlier_submission_is_ahead() -> None:
    found = wait(waiting(10, priority=50, submit_s=NOW_S - 9000), waiting(8, priority=50, submit_s=NOW_S))
    assert found.place == 2


@pytest.mark.parametrize("priority", [0, None])
def test_without_a_priority_there_is_no_place(priority: int | None) -> None:
    found = wait(waiting(1, priority=60), priority=priority)
    assert (found.place, found.gpus_ahead) == (None, None)


def test_an_unknown_number_of_gpus_is_not_counted_as_zero() -> None:
    assert wait(waiting(1, priority=60, n_gpus=None)).gpus_ahead is None


def test_an_estimate_in_the_past_is_ignored() -> None:
    assert wait(start_s=NOW_S - 1).start_s is None
    assert wait(start_s=NOW_S + 60).start_s == NOW_S + 60


def test_the_reason_is_explained() -> None:
    assert wait().meaning == "other jobs have a higher priority"
    assert wait(reason="Strange").meaning is None


def test_a_job_is_found_by_each_of_its_ids() -> None:
    state = cluster([], [waiting(7, id="5_2"), job(8)])
    assert find_job(state, "5_2") is find_job(state, "7") is state.jobs[0]
    assert find_job(state, "5") is None
    assert wait_of(state, state.jobs[1]) is None
