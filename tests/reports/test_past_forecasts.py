"""A report shows the accuracy of nine forecasts of waits, counted by hand."""

from __future__ import annotations

from datetime import date

import pytest

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.forecasts.store import Prediction, remember
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.reports.figure import Bars, Figure
from slurm_gpu.reports.figures.past_forecasts import forecasts_against_outcomes
from slurm_gpu.reports.load import load
from slurm_gpu.reports.period import ReportPeriod
from tests.database.conftest import database, mariadb, shared_database, shared_databases, short_path
from tests.reports.filling import insert_runs
from tests.reports.world import run_row

__all__ = ["database", "mariadb", "shared_database", "shared_databases", "short_path"]

SITE = SiteConfig(cluster="c", timezone="Asia/Seoul")
SPRING = ReportPeriod(since=date(2026, 3, 1), until=date(2026, 5, 1), timezone=SITE.timezone)
MARCH = ReportPeriod(since=date(2026, 3, 1), until=date(2026, 4, 1), timezone=SITE.timezone)
NOW_S = SPRING.until_s + 86400
# The local time in Seoul, which is 14:00 UTC on 31 March.
LATE_MARCH_S = MARCH.until_s - 3600


def prediction(job_id: int, at_s: int, lower_s: int, median_s: int, upper_s: int) -> Prediction:
    return Prediction(
        job_id=job_id,
        at_s=at_s,
        lower_s=lower_s,
        median_s=median_s,
        upper_s=upper_s,
        source="tables",
        created_s=1,
    )


def ran(job_id: int, start_s: int | None, end_s: int | None, **given: object) -> dict[str, object]:
    one = {"user": "u", "account": "a", "submit_s": SPRING.since_s, "mgpu": 1000, "nodes": ["n1"]}
    return run_row(job_id, {**one, "start_s": start_s, "end_s": end_s, **given})


@pytest.fixture
def filled(database: Database) -> Database:
    """Return a database with nine forecasts that count, and four that do not."""
    hour, at_s, april_s = 3600, LATE_MARCH_S, LATE_MARCH_S + 2 * 3600
    said = [
        prediction(1, at_s, 1800, hour, 4 * hour),  # Started after an hour, as predicted.
        prediction(2, at_s, 1800, hour, 4 * hour),  # After two hours, twice the forecast.
        prediction(3, at_s, 1800, hour, 4 * hour),  # After three hours.
        prediction(4, at_s, 1800, hour, 4 * hour),  # After 20 minutes, a third, before the interval.
        prediction(5, at_s, 0, 8, 16),  # At once: seconds are ignored; in the interval.
        prediction(6, at_s, 1800, hour, 4 * hour),  # Still waits.
        prediction(7, april_s, 1800, hour, 4 * hour),  # After an hour, in another partition.
        prediction(8, april_s, 1800, hour, 4 * hour),  # After ten hours.
        prediction(9, april_s, 1800, hour, 4 * hour),  # Cancelled after five hours without a start.
        prediction(10, april_s, 1800, hour, 4 * hour),  # Cancelled after two hours: unknown.
        prediction(11, april_s, 1800, hour, 400 * 86400),  # Its interval has not ended.
        prediction(12, april_s, 1800, hour, 4 * hour),  # Missing in accounting.
        prediction(13, SPRING.since_s - 5, 0, 8, 16),  # Before the period.
    ]
    database.write(lambda connection: remember(connection, "c", said))
    end_s = NOW_S - 5
    insert_runs(
        database,
        [
            ran(1, at_s + hour, end_s),
            ran(2, at_s + 2 * hour, end_s),
            ran(3, at_s + 3 * hour, end_s),
            ran(4, at_s + hour // 3, end_s),
            ran(5, at_s + 2, end_s),
            ran(6, None, None, partition="gpu,cpu"),
            ran(7, april_s + hour, end_s, partition="long"),
            ran(8, april_s + 10 * hour, end_s, partition="long"),
            ran(9, None, april_s + 5 * hour, state="CANCELLED"),
            ran(10, None, april_s + 2 * hour, state="CANCELLED"),
            ran(11, april_s + hour, end_s),
            ran(13, SPRING.since_s + 2, end_s),
        ],
    )
    return database


def figure(database: Database, period: ReportPeriod) -> Figure:
    return forecasts_against_outcomes(load(database, SITE, period, NOW_S).forecasts)


def test_shares_by_month_and_partition(filled: Database) -> None:
    found = figure(filled, SPRING)
    data = found.table.data
    assert data["month"] == ["2026-04", "2026-04", "2026-03"]
    assert data["partition"] == ["gpu", "long", "gpu"]
    assert list(data["forecasts"]) == [1, 2, 6]
    assert list(data["within_2x_pct"]) == pytest.approx([0, 50, 50])
    assert list(data["within_3x_pct"]) == pytest.approx([0, 50, 500 / 6])
    assert list(data["in_interval_pct"]) == pytest.approx([0, 50, 400 / 6])
    assert found.reading == (
        "The job started within the predicted interval in 55.6 % of 9 forecasts (target: 80 %); "
        "44.4 % were within a factor of two of the true wait, 66.7 % within a factor of three."
    )
    assert isinstance(found.chart, Bars)
    assert list(found.chart.labels) == ["2026-04", "2026-03"]
    assert list(found.chart.series["in the interval"]) == pytest.approx([100 / 3, 400 / 6])


def test_a_single_month_is_drawn_by_partition(filled: Database) -> None:
    found = figure(filled, MARCH)
    assert isinstance(found.chart, Bars)
    assert list(found.chart.labels) == ["gpu"]
    assert found.reading.startswith("The job started within the predicted interval in 66.7 % of 6 forecasts")


def test_without_forecasts_the_figure_has_a_sentence(database: Database) -> None:
    found = figure(database, MARCH)
    assert found.reading == ("No forecast in this period has a known outcome yet.")
    assert len(found.table) == 0
