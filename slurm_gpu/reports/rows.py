"""The rows of `run` that a report needs, as numpy columns: read in lots, so that millions fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Text, and_, case, or_, select, type_coerce

from slurm_gpu.database.derive import RESIZING
from slurm_gpu.database.hostruns import shown_here
from slurm_gpu.database.schema import run
from slurm_gpu.reports.category import Category, Codes, Encoder, Floats, Integers, Mask
from slurm_gpu.reports.period import Period

T = TypeVar("T", np.float64, np.int32)
_LOT = 20_000
_NUMBERS = (
    "run_id",
    "job_id",
    "array_job_id",
    "array_task",
    "het_job_id",
    "het_offset",
    "submit_s",
    "eligible_s",
    "start_s",
    "end_s",
    "elapsed_s",
    "suspended_s",
    "n_nodes",
    "allocated_mgpu",
    "granted_mgpu",
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
    "app",
    "app_field",
)
_ALLOCATED, _REQUESTED, _LENT = "tres_allocated", "tres_requested", "admin_comment"
_OF_TOTALS = (
    "submit_s",
    "eligible_s",
    "start_s",
    "end_s",
    "allocated_mgpu",
    "granted_mgpu",
    "ugpucore",
    "coverage",
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns by name: numbers, of which NaN is a null, and texts.

    Of `tres_requested` only that of rows that never began, of `admin_comment` only those that name a lender.
    """

    numbers: Mapping[str, Floats]
    texts: Mapping[str, Category]

    def __len__(self) -> int:
        return len(self.numbers["run_id"])

    def integers(self, name: str) -> Integers:
        """A column of numbers that are not negative, -1 for null."""
        values = self.numbers[name]
        return np.where(np.isnan(values), -1, values).astype(np.int64)

    def take(self, rows: Integers) -> Rows:
        """These rows."""
        return replace(
            self,
            numbers={name: values[rows] for name, values in self.numbers.items()},
            texts={name: values.take(rows) for name, values in self.texts.items()},
        )

    def amounts(self, tres: str, kind: str) -> Floats:
        """Of each row the amount of one kind (cpu, mem in MiB, gres/gpu); NaN where nothing is said of it."""
        column = self.texts[tres]
        known = [_amount(text, kind) for text in column.names]
        return np.array([*known, np.nan], np.float64)[column.codes]


def read_rows(connection: Connection, cluster: str, period: Period) -> Rows:
    """All rows that began or ended in the period, or went on all through it, by run_id."""
    texts = [
        *(run.c[name] for name in _TEXTS),
        type_coerce(run.c[_ALLOCATED], Text),
        case((run.c.start_s.is_(None), type_coerce(run.c[_REQUESTED], Text))).label(_REQUESTED),
        case((run.c[_LENT].contains(" l="), run.c[_LENT])).label(_LENT),
    ]
    names = (*_TEXTS, _ALLOCATED, _REQUESTED, _LENT)
    query = select(*(run.c[name] for name in _NUMBERS), *texts).where(shown_here(cluster), _in(period))
    encoders = [Encoder() for _ in names]
    lots: list[list[Floats]] = [[] for _ in _NUMBERS]
    coded: list[list[Codes]] = [[] for _ in names]
    result = connection.execution_options(yield_per=_LOT).execute(query)
    for lot in result.partitions():
        columns = list(zip(*lot, strict=True))
        for numbers, values in zip(lots, columns, strict=False):
            numbers.append(np.array(values, np.float64))
        for codes, encoder, values in zip(coded, encoders, columns[len(_NUMBERS) :], strict=True):
            codes.append(encoder.codes(values))
    rows = Rows(
        {name: _joined(lots.pop(0), np.float64) for name in _NUMBERS},
        {
            name: Category(encoder.names, _joined(coded.pop(0), np.int32))
            for name, encoder in zip(names, encoders, strict=True)
        },
    )
    order = rows.numbers["run_id"]
    return rows if bool(np.all(order[1:] > order[:-1])) else rows.take(np.argsort(order))


def read_numbers(connection: Connection, cluster: str, period: Period) -> tuple[dict[str, Floats], Mask]:
    """Of the same rows only what totals are made of, and which of them are parts of resized runs."""
    query = select(*(run.c[name] for name in _OF_TOTALS), run.c.state == RESIZING)
    lots: list[list[Floats]] = [[] for _ in range(len(_OF_TOTALS) + 1)]
    result = connection.execution_options(yield_per=_LOT).execute(
        query.where(shown_here(cluster), _in(period))
    )
    for lot in result.partitions():
        for numbers, values in zip(lots, zip(*lot, strict=True), strict=True):
            numbers.append(np.array(values, np.float64))
    resizing = _joined(lots.pop(), np.float64) > 0
    return {name: _joined(lots.pop(0), np.float64) for name in _OF_TOTALS}, resizing


def _in(period: Period) -> ColumnElement[bool]:
    over_s, begin_s = run.c.end_s, run.c.start_s
    not_before = or_(over_s.is_(None), over_s >= period.since_s)
    return and_(not_before, or_(begin_s < period.until_s, over_s < period.until_s))


def _joined(lots: list[NDArray[T]], dtype: type[T]) -> NDArray[T]:
    """One array of many, which are let go."""
    joined = np.concatenate(lots) if lots else np.zeros(0, dtype)
    lots.clear()
    return joined


def _amount(text: str, kind: str) -> float:
    amount = json.loads(text).get(kind)
    return np.nan if amount is None else float(amount)
