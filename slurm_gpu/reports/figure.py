"""The parts of a figure: a table, a chart of it, and a summary sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_gpu.reports.category import Category, Floats, Integers

# The values of one column. NaN, None and UNKNOWN are missing values.
Values = Floats | Integers | Category | Sequence[str] | Sequence[str | None] | Sequence[int] | Sequence[float]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """The description of a column. `unit` is "" for texts and counts; `about` explains the values."""

    name: str
    unit: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureTable:
    """The table of all numbers of a figure; its CSV and Parquet files have this `name`."""

    name: str
    title: str
    columns: Sequence[TableColumn]
    data: Mapping[str, Values]

    def __post_init__(self) -> None:
        if [column.name for column in self.columns] != list(self.data):
            raise ValueError(f"{self.name}: columns and data differ")
        if len({len(values) for values in self.data.values()}) > 1:
            raise ValueError(f"{self.name}: columns differ in length")

    def __len__(self) -> int:
        return len(next(iter(self.data.values()))) if self.data else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars for each label: one per series, stacked or side by side.

    `total` is the total of each label, drawn as an outline. `others` is the sum over the `n_others` labels
    that are left out. It is written below the bars, because its bar would make all others short.
    """

    labels: Sequence[str]
    series: Mapping[str, Floats]
    unit: str
    stacked: bool = True
    total: Floats | None = None
    n_others: int = 0
    others: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """Means over time bins. `edges_s`, in UTC epoch seconds, has one more element than each series.

    Series are stacked areas if `stacked`, otherwise lines. `unused` names the series that are unused
    capacity; they are drawn in quiet tones. `limit` is a line drawn on top of the series, such as the
    capacity.
    """

    edges_s: Floats
    series: Mapping[str, Floats]
    unit: str
    stacked: bool = True
    unused: Sequence[str] = ()
    limit: Floats | None = None
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Axis:
    """A quantity by which runs are compared."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True)
class StepCurve:
    """A cumulative distribution: the share `upto[i]` (0–1) of values is at most `x[i]`; both ascend."""

    x: Floats
    upto: Floats
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdf:
    """Cumulative distributions: one curve per axis and application."""

    axes: Sequence[Axis]
    curves: Mapping[str, Mapping[str, StepCurve]]
    """The curves by axis, then by application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelCoordinates:
    """One line for each run across all axes, coloured by the axis `colour` and filtered by `application`.

    A line is interrupted at NaN. `of` is the total number of runs; the lines may be only a sample.
    """

    axes: Sequence[Axis]
    values: Mapping[str, Floats]
    colour: str
    application: Category
    labels: Sequence[str]
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix `values[row, column]`, in which empty cells are NaN."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Floats
    unit: str
    row_title: str = ""
    column_title: str = ""


Chart = Bars | TimeSeries | Cdf | ParallelCoordinates | Matrix


def is_empty(chart: Chart) -> bool:
    """Return whether a drawing of the chart would contain no value."""
    match chart:
        case Bars():
            return not len(chart.labels) or not _any_known(chart.series.values())
        case TimeSeries():
            columns = [*chart.series.values(), *([] if chart.limit is None else [chart.limit])]
            return len(chart.edges_s) < 2 or not _any_known(columns)
        case Cdf():
            return not any(steps.n for curves in chart.curves.values() for steps in curves.values())
        case Matrix():
            return not _any_known([chart.values])
        case ParallelCoordinates():
            return not chart.axes or not len(chart.values[chart.axes[0].name])


def _any_known(columns: Iterable[Floats]) -> bool:
    return any(bool(np.isfinite(values).any()) for values in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, its table and its summary sentence `reading`. `notes` list omissions and assumptions."""

    id: str
    title: str
    reading: str
    table: FigureTable
    chart: Chart
    notes: Sequence[str] = field(default=())

    @property
    def is_empty(self) -> bool:
        """Return whether the chart is empty; the page then shows only the summary sentence."""
        return is_empty(self.chart)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """The figures about one question."""

    id: str
    title: str
    figures: Sequence[Figure]
