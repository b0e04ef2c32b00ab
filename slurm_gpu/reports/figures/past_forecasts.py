"""How near forecasts of waiting were to what came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np

from slurm_gpu.reports.category import Floats
from slurm_gpu.reports.figure import Bars, Figure, FigureTable, TableColumn
from slurm_gpu.reports.past_forecasts import PastForecasts, Score
from slurm_gpu.reports.wording import percent, several

_OVER = "Of forecasts told in the month whose interval is over and of which is known what came: "


def forecasts_against_outcomes(told: Sequence[PastForecasts]) -> Figure:
    """Shares within twice and three times the true wait, and within the interval, by month and partition.

    Drawn are the months, or of a single one its partitions.
    """
    scores = [one.score for one in told]
    table = FigureTable(
        name="forecasts_against_outcomes",
        title="Forecasts of waiting, and what came",
        columns=[
            TableColumn("month", "", "The calendar month at the site in which it was told."),
            TableColumn("partition", "", "The partition in which the job ran, or waited."),
            TableColumn("forecasts", "", f"{_OVER}how many. Of one job at most one each ten minutes."),
            TableColumn(
                "within_2x_pct",
                "%",
                f"{_OVER}the share of which the true wait was between half of what was told as likeliest and "
                "twice that. Waits of less than a minute count as a minute.",
            ),
            TableColumn("within_3x_pct", "%", f"{_OVER}the same, between a third and three times."),
            TableColumn(
                "in_interval_pct",
                "%",
                f"{_OVER}the share of which the job began within the interval told, which is to be 80 %.",
            ),
        ],
        data={
            "month": [f"{one.month:%Y-%m}" for one in told],
            "partition": [one.partition for one in told],
            "forecasts": np.array([score.n for score in scores], np.int64),
            **_shares(scores),
        },
    )
    drawn = _drawn(told)
    shares = _shares(list(drawn.values()))
    return Figure(
        id="forecasts-against-outcomes",
        title=table.title,
        reading=_reading(sum(scores, Score())),
        table=table,
        chart=Bars(
            labels=list(drawn),
            series={
                "within twice": shares["within_2x_pct"],
                "within three times": shares["within_3x_pct"],
                "in the interval": shares["in_interval_pct"],
            },
            unit="%",
            stacked=False,
        ),
    )


def _shares(scores: Sequence[Score]) -> dict[str, Floats]:
    near = {
        "within_2x_pct": [score.within_2x for score in scores],
        "within_3x_pct": [score.within_3x for score in scores],
        "in_interval_pct": [score.held for score in scores],
    }
    told = np.array([score.n for score in scores], np.float64)
    return {name: 100 * np.array(counts, np.float64) / told for name, counts in near.items()}


def _drawn(told: Sequence[PastForecasts]) -> Mapping[str, Score]:
    """By label: the months in their order, or the partitions, of which most was forecast first."""
    months: dict[date, Score] = defaultdict(Score)
    partitions: dict[str, Score] = defaultdict(Score)
    for one in told:
        months[one.month] += one.score
        partitions[one.partition] += one.score
    if len(months) > 1:
        return {f"{month:%Y-%m}": score for month, score in months.items()}
    return dict(sorted(partitions.items(), key=lambda item: (-item[1].n, item[0])))


def _reading(score: Score) -> str:
    if not score.n:
        return "No forecast of a wait that was told in this period is old enough to be judged."
    return (
        f"The job began within the interval told in {percent(score.held, score.n)} of "
        f"{several(score.n, 'forecast')}, which is to be 80 %; {percent(score.within_2x, score.n)} were "
        f"within twice the true wait, {percent(score.within_3x, score.n)} within three times."
    )
