"""From when until when each row of `run` held its GPUs, and which rows are one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_gpu.database.accounting.derived_columns import RESIZING
from slurm_gpu.database.accounting.resized import Row
from slurm_gpu.reports.category import Floats, Integers, Mask
from slurm_gpu.reports.period import ReportPeriod
from slurm_gpu.reports.rows import RunColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRows:
    """For each row: it held `mgpu` from `began_s`; `from_s` to `to_s` are the period's part of that.

    Of a row that never began, `began_s` is NaN and `from_s` = `to_s` = 0. `mgpu` is NaN where Slurm cannot
    tell. All that a row held, whatever the period, are `whole_s` seconds.
    """

    began_s: Floats
    from_s: Floats
    to_s: Floats
    whole_s: Floats
    mgpu: Floats
    last: Integers
    """The row that stands for the run: of a run that was resized the last, of others themselves."""
    parts: Mapping[int, Sequence[Row]]
    """By such a last row all parts of its run, also those before the period."""
    goes_on: Mask
    """Parts of which the last is not here, as it was submitted after the period."""

    @property
    def mgpu_s(self) -> Integers:
        """GPU/1000 × seconds held in the period; 0 where nobody knows."""
        return ((self.to_s - self.from_s) * np.nan_to_num(self.mgpu)).astype(np.int64)

    @property
    def unknown(self) -> Mask:
        """Rows that ran in the period, with GPUs of which the number is not known."""
        return (self.to_s > self.from_s) & np.isnan(self.mgpu)


def held_rows(
    rows: RunColumns, resized: Sequence[Sequence[Row]], period: ReportPeriod, now_s: float
) -> HeldRows:
    """What goes on holds its GPUs up to `now_s`; suspended runs hold theirs too, as Slurm accounts it."""
    last = np.arange(len(rows))
    goes_on = rows.texts["state"].is_(RESIZING)
    parts_of: dict[int, Sequence[Row]] = {}
    if resized:
        row_of = {run_id: row for row, run_id in enumerate(rows.integers("run_id").tolist())}
        for parts in resized:
            here = [row_of[part["run_id"]] for part in parts if part["run_id"] in row_of]
            last[here] = here[-1]
            goes_on[here] = False
            parts_of[here[-1]] = parts
    began_s = began_at(rows.numbers["start_s"], rows.numbers["submit_s"])
    stop_s = stopped_at(rows.numbers["end_s"], now_s)
    begun = ~np.isnan(began_s)
    from_s = np.where(begun, np.maximum(began_s, period.since_s), 0)
    return HeldRows(
        began_s=began_s,
        from_s=from_s,
        to_s=np.where(begun, np.maximum(from_s, np.minimum(stop_s, period.until_s)), 0),
        whole_s=np.where(begun, np.maximum(stop_s - began_s, 0), 0),
        mgpu=rows.numbers["mgpu"],
        last=last,
        parts=parts_of,
        goes_on=goes_on,
    )


def began_at(start_s: Floats, submit_s: Floats) -> Floats:
    """When rows began to hold; NaN for those that never did.

    Slurm may give each part of a resized run the whole run's start: a part began at the later of that and its
    own submission, which is the resize.
    """
    return np.maximum(start_s, submit_s)


def stopped_at(end_s: Floats, now_s: float) -> Floats:
    """Until when rows held; up to now where they go on."""
    return np.where(np.isnan(end_s), np.floor(now_s), end_s)
