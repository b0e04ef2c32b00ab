"""Who lent its idle GPUs to a run, and which job got them back."""

from __future__ import annotations

import pytest

from slurm_gpu.database.engine import Database
from slurm_gpu.database.loans import lender_of
from tests.database.samples import T0, row
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
def test_the_lender_stands_in_the_admin_comment(comment: str, lender: str | None) -> None:
    assert lender_of(comment) == lender


def lent(**given: object):
    return row(job_id=1, state="PREEMPTED", qos="sg-loans", nodes="n[1-2]", admin_comment=LOAN, **given)


def taker(**given: object):
    values = {"job_id": 2, "qos": "sg-vision", "nodes": "n[2-3]", "submit_s": T0 + 6, "eligible_s": T0 + 6}
    return row(**values | {"start_s": T0 + 12, "end_s": T0 + 99, "elapsed_s": 87} | given)


def test_a_loan_went_back_to_the_job_that_started_next_on_its_nodes(database: Database) -> None:
    fill(database, lent(), taker(), taker(job_id=3, nodes="n3", start_s=T0 + 11))
    (run,) = job(database, "1", BOB)
    assert (run.full, run.lender) == (False, "vision")  # whose GPUs they were is for everyone to see
    assert (run.returned_to, run.returned_in_s) == ("2", 6)
    (own,) = job(database, "2")
    assert (own.lender, own.returned_to, own.returned_in_s) == (None, None, None)


@pytest.mark.parametrize(
    "other",
    [
        {"start_s": T0 + 9},  # it was there before
        {"start_s": T0 + 500, "end_s": T0 + 600},  # long after
        {"submit_s": T0 + 11, "eligible_s": T0 + 11},  # it came once they were free
        {"nodes": "n3"},
        {"qos": "sg-loans"},
    ],
)
def test_a_job_that_had_no_need_of_them_did_not_get_them_back(database: Database, other: dict) -> None:  # type: ignore[type-arg]
    fill(database, lent(), taker(**other))
    (run,) = job(database, "1")
    assert (run.lender, run.returned_to) == ("vision", None)


def test_a_loan_that_nobody_asked_back_was_returned_to_nobody(database: Database) -> None:
    fill(database, row(qos="sg-loans", nodes="n[1-2]", admin_comment=LOAN), taker())
    (run,) = job(database, "1")
    assert (run.state, run.lender, run.returned_to) == ("COMPLETED", "vision", None)
