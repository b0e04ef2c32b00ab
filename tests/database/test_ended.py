"""A node's open job is reported as ended only after Slurm has reported the end for some time."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.database.ingest.ended_jobs import RunEnd, RunsEnded, ended
from slurm_gpu.slurm.client import QueuedJob
from tests.database.samples import T0, queued

NOW_S = T0 + 10_000


def end_of_job(
    jobs: Sequence[QueuedJob], accounting: Mapping[int, Sequence[int | RunEnd | None]], as_of_s: float = NOW_S
) -> dict[int, RunsEnded]:
    """Return the ended runs of job 1 on n1, where its runs were by default."""
    queue = QueueState(as_of_s, {job.job_id: job for job in jobs}, {})
    asked: list[int] = []

    def ask(job_ids: Sequence[int]) -> Mapping[int, Sequence[RunEnd]]:
        asked.extend(job_ids)
        return {
            job_id: [one if isinstance(one, RunEnd) else RunEnd(one, frozenset({"n1"})) for one in ends]
            for job_id, ends in accounting.items()
            if job_id in job_ids
        }

    found = ended("n1", [1], queue, NOW_S, ask)
    if any(job.state == "RUNNING" and job.restarts == 0 and job.resized_s is None for job in jobs):
        assert asked == [], "a job in its first run costs no query of the accounting"
    return found


LONG_AGO = NOW_S - 1000


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"])
def test_a_run_that_slurmctld_reports_as_ended_is_found(state: str) -> None:
    over = queued(state=state, end_s=LONG_AGO, restarts=2)
    assert end_of_job([over], {}) == {1: RunsEnded(2, LONG_AGO)}


@pytest.mark.parametrize(
    ("why", "job", "accounting"),
    [
        ("it runs", queued(), {1: [LONG_AGO]}),
        ("it is suspended", queued(state="SUSPENDED"), {}),
        ("its epilog may run", queued(state="COMPLETING", end_s=LONG_AGO), {}),
        ("it ended just now", queued(state="COMPLETED", end_s=NOW_S - 100), {}),
        ("the job is unknown", None, {}),
        ("accounting has a run without an end", None, {1: [LONG_AGO, None]}),
        ("accounting has a run that ended just now", None, {1: [LONG_AGO, NOW_S - 100]}),
        ("it was requeued, and accounting has no end yet", queued(restarts=1), {1: [None]}),
        ("what ended is after its start", queued(restarts=1, start_s=T0), {1: [T0 + 5]}),
    ],
)
def test_doubt_leaves_it_open(
    why: str, job: QueuedJob | None, accounting: Mapping[int, Sequence[int | None]]
) -> None:
    assert end_of_job([] if job is None else [job], accounting) == {}, why


def test_a_job_whose_runs_all_ended_in_accounting_is_found() -> None:
    assert end_of_job([], {1: [LONG_AGO - 500, LONG_AGO]}) == {1: RunsEnded(None, LONG_AGO)}


def test_an_earlier_run_of_a_requeued_job_is_over_and_the_younger_is_not() -> None:
    again = queued(restarts=1, start_s=NOW_S - 10)
    assert end_of_job([again], {1: [LONG_AGO, None]}) == {1: RunsEnded(0, LONG_AGO)}
    waiting = queued(restarts=1, state="PENDING", start_s=None, nodes=())
    assert end_of_job([waiting], {1: [LONG_AGO]}) == {1: RunsEnded(0, LONG_AGO)}


@pytest.mark.parametrize(
    "job",
    [
        queued(restarts=1, state="PENDING", start_s=None, nodes=()),
        queued(restarts=2, start_s=NOW_S - 10),
    ],
)
def test_an_earlier_end_does_not_count_while_accounting_lacks_the_last_one(
    job: QueuedJob,
) -> None:
    last = RunEnd(None, frozenset({"n1"}), began_s=LONG_AGO + 1)
    assert end_of_job([job], {1: [LONG_AGO, last]}) == {}
    its_own = RunEnd(None, frozenset({"n1"}), began_s=NOW_S - 10)
    assert end_of_job([queued(restarts=1, start_s=NOW_S - 10)], {1: [LONG_AGO, its_own]}) == {
        1: RunsEnded(0, LONG_AGO)
    }


@pytest.mark.parametrize("as_of_s", [NOW_S - 61.0, None])
def test_no_job_ends_while_slurmctld_is_unreachable(as_of_s: Any) -> None:
    if as_of_s is None:
        assert ended("n1", [1], None, NOW_S, lambda _: {1: [RunEnd(LONG_AGO, frozenset({"n1"}))]}) == {}
    else:
        assert end_of_job([], {1: [LONG_AGO]}, as_of_s) == {}


def resized(nodes: Sequence[str] = ("n2",), **given: Any) -> QueuedJob:
    return queued(**{"nodes": tuple(nodes), "resized_s": LONG_AGO + 500, "start_s": T0, **given})


def on(end_s: int | None, *nodes: str) -> RunEnd:
    return RunEnd(end_s, frozenset(nodes))


SHRUNK_TWICE = [on(LONG_AGO, "n1", "n2", "n3"), on(LONG_AGO + 500, "n2", "n3")]


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED"])
@pytest.mark.parametrize("restarts", [0, 2])
def test_a_node_that_a_job_gave_back_is_released_at_that_time(state: str, restarts: int) -> None:
    job = resized(state=state, restarts=restarts)
    assert end_of_job([job], {1: [*SHRUNK_TWICE, on(None, "n2")]}) == {1: RunsEnded(restarts, LONG_AGO)}


def test_a_released_node_has_its_own_end_after_the_job_ended() -> None:
    rows = [*SHRUNK_TWICE, on(LONG_AGO + 800, "n2")]
    assert end_of_job([resized(state="COMPLETED", end_s=LONG_AGO + 800)], {1: rows}) == {
        1: RunsEnded(0, LONG_AGO)
    }
    assert end_of_job([], {1: rows}) == {1: RunsEnded(None, LONG_AGO)}


@pytest.mark.parametrize(
    ("why", "job", "rows"),
    [
        ("it was shrunk, and has this node still", resized(["n1"]), [*SHRUNK_TWICE, on(None, "n1")]),
        ("accounting has no end yet", resized(), [on(None, "n1", "n2", "n3")]),
        ("accounting does not know it", resized(), []),
        ("it released the node just now", resized(), [on(NOW_S - 100, "n1", "n2"), on(None, "n2")]),
        ("what was here is an earlier job of that number", resized(), [on(T0 - 500, "n1"), on(None, "n2")]),
        ("its epilogs may run", resized(state="COMPLETING"), SHRUNK_TWICE),
        ("slurmctld does not name its nodes", resized([]), SHRUNK_TWICE),
        ("it was never resized", resized(resized_s=None), SHRUNK_TWICE),
    ],
)
def test_doubt_leaves_a_resized_job_open(why: str, job: QueuedJob, rows: Sequence[RunEnd]) -> None:
    assert end_of_job([job], {1: rows}) == {}, why
