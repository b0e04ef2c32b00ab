"""Read rows of `run` for a report as numpy columns, in batches, to fit millions of rows in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, Text, and_, case, func, or_, select, type_coerce

from slurm_gpu.database.accounting.derived_columns import RESIZING
from slurm_gpu.database.accounting.host_runs import shown_here
from slurm_gpu.database.storage.schema import run
from slurm_gpu.reports.category import Category, Codes, Encoder, Floats, Integers, Mask
from slurm_gpu.reports.period import ReportPeriod

T = TypeVar("T", np.float64, np.int32)
# The number of rows per batch; a batch fits into the processor's cache while it is converted to columns.
_LOT = 500
_NUMBERS = (
    "run_id",
    "job_id",
    "submit_s",
    "eligible_s",
    "start_s",
    "end_s",
    "elapsed_s",
    "suspended_s",
    "n_nodes",
    "requested_mgpu",
    "no_process_mgpu_s",
    "ugpucore",
    "ugpumem",
    "coverage",
    "energy_j",
)
_TEXTS = (
    "cluster",
    "name",
    "user",
    "account",
    "qos",
    "partition",
    "state",
    "nodes",
    "gpu_type",
    "app",
    "app_field",
)
_MGPU = "mgpu"
_OF_SOME = ("array_job_id", "array_task", "het_job_id", "het_offset")
_ALLOCATED, _LENT = "tres_allocated", "admin_comment"
_OF_TOTALS = (
    "submit_s",
    "eligible_s",
    "start_s",
    "end_s",
    "ugpucore",
    "coverage",
)


@dataclass(frozen=True, slots=True)
class RunColumns:
    """Columns by name: numbers, with NaN for null, and texts.

    `mgpu` is the derived value or, before the first derivation, Slurm's allocation. `admin_comment`
    contains only comments that name a lender.
    """

    numbers: Mapping[str, Floats]
    texts: Mapping[str, Category]

    def __len__(self) -> int:
        return len(self.numbers["run_id"])

    def integers(self, name: str) -> Integers:
        """Return a column of nonnegative numbers as integers, with -1 for null."""
        values = self.numbers[name]
        return np.where(np.isnan(values), -1, values).astype(np.int64)

    def take(self, rows: Integers) -> RunColumns:
        """Return the selected rows."""
        return replace(
            self,
            numbers={name: values[rows] for name, values in self.numbers.items()},
            texts={name: values.take(rows) for name, values in self.texts.items()},
        )

    def amounts(self, tres: str, kind: str) -> Floats:
        """Return the amount of one resource (cpu, or mem in MiB) for each row; NaN if the row has none."""
        return self.of_tres(tres, lambda amounts: amounts.get(kind, np.nan))

    def of_tres(self, tres: str, value: Callable[[Mapping[str, float]], float]) -> Floats:
        """Return, for each row, a number derived from the resources in one column; NaN if there is none."""
        column = self.texts[tres]
        known = [value(json.loads(text)) for text in column.names]
        return np.array([*known, np.nan], np.float64)[column.codes]


def read_rows(connection: Connection, cluster: str, period: ReportPeriod) -> RunColumns:
    """Return all rows that started, ended or ran in the period, sorted by run_id."""
    texts = [
        *(run.c[name] for name in _TEXTS),
        type_coerce(run.c[_ALLOCATED], Text),
        case((run.c[_LENT].contains(" l="), run.c[_LENT])).label(_LENT),
    ]
    names = (*_TEXTS, _ALLOCATED, _LENT)
    these = shown_here(cluster), _in(period)
    numeric = {**{name: run.c[name] for name in _NUMBERS}, _MGPU: _mgpu()}
    encoders = [Encoder() for _ in names]
    lots: list[list[Floats]] = [[] for _ in numeric]
    coded: list[list[Codes]] = [[] for _ in names]
    for columns in _columns(connection, select(*numeric.values(), *texts).where(*these)):
        for numbers, values in zip(lots, columns, strict=False):
            numbers.append(np.array(values, np.float64))
        for codes, encoder, values in zip(coded, encoders, columns[len(numeric) :], strict=True):
            codes.append(encoder.codes(values))
    rows = RunColumns(
        {name: _joined(lots.pop(0), np.float64) for name in numeric},
        {
            name: Category(encoder.names, _joined(coded.pop(0), np.int32))
            for name, encoder in zip(names, encoders, strict=True)
        },
    )
    order = rows.numbers["run_id"]
    if not bool(np.all(order[1:] > order[:-1])):
        rows = rows.take(np.argsort(order))
    return replace(rows, numbers={**rows.numbers, **_of_some(connection, rows.numbers["run_id"], these)})


def _of_some(
    connection: Connection, run_ids: Floats, these: Sequence[ColumnElement[bool]]
) -> dict[str, Floats]:
    """Return the columns that only array tasks and components of heterogeneous jobs have."""
    found = {name: np.full(len(run_ids), np.nan) for name in _OF_SOME}
    some = or_(run.c.array_task.is_not(None), run.c.het_offset.is_not(None))
    query = select(run.c.run_id, *(run.c[name] for name in _OF_SOME)).where(*these, some)
    for run_id, *columns in _columns(connection, query):
        places = np.searchsorted(run_ids, np.array(run_id, np.float64))
        for name, values in zip(_OF_SOME, columns, strict=True):
            found[name][places] = np.array(values, np.float64)
    return found


def _mgpu() -> ColumnElement[int]:
    return func.coalesce(run.c.granted_mgpu, run.c.allocated_mgpu)


def _columns(connection: Connection, query: Select[Any]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the columns of each batch of rows."""
    result = connection.execute(query, execution_options={"yield_per": _LOT})
    for lot in result.partitions():
        yield list(zip(*lot, strict=True))


def read_numbers(
    connection: Connection, cluster: str, period: ReportPeriod
) -> tuple[dict[str, Floats], Mask]:
    """Return the columns that monthly totals require, and a mask of the parts of resized runs."""
    numeric = {**{name: run.c[name] for name in _OF_TOTALS}, _MGPU: _mgpu()}
    query = select(*numeric.values(), run.c.state == RESIZING).where(shown_here(cluster), _in(period))
    lots: list[list[Floats]] = [[] for _ in range(len(numeric) + 1)]
    for columns in _columns(connection, query):
        for numbers, values in zip(lots, columns, strict=True):
            numbers.append(np.array(values, np.float64))
    resizing = _joined(lots.pop(), np.float64) > 0
    return {name: _joined(lots.pop(0), np.float64) for name in numeric}, resizing


def _in(period: ReportPeriod) -> ColumnElement[bool]:
    ended_s, begin_s = run.c.end_s, run.c.start_s
    not_before = or_(ended_s.is_(None), ended_s >= period.since_s)
    return and_(not_before, or_(begin_s < period.until_s, ended_s < period.until_s))


def _joined(lots: list[NDArray[T]], dtype: type[T]) -> NDArray[T]:
    """Concatenate arrays, and drop them from the list to free their memory."""
    joined = np.concatenate(lots) if lots else np.zeros(0, dtype)
    lots.clear()
    return joined
