"""Test the recorded lenders of a run's GPUs, and the job for which the GPUs were returned."""

from __future__ import annotations

import pytest

from slurm_gpu.database.accounting.loans import lender_of, with_lenders
from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.database.storage.engine import Database
from tests.database.samples import T0, queued, row
from tests.database.test_queries import BOB, fill, job

LOAN = "slurm-gpu/1 t=8f3ax1 l=vision r=share"


@pytest.mark.parametrize(
    ("comment", "lender"),
    [
        (LOAN, "vision"),
        ("slurm-gpu/1 t=8f3ax1 l=vision,nlp", "vision,nlp"),
        ("slurm-gpu/1 t=8f3ax1 k=i l=vision r=share the site's own", "vision"),
        ("slurm-gpu/1 t=8f3ax1 r=share", None),
        ("slurm-gpu/1 t=8f3ax1 r=share what l=vision says", None),
        ("l=vision", None),
        ("", None),
    ],
)
def test_the_lender_is_in_the_admin_comment(comment: str, lender: str | None) -> None:
    assert lender_of(comment) == lender


def lent(**given: object):
    return row(job_id=1, state="PREEMPTED", qos="sg-loans", nodes="n[1-2]", admin_comment=LOAN, **given)


def taker(**given: object):
    values = {"job_id": 2, "qos": "sg-vision", "nodes": "n[2-3]", "submit_s": T0 + 6, "eligible_s": T0 + 6}
    return row(**values | {"start_s": T0 + 12, "end_s": T0 + 99, "elapsed_s": 87} | given)


def test_a_loan_went_back_to_the_job_that_started_next_on_its_nodes(database: Database) -> None:
    fill(database, lent(), taker(), taker(job_id=3, nodes="n3", start_s=T0 + 11))
    (run,) = job(database, "1", BOB)
    assert (run.full, run.lender) == (False, "vision")  # the owner of the GPUs is public
    assert (run.returned_to, run.returned_in_s) == ("2", 6)
    (own,) = job(database, "2")
    assert (own.lender, own.returned_to, own.returned_in_s) == (None, None, None)


@pytest.mark.parametrize(
    "other",
    [
        {"start_s": T0 + 9},  # started before the return
        {"start_s": T0 + 500, "end_s": T0 + 600},  # started long after the return
        {"submit_s": T0 + 11, "eligible_s": T0 + 11},  # submitted after the return
        {"nodes": "n3"},
        {"qos": "sg-loans"},
    ],
)
def test_a_job_that_had_no_need_of_them_did_not_get_them_back(database: Database, other: dict) -> None:  # type: ignore[type-arg]
    fill(database, lent(), taker(**other))
    (run,) = job(database, "1")
    assert (run.lender, run.returned_to) == ("vision", None)


def test_a_loan_that_was_not_recalled_has_no_recipient(database: Database) -> None:
    fill(database, row(qos="sg-loans", nodes="n[1-2]", admin_comment=LOAN), taker())
    (run,) = job(database, "1")
    assert (run.state, run.lender, run.returned_to) == ("COMPLETED", "vision", None)


def test_the_queue_has_the_lender_of_a_running_job(database: Database) -> None:
    running = {"state": "RUNNING", "end_s": None, "admin_comment": ""}
    fill(database, row(job_id=1, **running), row(job_id=2, **running), row(job_id=3))
    shown = [run for name in "123" for run in job(database, name)]
    jobs = {1: queued(job_id=1, admin_comment=LOAN), 3: queued(job_id=3, admin_comment=LOAN)}
    reported = with_lenders(shown, lambda: QueueState(as_of_s=T0, by_id=jobs, by_node={}))
    assert [run.lender for run in reported] == ["vision", None, None]
    assert with_lenders(shown, lambda: None) == shown
    assert with_lenders(shown[2:], pytest.fail) == shown[2:]  # nothing to reclaim
