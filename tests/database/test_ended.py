"""A job that a node holds open is called over only when Slurm is sure of it, and has been for a while."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from slurm_gpu.database.ended import Ended, ended
from slurm_gpu.database.slurmview import Queue
from slurm_gpu.slurm.client import QueuedJob
from tests.database.samples import T0, queued

NOW_S = T0 + 10_000


def look(
    jobs: Sequence[QueuedJob], accounting: Mapping[int, Sequence[int | None]], as_of_s: float = NOW_S
) -> dict[int, Ended]:
    """What is said of job 1."""
    queue = Queue(as_of_s, {job.job_id: job for job in jobs}, {})
    asked: list[int] = []

    def ask(job_ids: Sequence[int]) -> Mapping[int, Sequence[int | None]]:
        asked.extend(job_ids)
        return {job_id: ends for job_id, ends in accounting.items() if job_id in job_ids}

    found = ended([1], queue, NOW_S, ask)
    if any(job.state == "RUNNING" and job.restarts == 0 for job in jobs):
        assert asked == [], "a job in its first run costs no look into the accounting"
    return found


LONG_AGO = NOW_S - 1000


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"])
def test_slurmctld_says_that_it_ended(state: str) -> None:
    over = queued(state=state, end_s=LONG_AGO, restarts=2)
    assert look([over], {}) == {1: Ended(2, LONG_AGO)}


@pytest.mark.parametrize(
    ("why", "job", "accounting"),
    [
        ("it runs", queued(), {1: [LONG_AGO]}),
        ("it is suspended", queued(state="SUSPENDED"), {}),
        ("its epilog may run", queued(state="COMPLETING", end_s=LONG_AGO), {}),
        ("it ended just now", queued(state="COMPLETED", end_s=NOW_S - 100), {}),
        ("nobody knows it", None, {}),
        ("accounting has a run that goes on", None, {1: [LONG_AGO, None]}),
        ("accounting has a run that ended just now", None, {1: [LONG_AGO, NOW_S - 100]}),
        ("it was requeued, and accounting does not tell yet", queued(restarts=1), {1: [None]}),
        ("what ended is after its start", queued(restarts=1, start_s=T0), {1: [T0 + 5]}),
    ],
)
def test_doubt_leaves_it_open(
    why: str, job: QueuedJob | None, accounting: Mapping[int, Sequence[int | None]]
) -> None:
    assert look([] if job is None else [job], accounting) == {}, why


def test_accounting_says_that_all_its_runs_ended() -> None:
    assert look([], {1: [LONG_AGO - 500, LONG_AGO]}) == {1: Ended(None, LONG_AGO)}


def test_an_earlier_run_of_a_requeued_job_is_over_and_the_younger_is_not() -> None:
    again = queued(restarts=1, start_s=NOW_S - 10)
    assert look([again], {1: [LONG_AGO, None]}) == {1: Ended(0, LONG_AGO)}
    waiting = queued(restarts=1, state="PENDING", start_s=None, nodes=())
    assert look([waiting], {1: [LONG_AGO]}) == {1: Ended(0, LONG_AGO)}


@pytest.mark.parametrize("as_of_s", [NOW_S - 61.0, None])
def test_while_slurmctld_is_away_nothing_is_over(as_of_s: Any) -> None:
    if as_of_s is None:
        assert ended([1], None, NOW_S, lambda _: {1: [LONG_AGO]}) == {}
    else:
        assert look([], {1: [LONG_AGO]}, as_of_s) == {}
