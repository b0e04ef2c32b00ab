"""Store models and their forecasts in the tables `forecast_model` and `forecast`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from slurm_gpu.database.storage.batches import batched
from slurm_gpu.database.storage.schema import forecast, forecast_model

# By default, MariaDB accepts 16 MiB per packet. Parts are smaller, so they block other transactions for less
# time.
PART_BYTES = 512 * 1024
MODELS_KEPT = 3
# Minimum interval between stored forecasts of a job. Otherwise, repeated requests would fill the table and
# give their jobs more weight in the accuracy.
AGAIN_AFTER_S = 600
_CLOCKS_DIFFER_S = 86400
_IDS_AT_ONCE = 500
_LONGEST_S = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A row of `forecast`: the forecast of a pending job; predicted waits count from `at_s`."""

    job_id: int
    """The array's job ID if the task has not been split off yet."""
    at_s: int
    lower_s: int
    median_s: int
    upper_s: int
    source: str
    created_s: int
    """The time at which the model was trained."""

    @classmethod
    def of(
        cls,
        job_id: int,
        at_s: float,
        lower_s: float,
        median_s: float,
        upper_s: float,
        source: str,
        created_s: int,
    ) -> Prediction:
        """Build a forecast in whole seconds: round its interval outwards, and cap it at _LONGEST_S."""
        return cls(
            job_id=job_id,
            at_s=int(at_s),
            lower_s=min(math.floor(lower_s), _LONGEST_S),
            median_s=min(round(median_s), _LONGEST_S),
            upper_s=min(math.ceil(upper_s), _LONGEST_S),
            source=source,
            created_s=created_s,
        )


def store_model(connection: Connection, cluster: str, created_s: int, body: bytes) -> None:
    """Store a model, replacing one created in the same second; delete all but the newest MODELS_KEPT."""
    ours = forecast_model.c.cluster == cluster
    connection.execute(delete(forecast_model).where(ours, forecast_model.c.created_s == created_s))
    for part, begin in enumerate(range(0, len(body), PART_BYTES)):
        piece = body[begin : begin + PART_BYTES]
        row = {"cluster": cluster, "created_s": created_s, "part": part, "body": piece}
        connection.execute(insert(forecast_model), row)
    made = (
        select(forecast_model.c.created_s).where(ours).distinct().order_by(forecast_model.c.created_s.desc())
    )
    newest_first = connection.execute(made).scalars()
    if old := [one_s for n, one_s in enumerate(newest_first) if n >= MODELS_KEPT and one_s != created_s]:
        connection.execute(delete(forecast_model).where(ours, forecast_model.c.created_s.in_(old)))


def stored_models(connection: Connection, cluster: str, now_s: float) -> list[int]:
    """Return the creation times of models, newest first.

    Models whose creation time is in the future, due to a wrong clock, come last.
    """
    query = select(forecast_model.c.created_s).where(forecast_model.c.cluster == cluster).distinct()
    made = connection.execute(query).scalars()
    return sorted(made, key=lambda created_s: (created_s > now_s + _CLOCKS_DIFFER_S, -created_s))


def newest_model(connection: Connection, cluster: str, now_s: float) -> int | None:
    """Return the creation time of the newest model; None if there is no model."""
    return next(iter(stored_models(connection, cluster, now_s)), None)


def read_model_body(connection: Connection, cluster: str, created_s: int) -> bytes:
    """Return the content of the model created at `created_s`; empty if the model was deleted."""
    query = (
        select(forecast_model.c.body)
        .where(forecast_model.c.cluster == cluster, forecast_model.c.created_s == created_s)
        .order_by(forecast_model.c.part)
    )
    return b"".join(connection.execute(query).scalars())


def remember(connection: Connection, cluster: str, predictions: Iterable[Prediction]) -> int:
    """Store the forecasts of jobs that have no other forecast within AGAIN_AFTER_S.

    Return the number of stored forecasts. Earlier forecasts that a wrong clock dated far in the future do not
    prevent a new one.
    """
    listed = list(predictions)
    if not listed:
        return 0
    since_s = min(one.at_s for one in listed) - AGAIN_AFTER_S
    until_s = max(one.at_s for one in listed) + AGAIN_AFTER_S
    within = forecast.c.at_s > since_s, forecast.c.at_s < until_s
    lately: set[int] = set()
    for ids in batched({one.job_id for one in listed}, _IDS_AT_ONCE):
        query = select(forecast.c.job_id).where(
            forecast.c.cluster == cluster, forecast.c.job_id.in_(ids), *within
        )
        lately.update(connection.execute(query).scalars())
    rows = [
        {"cluster": cluster, **{name: getattr(one, name) for name in Prediction.__slots__}}
        for one in listed
        if one.job_id not in lately
    ]
    if rows:
        connection.execute(insert(forecast), rows)
    return len(rows)
