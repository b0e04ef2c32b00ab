"""Compare the starts of jobs with the predicted intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, select, union

from slurm_gpu.database.storage.batches import batched
from slurm_gpu.database.storage.schema import forecast, run
from slurm_gpu.wire.answers.forecast import ForecastRecord

MOST_JUDGED = 200
_IDS_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOutcome:
    """The outcome of a forecast whose interval has ended."""

    at_s: int
    median_s: int
    """The predicted wait in seconds from `at_s`."""
    is_correct: bool
    """Whether the job started within the predicted interval."""
    started_s: int | None
    """The start of the job; None if it is still waiting or left the queue without a start."""
    partition: str
    """The partition in which the job ran or waited."""


@dataclass(frozen=True, slots=True)
class _Ran:
    start_s: int | None
    end_s: int | None
    partition: str


def judged(cluster: str, now_s: int) -> ColumnElement[bool]:
    """Return a condition that selects the forecasts whose interval has ended.

    Counting other forecasts would overstate the accuracy. A correct forecast can be recognised as soon as
    the job starts, but a wrong one often only when its interval has ended.
    """
    return and_(forecast.c.cluster == cluster, forecast.c.at_s + forecast.c.upper_s < now_s)


def outcomes(connection: Connection, cluster: str, rows: Sequence[RowMapping]) -> Iterator[ForecastOutcome]:
    """Yield the outcomes of rows of `forecast` in order, omitting those that cannot be determined.

    A job that left the queue without a start before the end of its interval has no outcome.
    """
    for some in batched(rows, _IDS_AT_ONCE):
        runs = _runs_of(connection, cluster, {row["job_id"] for row in some})
        for row in some:
            found = _outcome(row, runs[row["job_id"]])
            if found is not None:
                yield found


def past_accuracy(
    connection: Connection, cluster: str, now_s: int, most: int = MOST_JUDGED
) -> ForecastRecord:
    """Return how many of the last forecasts with a known outcome were correct."""
    # Read twice as many forecasts, since the outcome of some jobs is unknown.
    query = (
        select(forecast)
        .where(judged(cluster, now_s))
        .order_by(forecast.c.at_s.desc(), forecast.c.forecast_id.desc())
    )
    rows = list(connection.execute(query.limit(2 * most)).mappings())
    known = list(outcomes(connection, cluster, rows))[:most]
    return ForecastRecord(
        n=len(known), correct=sum(one.is_correct for one in known), since_s=known[-1].at_s if known else None
    )


def _outcome(row: RowMapping, runs: Sequence[_Ran]) -> ForecastOutcome | None:
    """Return the outcome; None if it can no longer be determined."""
    at_s, begin_s, end_s = row["at_s"], row["at_s"] + row["lower_s"], row["at_s"] + row["upper_s"]
    begun = [(one.start_s, one) for one in runs if one.start_s is not None and one.start_s >= at_s]
    if begun:
        started_s, first = min(begun, key=lambda item: item[0])
        # Slurm reports times in whole seconds.
        is_correct = begin_s - 1 <= started_s <= end_s + 1
        return _of(row, first, is_correct=is_correct, started_s=started_s)
    unstarted = [one for one in runs if one.start_s is None and (one.end_s is None or one.end_s >= at_s)]
    gone_s = [one.end_s for one in unstarted if one.end_s is not None]
    if not unstarted or (len(gone_s) == len(unstarted) and max(gone_s) <= end_s):
        return None
    return _of(row, unstarted[0], is_correct=False, started_s=None)


def _of(row: RowMapping, ran: _Ran, *, is_correct: bool, started_s: int | None) -> ForecastOutcome:
    return ForecastOutcome(
        at_s=row["at_s"],
        median_s=row["median_s"],
        is_correct=is_correct,
        started_s=started_s,
        partition=ran.partition.partition(",")[0],
    )


def _runs_of(connection: Connection, cluster: str, job_ids: set[int]) -> dict[int, list[_Ran]]:
    """Return the runs of each job by job ID; for an array, the runs of its tasks."""
    found: dict[int, list[_Ran]] = {job_id: [] for job_id in job_ids}
    names = ("run_id", "cluster", "job_id", "array_job_id", "start_s", "end_s", "partition")
    columns = select(*(run.c[name] for name in names))
    # Each part of the query uses its own index. With OR, or with conditions on both cluster and array, SQLite
    # would read all runs of the cluster.
    query = union(
        columns.where(run.c.cluster == cluster, run.c.job_id.in_(job_ids)),
        columns.where(run.c.array_job_id.in_(job_ids)),
    )
    for _, of, job_id, array_job_id, *ran in connection.execute(query):
        if of != cluster:
            continue
        for name in {job_id, array_job_id} & job_ids:
            found[name].append(_Ran(*ran))
    return found
