"""What a report is made of: a table, what is drawn of it, and one sentence that says what to see there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_gpu.reports.category import Category, Floats, Integers

# One column: NaN, None or UNKNOWN is a gap.
Values = Floats | Integers | Category | Sequence[str] | Sequence[str | None] | Sequence[int] | Sequence[float]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """`unit` is "" for texts and counts; `about` says what it is and how it was counted."""

    name: str
    unit: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureTable:
    """All numbers behind a figure: CSV and Parquet of this `name` are written of it."""

    name: str
    title: str
    columns: Sequence[TableColumn]
    data: Mapping[str, Values]

    def __post_init__(self) -> None:
        if [column.name for column in self.columns] != list(self.data):
            raise ValueError(f"{self.name}: columns and data differ")
        if len({len(values) for values in self.data.values()}) > 1:
            raise ValueError(f"{self.name}: columns of unequal length")

    def __len__(self) -> int:
        return len(next(iter(self.data.values()))) if self.data else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars for each label: one of each series, on top of each other if `stacked`, else side by side.

    `total` is what a bar is a part of, drawn as an outline.
    """

    labels: Sequence[str]
    series: Mapping[str, Floats]
    unit: str
    stacked: bool = True
    total: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """Means of bins of time: `edges_s`, UTC epoch seconds, are one more than the values of each series.

    Areas on each other if `stacked`, else lines. `limit` is a line above all, such as what there was.
    """

    edges_s: Floats
    series: Mapping[str, Floats]
    unit: str
    stacked: bool = True
    limit: Floats | None = None
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Axis:
    """One of the quantities by which runs are compared."""

    name: str
    unit: str

    @property
    def label(self) -> str:
        """Its name and its unit; once where the name tells the unit, as WAIT_h does."""
        is_told = not self.unit or self.name.endswith(f"_{self.unit}")
        return self.name if is_told else f"{self.name} / {self.unit}"


@dataclass(frozen=True, slots=True)
class StepCurve:
    """A distribution: the share `upto[i]` (0–1) of all is `x[i]` or less; both ascend, as steps."""

    x: Floats
    upto: Floats
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdf:
    """Cumulative distributions: for each axis one curve for each application, by its name."""

    axes: Sequence[Axis]
    curves: Mapping[str, Mapping[str, StepCurve]]
    """By axis, by application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelCoordinates:
    """One line for each run over all axes, coloured by the axis `colour`, filtered by `application`.

    NaN is a gap: the line ends there. `of` is how many runs there are, of which these may be a sample.
    """

    axes: Sequence[Axis]
    values: Mapping[str, Floats]
    colour: str
    application: Category
    labels: Sequence[str]
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """`values[row, column]`, NaN where there is nothing."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Floats
    unit: str
    row_title: str = ""
    column_title: str = ""


Chart = Bars | TimeSeries | Cdf | ParallelCoordinates | Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, its table and its reading. `notes` say what is left out or taken as given."""

    id: str
    title: str
    reading: str
    table: FigureTable
    chart: Chart
    notes: Sequence[str] = field(default=())
