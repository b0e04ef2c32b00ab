"""Accuracy of past forecasts of waiting times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import Bars, Figure, FigureTable, TableColumn
from slurm_gpu.reports.past_forecasts import ForecastScore, PastForecasts
from slurm_gpu.reports.wording import percent, several

_RATED = "The month's forecasts with a known outcome and an interval that has ended"


def forecasts_against_outcomes(past: Sequence[PastForecasts]) -> Figure:
    """Return the shares of forecasts within a factor of 2, within a factor of 3, and with a correct interval.

    The chart shows months, the last first, or partitions if there is only one month.
    """
    past = sorted(past, key=lambda one: one.month, reverse=True)
    scores = [one.score for one in past]
    table = FigureTable(
        name="forecasts_against_outcomes",
        title="Accuracy of wait forecasts",
        columns=[
            TableColumn("month", "", "The calendar month of the forecast, in the site's time zone."),
            TableColumn("partition", "", "The partition of the job."),
            TableColumn("forecasts", "", f"{_RATED}; at most one for each job in ten minutes."),
            TableColumn(
                "within_2x_pct",
                "%",
                "Share of these forecasts within a factor of two of the true wait. Waits below a minute "
                "count as a minute.",
            ),
            TableColumn("within_3x_pct", "%", "Share of these forecasts within a factor of three."),
            TableColumn(
                "in_interval_pct",
                "%",
                "Share of these forecasts whose job started within the interval. The target is 80 %.",
            ),
        ],
        data={
            "month": [f"{one.month:%Y-%m}" for one in past],
            "partition": [one.partition for one in past],
            "forecasts": np.array([score.n for score in scores], np.int64),
            **_shares(scores),
        },
    )
    drawn = _drawn(past)
    shares = _shares(list(drawn.values()))
    return Figure(
        id="forecasts-against-outcomes",
        title=table.title,
        reading=_reading(sum(scores, ForecastScore())),
        table=table,
        chart=Bars(
            labels=list(drawn),
            series={
                "within factor 2": shares["within_2x_pct"],
                "within factor 3": shares["within_3x_pct"],
                "in the interval": shares["in_interval_pct"],
            },
            unit="%",
            stacked=False,
        ),
    )


def _shares(scores: Sequence[ForecastScore]) -> dict[str, Floats]:
    near = {
        "within_2x_pct": [score.within_2x for score in scores],
        "within_3x_pct": [score.within_3x for score in scores],
        "in_interval_pct": [score.in_interval for score in scores],
    }
    n = np.array([score.n for score in scores], np.float64)
    return {name: 100 * np.array(counts, np.float64) / n for name, counts in near.items()}


def _drawn(past: Sequence[PastForecasts]) -> Mapping[str, ForecastScore]:
    """Return scores by label: months, the last first, or partitions by number of forecasts."""
    months: dict[date, ForecastScore] = defaultdict(ForecastScore)
    partitions: dict[str, ForecastScore] = defaultdict(ForecastScore)
    for one in past:
        months[one.month] += one.score
        partitions[one.partition] += one.score
    if len(months) > 1:
        return {f"{month:%Y-%m}": score for month, score in months.items()}
    return dict(sorted(partitions.items(), key=lambda item: (-item[1].n, item[0])))


def _reading(score: ForecastScore) -> str:
    if not score.n:
        return "No forecast in this period has a known outcome yet."
    return (
        f"The job started within the predicted interval in {percent(score.in_interval, score.n)} of "
        f"{several(score.n, 'forecast')} (target: 80 %); {percent(score.within_2x, score.n)} were within a "
        f"factor of two of the true wait, {percent(score.within_3x, score.n)} within a factor of three."
    )
