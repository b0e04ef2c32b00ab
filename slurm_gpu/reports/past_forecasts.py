"""Forecasts of waits that were told within a period, held against what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, select

from slurm_gpu.database.forecasts.outcomes import ForecastOutcome, judged, outcomes
from slurm_gpu.database.storage.schema import forecast
from slurm_gpu.reports.period import ReportPeriod

# Who waits less is told so, and a factor between seconds says nothing.
_SHORTEST_S = 60


@dataclass(slots=True)
class Score:
    """How many of `n` forecasts were near enough."""

    n: int = 0
    within_2x: int = 0
    within_3x: int = 0
    held: int = 0
    """The job began within the interval told."""

    def add(self, one: ForecastOutcome) -> None:
        """Count one more; one of a job that has not begun since is near nothing."""
        factor = _factor(one)
        self.n += 1
        self.within_2x += factor <= 2
        self.within_3x += factor <= 3
        self.held += one.held

    def __add__(self, other: Score) -> Score:
        return Score(*(getattr(self, name) + getattr(other, name) for name in Score.__slots__))


@dataclass(frozen=True, slots=True)
class PastForecasts:
    """Those that were told in one calendar month, of jobs in one partition."""

    month: date
    partition: str
    score: Score


def past_forecasts(
    connection: Connection, cluster: str, period: ReportPeriod, now_s: float
) -> Sequence[PastForecasts]:
    """By month, and by partition; of forecasts of which is known by now whether they were right."""
    told = forecast.c.at_s.between(period.since_s, period.until_s - 1)
    query = select(forecast).where(judged(cluster, int(now_s)), told).order_by(forecast.c.at_s)
    rows = connection.execute(query).mappings().all()
    zone, scores = ZoneInfo(period.timezone), dict[tuple[date, str], Score]()
    for one in outcomes(connection, cluster, rows):
        month = datetime.fromtimestamp(one.at_s, zone).date().replace(day=1)
        scores.setdefault((month, one.partition), Score()).add(one)
    return [PastForecasts(*key, score) for key, score in sorted(scores.items())]


def _factor(one: ForecastOutcome) -> float:
    """By how much the wait was longer or shorter than told."""
    if one.started_s is None:
        return float("inf")
    said_s, wait_s = max(one.median_s, _SHORTEST_S), max(one.started_s - one.at_s, _SHORTEST_S)
    return max(said_s / wait_s, wait_s / said_s)
