"""The tables `forecast_model` and `forecast`: what was learned, what was said, and how much of that held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, and_, delete, func, insert, or_, select

from slurm_gpu.database.batches import batched
from slurm_gpu.database.forecasts.answer import Past
from slurm_gpu.database.schema import forecast, forecast_model, run

PART_BYTES = 512 * 1024
"""MariaDB takes 16 MiB at once where nobody changed that; what is smaller does not hold up others."""
MODELS_KEPT = 3
AGAIN_AFTER_S = 600
"""Who asks for a job in a loop does not fill the table, nor count more than others."""
MOST_JUDGED = 200
_CLOCKS_DIFFER_S = 86400
_IDS_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """A forecast of a job that waits: a row of `forecast`; seconds are from `at_s` on."""

    job_id: int
    """Of an array whose tasks are not apart yet, the array's."""
    at_s: int
    low_s: int
    middle_s: int
    high_s: int
    source: str
    made_s: int
    """Of the model."""


def store_model(connection: Connection, cluster: str, made_s: int, body: bytes) -> None:
    """Keep a model in place of one that was made in the same second; drop all but it and the newest."""
    ours = forecast_model.c.cluster == cluster
    connection.execute(delete(forecast_model).where(ours, forecast_model.c.made_s == made_s))
    for part, begin in enumerate(range(0, len(body), PART_BYTES)):
        piece = body[begin : begin + PART_BYTES]
        row = {"cluster": cluster, "made_s": made_s, "part": part, "body": piece}
        connection.execute(insert(forecast_model), row)
    made = select(forecast_model.c.made_s).where(ours).distinct().order_by(forecast_model.c.made_s.desc())
    newest_first = connection.execute(made).scalars()
    if old := [one_s for n, one_s in enumerate(newest_first) if n >= MODELS_KEPT and one_s != made_s]:
        connection.execute(delete(forecast_model).where(ours, forecast_model.c.made_s.in_(old)))


def newest_model(connection: Connection, cluster: str, now_s: float) -> int | None:
    """When the newest model was made; None where there is none.

    One that was made tomorrow, by a clock that stood wrong, counts only where there is no other.
    """
    query = select(func.max(forecast_model.c.made_s)).where(forecast_model.c.cluster == cluster)
    known = connection.execute(query.where(forecast_model.c.made_s <= now_s + _CLOCKS_DIFFER_S)).scalar()
    return connection.execute(query).scalar() if known is None else known


def read_model_body(connection: Connection, cluster: str, made_s: int) -> bytes:
    """The model that was made then; empty where it is gone."""
    query = (
        select(forecast_model.c.body)
        .where(forecast_model.c.cluster == cluster, forecast_model.c.made_s == made_s)
        .order_by(forecast_model.c.part)
    )
    return b"".join(connection.execute(query).scalars())


def remember(connection: Connection, cluster: str, said: Iterable[Foretold]) -> int:
    """Keep these, but for jobs of which one was kept within AGAIN_AFTER_S; returns how many."""
    listed = list(said)
    if not listed:
        return 0
    since_s = min(one.at_s for one in listed) - AGAIN_AFTER_S
    lately: set[int] = set()
    for ids in batched({one.job_id for one in listed}, _IDS_AT_ONCE):
        query = select(forecast.c.job_id).where(
            forecast.c.cluster == cluster, forecast.c.job_id.in_(ids), forecast.c.at_s > since_s
        )
        lately.update(connection.execute(query).scalars())
    rows = [
        {"cluster": cluster, **{name: getattr(one, name) for name in Foretold.__slots__}}
        for one in listed
        if one.job_id not in lately
    ]
    if rows:
        connection.execute(insert(forecast), rows)
    return len(rows)


def past_accuracy(connection: Connection, cluster: str, now_s: int, most: int = MOST_JUDGED) -> Past:
    """How many of the last forecasts held: those whose interval is over by now.

    Others would count too often as right: of two forecasts made at once, that which proved right is known
    first. A job that left the queue without a start before its interval was over says nothing.
    """
    over = and_(forecast.c.cluster == cluster, forecast.c.at_s + forecast.c.high_s < now_s)
    # Twice as many, since of some jobs nothing is known.
    query = select(forecast).where(over).order_by(forecast.c.at_s.desc(), forecast.c.forecast_id.desc())
    rows = list(connection.execute(query.limit(2 * most)).mappings())
    known: list[tuple[int, bool]] = []
    runs = _runs_of(connection, cluster, {row["job_id"] for row in rows})
    for row in rows:
        held = _held(row, runs.get(row["job_id"], ()))
        if held is not None:
            known.append((row["at_s"], held))
    known = known[:most]
    return Past(n=len(known), held=sum(held for _, held in known), since_s=known[-1][0] if known else None)


def _held(row: RowMapping, runs: Sequence[tuple[int | None, int | None]]) -> bool | None:
    """Whether the job began within the interval; None where that cannot be known any more."""
    at_s, begin_s, end_s = row["at_s"], row["at_s"] + row["low_s"], row["at_s"] + row["high_s"]
    starts = [start_s for start_s, _ in runs if start_s is not None and start_s >= at_s]
    if starts:
        # Slurm tells whole seconds.
        return bool(begin_s - 1 <= min(starts) <= end_s + 1)
    unstarted = [
        ended_s for start_s, ended_s in runs if start_s is None and (ended_s is None or ended_s >= at_s)
    ]
    if not unstarted:
        return None
    gone = [ended_s for ended_s in unstarted if ended_s is not None]
    return False if len(gone) < len(unstarted) or max(gone) > end_s else None


def _runs_of(
    connection: Connection, cluster: str, job_ids: set[int]
) -> dict[int, list[tuple[int | None, int | None]]]:
    """By job id, the start and end of its runs, and of its tasks where it is an array."""
    found: dict[int, list[tuple[int | None, int | None]]] = {job_id: [] for job_id in job_ids}
    for ids in batched(job_ids, _IDS_AT_ONCE):
        which = or_(run.c.job_id.in_(ids), run.c.array_job_id.in_(ids))
        query = select(run.c.job_id, run.c.array_job_id, run.c.start_s, run.c.end_s)
        for job_id, array_job_id, start_s, end_s in connection.execute(
            query.where(run.c.cluster == cluster, which)
        ):
            for name in {job_id, array_job_id} & job_ids:
                found[name].append((start_s, end_s))
    return found
