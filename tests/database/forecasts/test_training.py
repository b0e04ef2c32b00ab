"""Training forecasts a sample of pending jobs, so that the accuracy is known without requests by users."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import select

from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.forecasts.outcomes import past_accuracy
from slurm_gpu.database.forecasts.training import forecast_waiting, train_from_database
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import forecast
from slurm_gpu.slurm.client import QueuedJob
from tests.database.forecasts.test_api import history, pending
from tests.database.samples import CLUSTER, T0, row


def learned(database: Database) -> None:
    rows = [run_row(one, {}) for one in history(120)]
    database.write(lambda connection: store_changed_runs(connection, rows))
    train_from_database(database, CLUSTER, T0, None)


def queue(n: int, **given: Any) -> list[QueuedJob]:
    return [pending(job_id=100 + number, **given) for number in range(n)]


def kept(database: Database) -> list[Any]:
    with database.reading() as connection:
        return list(connection.execute(select(forecast).order_by(forecast.c.job_id)).mappings())


def test_a_sample_spread_over_all_that_wait_is_forecast_and_judged_later(database: Database) -> None:
    learned(database)
    assert forecast_waiting(database, CLUSTER, queue(50), T0, most=5) == 5
    found = kept(database)
    assert [one["job_id"] for one in found] == [100, 110, 120, 130, 140]
    assert all(0 <= one["lower_s"] <= one["median_s"] <= one["upper_s"] for one in found)
    assert {(one["at_s"], one["created_s"], one["source"]) for one in found} == {(T0, T0, "tables")}
    start_s = T0 + int(np.median([one["median_s"] for one in found]))
    runs = [
        run_row(
            row(job_id=one["job_id"], submit_s=T0 - 5, eligible_s=T0 - 5, start_s=start_s, end_s=None), {}
        )
        for one in found
    ]
    database.write(lambda connection: store_changed_runs(connection, runs))
    with database.reading() as connection:
        past = past_accuracy(connection, CLUSTER, T0 + max(one["upper_s"] for one in found) + 1)
    assert (past.n, past.correct) == (5, 5)


def test_only_jobs_that_may_start_are_forecast_and_none_within_ten_minutes_again(database: Database) -> None:
    learned(database)
    held = queue(1, eligible_s=None, reason="JobHeldUser")
    later = [pending(job_id=7, eligible_s=T0 + 86400)]
    assert forecast_waiting(database, CLUSTER, [*held, *later], T0) == 0
    assert forecast_waiting(database, CLUSTER, queue(2), T0) == 2
    assert forecast_waiting(database, CLUSTER, queue(3), T0 + 60) == 1


def test_without_a_model_nothing_is_forecast(database: Database) -> None:
    assert forecast_waiting(database, CLUSTER, queue(3), T0) == 0
    train_from_database(database, CLUSTER, T0, None)
    assert forecast_waiting(database, CLUSTER, queue(3), T0) == 0
    assert not kept(database)
