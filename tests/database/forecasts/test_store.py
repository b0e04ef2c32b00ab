"""Models are stored completely, and forecasts are compared with outcomes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import func, select

from slurm_gpu.config.site import Retention
from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.forecasts import store
from slurm_gpu.database.forecasts.outcomes import past_accuracy
from slurm_gpu.database.forecasts.store import (
    AGAIN_AFTER_S,
    Prediction,
    newest_model,
    read_model_body,
    remember,
    store_model,
)
from slurm_gpu.database.maintenance.pruning import Pruning
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import forecast
from slurm_gpu.wire.answers.forecast import ForecastRecord
from tests.database.samples import CLUSTER, T0, row

SAID = Prediction(job_id=1, at_s=T0, lower_s=60, median_s=120, upper_s=600, source="tables", created_s=T0 - 9)
ENDED_S = T0 + 601


def keep(database: Database, *said: Prediction) -> int:
    return database.write(lambda connection: remember(connection, CLUSTER, said))


def began(database: Database, **given: object) -> None:
    """Store a finished job as in accounting."""
    runs = [run_row(row(**{"submit_s": T0 - 5, "eligible_s": T0 - 5, **given}), {})]  # type: ignore[arg-type]
    database.write(lambda connection: store_changed_runs(connection, runs))


def accuracy(database: Database, now_s: int = ENDED_S) -> ForecastRecord:
    with database.reading() as connection:
        return past_accuracy(connection, CLUSTER, now_s)


def test_a_model_of_many_parts_comes_back_whole_and_old_ones_go(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 1000)
    bodies = {created_s: bytes([created_s % 256]) * 2500 for created_s in range(1, 6)}
    for created_s, body in bodies.items():
        database.write(lambda connection, at=created_s, it=body: store_model(connection, CLUSTER, at, it))  # type: ignore[misc]
    database.write(lambda connection: store_model(connection, "other", 9, b"x"))
    database.write(lambda connection: store_model(connection, CLUSTER, 5, b"again"))
    with database.reading() as connection:
        assert newest_model(connection, CLUSTER, 9) == 5
        kept = [read_model_body(connection, CLUSTER, created_s) for created_s in range(1, 6)]
        assert kept == [b"", b"", bodies[3], bodies[4], b"again"]
        assert newest_model(connection, "nobody", 9) is None


def test_models_of_a_clock_that_stood_wrong_do_not_outlast_those_made_since(database: Database) -> None:
    """Test models from a clock that was years ahead: newer models must still be used and kept."""
    year_s = 365 * 86400
    for created_s in (T0 + year_s, T0 + year_s + 1, T0 + year_s + 2):
        database.write(partial(store_model, cluster=CLUSTER, created_s=created_s, body=b"wrong"))
    with database.reading() as connection:
        assert newest_model(connection, CLUSTER, T0) == T0 + year_s + 2, "better than none"
    for created_s in (T0, T0 + 86400):
        database.write(partial(store_model, cluster=CLUSTER, created_s=created_s, body=b"right"))
        with database.reading() as connection:
            assert newest_model(connection, CLUSTER, created_s + 60) == created_s
            assert read_model_body(connection, CLUSTER, created_s) == b"right"
            assert read_model_body(connection, CLUSTER, created_s - 86400) == b""


def test_a_forecast_is_kept_once_in_ten_minutes(database: Database) -> None:
    assert keep(database, SAID) == 1
    assert keep(database, replace(SAID, at_s=T0 + AGAIN_AFTER_S - 1)) == 0
    assert keep(database, replace(SAID, job_id=2), SAID) == 1
    assert keep(database, replace(SAID, at_s=T0 + AGAIN_AFTER_S)) == 1
    with database.reading() as connection:
        assert connection.execute(select(func.count()).select_from(forecast)).scalar() == 3


def test_a_forecast_from_a_clock_ahead_blocks_no_later_one(database: Database) -> None:
    assert keep(database, replace(SAID, at_s=T0 + 86400)) == 1
    assert keep(database, SAID) == 1
    assert keep(database, replace(SAID, at_s=T0 + 1)) == 0


@pytest.mark.parametrize(
    ("start_s", "n_correct"),
    [(T0 + 30, 0), (T0 + 60, 1), (T0 + 300, 1), (T0 + 600, 1), (T0 + 700, 0), (None, 0)],
)
def test_a_forecast_is_correct_if_the_job_began_in_the_interval(
    database: Database, start_s: int | None, n_correct: int
) -> None:
    keep(database, SAID)
    began(database, start_s=start_s, end_s=None if start_s is None else start_s + 10)
    assert accuracy(database) == ForecastRecord(n=1, correct=n_correct, since_s=T0)


def test_before_the_interval_is_over_nothing_is_judged(database: Database) -> None:
    keep(database, SAID)
    began(database, start_s=T0 + 100, end_s=None)
    assert accuracy(database, T0 + 600).n == 0


@pytest.mark.parametrize(("gone_s", "n"), [(T0 + 500, 0), (T0 + 900, 1)])
def test_a_cancelled_job_counts_only_if_it_waited_longer(database: Database, gone_s: int, n: int) -> None:
    keep(database, SAID)
    began(database, start_s=None, end_s=gone_s, state="CANCELLED")
    assert accuracy(database, T0 + 1000) == ForecastRecord(n=n, correct=0, since_s=T0 if n else None)


def test_the_next_start_of_a_requeued_job_counts(database: Database) -> None:
    keep(database, SAID)
    began(database, submit_s=T0 - 900, eligible_s=T0 - 900, start_s=T0 - 500, end_s=T0 - 9, state="REQUEUED")
    began(database, start_s=T0 + 90, end_s=None)
    assert accuracy(database) == ForecastRecord(n=1, correct=1, since_s=T0)


def test_the_first_task_of_an_array_to_start_counts(database: Database) -> None:
    keep(database, replace(SAID, job_id=10))
    for job_id, task, start_s in ((10, 2, None), (11, 0, T0 + 90), (12, 1, T0 + 900)):
        began(database, job_id=job_id, array_job_id=10, array_task=task, start_s=start_s, end_s=None)
    assert accuracy(database, T0 + 1000) == ForecastRecord(n=1, correct=1, since_s=T0)


def test_array_tasks_of_another_cluster_are_ignored(database: Database) -> None:
    keep(database, replace(SAID, job_id=10))
    began(database, cluster="other", job_id=12, array_job_id=10, array_task=1, start_s=T0 + 90, end_s=None)
    assert accuracy(database).n == 0


def test_a_job_missing_from_accounting_has_no_outcome(database: Database) -> None:
    keep(database, SAID)
    assert accuracy(database).n == 0


def test_the_last_ones_are_judged(database: Database) -> None:
    for job_id in range(1, 6):
        keep(database, replace(SAID, job_id=job_id, at_s=T0 + job_id))
        began(database, job_id=job_id, start_s=T0 + 300 if job_id > 2 else T0 + 10, end_s=None)
    with database.reading() as connection:
        assert past_accuracy(connection, CLUSTER, T0 + 900, most=3) == ForecastRecord(
            n=3, correct=3, since_s=T0 + 3
        )
        assert past_accuracy(connection, CLUSTER, T0 + 900) == ForecastRecord(n=5, correct=3, since_s=T0 + 1)


def test_forecasts_are_kept_for_the_configured_time(database: Database) -> None:
    keep(database, SAID, replace(SAID, job_id=2, at_s=T0 + 10))
    pruning = Pruning(database, Retention(forecasts_s=3600.0))
    now_s = T0 + 3605
    assert pruning.count(now_s).forecasts == pruning.prune(now_s).forecasts == 1
    with database.reading() as connection:
        assert connection.execute(select(forecast.c.job_id)).scalars().all() == [2]
