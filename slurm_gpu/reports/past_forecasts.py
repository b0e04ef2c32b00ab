"""Compare the forecasts of a period with the true waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, select

from slurm_gpu.database.forecasts.outcomes import ForecastOutcome, judged, outcomes
from slurm_gpu.database.storage.schema import forecast
from slurm_gpu.reports.period import ReportPeriod

# Waits shorter than this count as a minute, because a ratio of seconds is meaningless.
_SHORTEST_S = 60


@dataclass(slots=True)
class ForecastScore:
    """The numbers of accurate forecasts among `n` forecasts."""

    n: int = 0
    within_2x: int = 0
    within_3x: int = 0
    in_interval: int = 0
    """Forecasts whose job started within the interval."""

    def add(self, one: ForecastOutcome) -> None:
        """Count a forecast. If its job has not started, the forecast is outside all ranges."""
        factor = _factor(one)
        self.n += 1
        self.within_2x += factor <= 2
        self.within_3x += factor <= 3
        self.in_interval += one.is_correct

    def __add__(self, other: ForecastScore) -> ForecastScore:
        return ForecastScore(
            *(getattr(self, name) + getattr(other, name) for name in ForecastScore.__slots__)
        )


@dataclass(frozen=True, slots=True)
class PastForecasts:
    """The forecasts of one calendar month for jobs of one partition."""

    month: date
    partition: str
    score: ForecastScore


def past_forecasts(
    connection: Connection, cluster: str, period: ReportPeriod, now_s: float
) -> Sequence[PastForecasts]:
    """Return the scores of forecasts with a known outcome, by month and partition."""
    in_period = forecast.c.at_s.between(period.since_s, period.until_s - 1)
    query = select(forecast).where(judged(cluster, int(now_s)), in_period).order_by(forecast.c.at_s)
    rows = connection.execute(query).mappings().all()
    zone, scores = ZoneInfo(period.timezone), dict[tuple[date, str], ForecastScore]()
    for one in outcomes(connection, cluster, rows):
        month = datetime.fromtimestamp(one.at_s, zone).date().replace(day=1)
        scores.setdefault((month, one.partition), ForecastScore()).add(one)
    return [PastForecasts(*key, score) for key, score in sorted(scores.items())]


def _factor(one: ForecastOutcome) -> float:
    """Return the factor by which forecast and wait differ, which is at least 1."""
    if one.started_s is None:
        return float("inf")
    predicted_s, wait_s = max(one.median_s, _SHORTEST_S), max(one.started_s - one.at_s, _SHORTEST_S)
    return max(predicted_s / wait_s, wait_s / predicted_s)
