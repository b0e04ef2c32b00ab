"""Forecasts of slurm-gpudbd: trained from its database, requested over HTTP, compared with outcomes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slurm_gpu.client.database_client import DatabaseClient, Forecast
from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.forecasts.store import AGAIN_AFTER_S, read_model_body, store_model
from slurm_gpu.database.forecasts.training import installed_learner, train_from_database
from slurm_gpu.errors import UsageError
from slurm_gpu.forecast.forecaster import LEARNED, TABLES
from slurm_gpu.forecast.model_file import model_bytes, read_model
from slurm_gpu.forecast.queue import feature_names
from slurm_gpu.forecast.regression import LinearRegression, Regression, Trees
from slurm_gpu.slurm.client import AccountingRun, QueuedJob
from tests.database.conftest import empty
from tests.database.running_server import NOBODY, ROOT, Running, acting_as
from tests.database.samples import CLUSTER, T0, queued, row

DAY_S = 86400
ALICE = 1001
TRES = {"cpu": 8.0, "mem": 65536.0, "gres/gpu": 2.0}


def history(n: int = 300, days: float = 10.0) -> list[AccountingRun]:
    """Return jobs of the last days that each waited about half an hour."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(n):
        eligible_s = int(T0 - days * DAY_S * (number + 1) / n - 7200)
        start_s = eligible_s + int(1800 * 2 ** rng.normal(0, 0.4))
        found.append(
            row(
                job_id=1000 + number,
                submit_s=eligible_s,
                eligible_s=eligible_s,
                start_s=start_s,
                end_s=start_s + 600,
                tres_requested=TRES,
                time_limit_s=3600 * int(rng.integers(1, 9)),
            )
        )
    return found


def pending(**given: Any) -> QueuedJob:
    """Return a job of alice that was submitted a moment ago."""
    values = {
        "job_id": 17,
        "uid": ALICE,
        "state": "PENDING",
        "reason": "Resources",
        "submit_s": T0 - 5,
        "eligible_s": T0 - 5,
        "start_s": None,
        "nodes": (),
        "tres_requested": TRES,
        "tres_allocated": {},
        "gpu_index": {},
    }
    return queued(**values | given)


def store(server: Running, *runs: AccountingRun) -> None:
    rows = [run_row(one, {}) for one in runs]
    server.database.write(lambda connection: store_changed_runs(connection, rows))


@pytest.fixture
def site(server: Running) -> Iterator[Running]:
    """Empty the database, and put job 17 into the queue.

    The server reads the queue again every two seconds of the fake clock.
    """
    empty(server.database)
    server.clock.now = max(server.clock.now, T0) + 100
    server.clock.now += 100
    server.slurm.queue = [pending()]
    yield server
    server.slurm.queue = []
    server.clock.now += 100


def learn(server: Running, now_s: int | None = None) -> int:
    """Train a model as of `now_s`, by default the current time; return that time."""
    created_s = int(server.clock.now) if now_s is None else now_s
    train_from_database(server.database, CLUSTER, created_s, None)
    return created_s


def ask(server: Running, job: str = "17") -> Forecast:
    with DatabaseClient(server.config) as client:
        said = client.forecast(job)
    assert isinstance(said, Forecast)
    return said


def test_a_pending_job_gets_the_waits_of_similar_jobs(site: Running) -> None:
    store(site, *history())
    created_s = learn(site)
    said = ask(site)
    assert (said.id, said.source, said.with_gpus, said.full) == ("17", "tables", True, True)
    assert said.lower_s < 1800 < said.upper_s < DAY_S
    assert (said.created_s, said.past.n) == (created_s, 0)
    with DatabaseClient(site.config) as client:
        assert client.health().learned_s == created_s
    assert said.judged is not None
    assert said.judged.within_2x > 0.8


def test_an_unsubmitted_job_gets_the_same(site: Running) -> None:
    store(site, *history())
    learn(site)
    with DatabaseClient(site.config) as client:
        said = client.forecast_asked(partition="gpu", account="vision", gpus=2, cores=8, time_limit_s=3600)
    assert isinstance(said, Forecast)
    assert (said.id, said.with_gpus) == (None, True)
    assert said.lower_s < 1800 < said.upper_s


def test_forecasts_are_compared_with_outcomes(site: Running) -> None:
    store(site, *history())
    learn(site)
    said = ask(site)
    ask(site)  # requests within ten minutes count once
    start_s = int(said.at_s + said.median_s)
    store(site, row(job_id=17, submit_s=T0 - 5, eligible_s=T0 - 5, start_s=start_s, end_s=None))
    site.clock.now += int(said.upper_s) + AGAIN_AFTER_S
    later = ask(site)
    assert (later.past.n, later.past.correct, later.past.since_s) == (1, 1, said.at_s)


def test_a_new_model_is_used_at_once(site: Running) -> None:
    store(site, *history())
    learn(site, T0 - 9 * DAY_S)
    assert ask(site).created_s == T0 - 9 * DAY_S
    assert ask(site).created_s != learn(site) == ask(site).created_s


def test_a_better_learned_forecast_is_used_without_its_training_library(
    site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(1)
    runs = []
    for one in history(100):  # a longer time limit waits longer, by more than the resolution of tables
        assert one.eligible_s is not None
        limit_s = int(3600 * 2 ** rng.uniform(0, 2.5))
        start_s = one.eligible_s + int(1800 * (limit_s / 3600) ** 2)
        runs.append(one._replace(time_limit_s=limit_s, start_s=start_s, end_s=start_s + 600))
    store(site, *runs)
    trained = train_from_database(site.database, CLUSTER, int(site.clock.now), installed_learner())
    assert trained.sources["gpu"] == "learned"
    monkeypatch.setitem(sys.modules, "sklearn", None)
    waits = []
    with DatabaseClient(site.config) as client:
        for hours in (1, 4):
            said = client.forecast_asked(
                partition="gpu",
                account="vision",
                gpus=2,
                cores=8,
                memory_mib=65536,
                time_limit_s=hours * 3600,
            )
            assert isinstance(said, Forecast)
            assert said.source == "learned"
            waits.append(said.median_s)
    assert waits[1] > 3 * waits[0]


def test_ten_jobs_of_history_give_an_untested_interval(site: Running) -> None:
    store(site, *history(10))
    learn(site)
    said = ask(site)
    assert (said.judged, said.source) == (None, "tables")
    assert said.lower_s < said.median_s < said.upper_s


def test_a_model_of_an_older_version_must_be_trained_again(site: Running) -> None:
    """Test that the caller is not asked to retry, because the database works."""
    created_s = int(site.clock.now)
    site.database.write(lambda connection: store_model(connection, CLUSTER, created_s, b"of another version"))
    with DatabaseClient(site.config) as client:
        said = client.forecast("17")
    assert isinstance(said, str)
    assert said.startswith("the stored forecast model cannot be read")
    assert said.endswith("`slurm-gpu forecast train` on slurm-gpudbd's host")
    store(site, *history())
    learn(site, created_s + 1)
    assert ask(site).median_s > 0


def both_forecasts(site: Running) -> tuple[Forecast, Forecast]:
    """Return the forecasts of job 17 and of an identical job that has not been submitted."""
    with DatabaseClient(site.config) as client:
        asked = client.forecast_asked(partition="gpu", account="vision", gpus=2, cores=8, time_limit_s=3600)
    assert isinstance(asked, Forecast)
    return ask(site), asked


def test_an_older_model_replaces_an_unreadable_newest_one_with_a_warning(
    site: Running, caplog: pytest.LogCaptureFixture
) -> None:
    store(site, *history())
    created_s = learn(site)
    whole = both_forecasts(site)
    site.database.write(lambda connection: store_model(connection, CLUSTER, created_s + 5, b"cut off"))
    for before, after in zip(whole, both_forecasts(site), strict=True):
        assert (after.created_s, after.upper_s, before.remark) == (created_s, before.upper_s, None)
        assert after.remark is not None
        assert after.remark.startswith("the stored forecast model cannot be read: not a zip file")
        assert after.remark.endswith("so an older model is used")
    reported = [record for record in caplog.records if "is not used" in record.getMessage()]
    assert len(reported) == 1, "once, not with each question"
    learn(site, created_s + 9)
    assert {one.remark for one in both_forecasts(site)} == {None}


def test_tables_with_a_remark_replace_a_damaged_regression(site: Running) -> None:
    store(site, *history())
    created_s = learn(site)
    with site.database.reading() as connection:
        model = read_model(read_model_body(connection, CLUSTER, created_s))
    steep = Regression(
        feature_names(), _one_leaf(), LinearRegression(np.full(len(feature_names()), 1e300), 0.0)
    )
    found = {
        kind: replace(
            one,
            source=LEARNED,
            shares=dict.fromkeys((TABLES, LEARNED), 0.8),
            within=dict.fromkeys((TABLES, LEARNED), (0.5, 0.7)),
        )
        for kind, one in model.forecaster.corrections.items()
    }
    forecaster = replace(model.forecaster, regression=steep, corrections=found)
    body = model_bytes(replace(model, forecaster=forecaster))
    site.database.write(lambda connection: store_model(connection, CLUSTER, created_s + 5, body))
    for said in both_forecasts(site):
        assert (said.created_s, said.source) == (created_s + 5, "tables")
        assert said.lower_s <= said.median_s <= said.upper_s
        assert said.judged is not None
        assert said.remark is not None
        assert "so tables are used: slopes " in said.remark


def _one_leaf() -> Trees:
    none, one = np.zeros(1, np.int32), np.ones(1, np.float32)
    return Trees(
        none, none - 1, np.zeros(1), none, none, one, np.array([0, 1], np.int32), none.astype(np.uint8), one
    )


@pytest.mark.parametrize(
    ("trained", "why"), [(False, "slurm-gpu forecast train"), (True, "no job that had waited")]
)
def test_without_history_the_reason_is_returned(site: Running, trained: bool, why: str) -> None:
    if trained:
        learn(site)
    with DatabaseClient(site.config) as client:
        said = client.forecast("17")
    assert isinstance(said, str)
    assert why in said


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (pending(eligible_s=None, reason="JobHeldUser"), "scontrol release 17"),
        (pending(eligible_s=None, reason="JobHeldAdmin"), "held by an admin"),
        (pending(eligible_s=None, reason="Dependency"), "waits for another job"),
        (pending(eligible_s=T0 + 10 * DAY_S, reason="BeginTime"), "--begin"),
    ],
)
def test_a_job_that_may_not_start_yet_has_none(site: Running, job: QueuedJob, why: str) -> None:
    store(site, *history())
    learn(site)
    site.slurm.queue = [job]
    site.clock.now += 10
    with DatabaseClient(site.config) as client, pytest.raises(UsageError, match=why):
        client.forecast("17")


def test_a_job_that_is_not_pending_gets_its_state(site: Running) -> None:
    started = {"submit_s": T0 - 1900, "eligible_s": T0 - 1900, "start_s": T0 - 100}
    store(site, row(job_id=20, end_s=None, state="RUNNING", **started))
    store(site, row(job_id=21, end_s=T0, **started))
    with DatabaseClient(site.config) as client:
        for job, why in (
            ("20", "job 20 is running; it waited 30m00s"),
            ("21", "job 21 has ended: COMPLETED; it waited 30m00s"),
            ("4711", "there is no job 4711"),
            ("x", "'x' is not a job"),
        ):
            with pytest.raises(UsageError, match=why):
                client.forecast(job)


def test_a_task_and_an_array_are_found_by_their_names(site: Running) -> None:
    store(site, *history())
    learn(site)
    site.slurm.queue = [
        pending(job_id=30, array_job_id=30, array_task="5-9%2", n_tasks=5),
        pending(job_id=31, array_job_id=30, array_task="4"),
        pending(job_id=40, het_job_id=40, het_offset=0),
    ]
    site.clock.now += 10
    for job in ("30", "30_4", "30_7", "40", "40+0"):
        assert ask(site, job).id == job
    with DatabaseClient(site.config) as client, pytest.raises(UsageError, match="no job 30_3"):
        client.forecast("30_3")


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_the_reasons_of_anothers_job_stay_private(site: Running) -> None:
    # Jobs with a long time limit wait longer, so the forecast has a reason.
    longer = [
        one._replace(start_s=one.start_s + 40_000, end_s=one.start_s + 50_000, time_limit_s=7 * DAY_S)
        if number % 2
        else one
        for number, one in enumerate(history())
        if one.start_s is not None
    ]
    store(site, *longer)
    learn(site)
    site.slurm.queue = [pending(time_limit_s=7 * DAY_S)]
    site.clock.now += 10
    assert ask(site).reasons
    with acting_as(NOBODY):
        theirs = site.signed("GET", "/v1/forecast/17")
    status, answer = site.raw("GET", "/v1/forecast/17", b"", theirs)
    assert status == 200
    assert (answer["forecast"]["full"], answer["forecast"]["reasons"]) == (False, [])
    assert answer["forecast"]["upper_s"] > 0
    assert site.raw("GET", "/v1/forecast/17", b"", {})[0] == 401


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"partition": ""},
        {"partition": "gpu", "gpus": "x"},
        {"partition": "gpu", "cores": -1},
        {"partition": "gpu", "gpus": "nan"},
        {"partition": "gpu", "colour": "red"},
    ],
)
def test_an_invalid_query_is_refused(site: Running, asked: dict[str, Any]) -> None:
    with DatabaseClient(site.config) as client, pytest.raises(UsageError):
        client.forecast_asked(**asked)
