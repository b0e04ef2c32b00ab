"""Find which owners lent idle GPUs to a run, and which job got the GPUs back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, select

from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.database.storage.schema import run
from slurm_gpu.wire.answers.runs import Run

_LENDERS = re.compile(r"slurm-gpu/1 t=\w+(?: [a-z]=\S*)*? l=([\w.,-]+)(?: |$)")
_NEXT_WITHIN_S = 60
# The search is limited to runs that waited at most this long.
_WAITED_AT_MOST_S = 7 * 86400


def lender_of(admin_comment: str) -> str | None:
    """Return the owners whose idle GPUs the run borrowed, joined by commas; None if it borrowed no GPU.

    job_submit.lua writes the owners into the admin comment.
    """
    found = _LENDERS.match(admin_comment)
    return None if found is None else found[1]


def with_lenders(runs: Sequence[Run], ask: Callable[[], QueueState | None]) -> list[Run]:
    """Return the runs, with the lenders of running jobs added from the queue.

    Slurm's accounting contains the admin comment only after a job has ended.
    """
    queue = ask() if any(one.end_s is None for one in runs) else None
    return list(runs) if queue is None else [_with_lender(one, queue) for one in runs]


def _with_lender(one: Run, queue: QueueState) -> Run:
    job = queue.by_id.get(one.job_id)
    if one.end_s is not None or job is None:
        return one
    return msgspec.structs.replace(one, lender=lender_of(job.admin_comment))


def taken_back_by(connection: Connection, row: Mapping[str, Any]) -> RowMapping | None:
    """Return the run for which a borrowing run was preempted; None if there is no such run or it is unknown.

    Slurm does not report for which job it preempts another. The result is the first run of another QOS that
    starts on one of the same nodes soon afterwards.
    """
    if row["state"] != "PREEMPTED" or row["end_s"] is None or lender_of(row["admin_comment"]) is None:
        return None
    query = (
        select(run)
        .where(run.c.cluster == row["cluster"], run.c.qos != row["qos"])
        .where(run.c.start_s >= row["end_s"], run.c.start_s <= row["end_s"] + _NEXT_WITHIN_S)
        .where(run.c.submit_s.between(row["end_s"] - _WAITED_AT_MOST_S, row["end_s"]))
        .order_by(run.c.start_s, run.c.run_id)
    )
    nodes = node_set(row["nodes"])
    for other in connection.execute(query).mappings():
        if not nodes.isdisjoint(node_set(other["nodes"])):
            return other
    return None
