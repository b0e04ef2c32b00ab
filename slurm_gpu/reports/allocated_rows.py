"""Determine the allocation of each row of `run`, and the rows that belong to the same run."""

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
class AllocatedRows:
    """The allocation of each row: `mgpu` from `began_s` on; the part in the period is `from_s` to `to_s`.

    If a row never started, `began_s` is NaN and `from_s` = `to_s` = 0. If Slurm does not report the number of
    GPUs, `mgpu` is NaN. `whole_s` is the length of the allocation in seconds, including time outside the
    period.
    """

    began_s: Floats
    from_s: Floats
    to_s: Floats
    whole_s: Floats
    mgpu: Floats
    last: Integers
    """The row that represents the run: the last row of a resized run, otherwise the row itself."""
    parts: Mapping[int, Sequence[Row]]
    """All parts of each resized run, including parts before the period, by the run's last row."""
    goes_on: Mask
    """Rows of resized runs whose last row is missing here because it was submitted after the period."""

    @property
    def mgpu_s(self) -> Integers:
        """Return the allocated mgpu × seconds within the period; 0 if unknown."""
        return ((self.to_s - self.from_s) * np.nan_to_num(self.mgpu)).astype(np.int64)

    @property
    def unknown(self) -> Mask:
        """Return the rows that ran in the period with an unknown number of GPUs."""
        return (self.to_s > self.from_s) & np.isnan(self.mgpu)


def allocated_rows(
    rows: RunColumns, resized: Sequence[Sequence[Row]], period: ReportPeriod, now_s: float
) -> AllocatedRows:
    """Return the allocations of all rows.

    Allocations of running rows end at `now_s`. Suspended runs keep their GPUs, as in Slurm's accounting.
    """
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
    return AllocatedRows(
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
    """Return the start of each row's allocation; NaN for rows that never started.

    Slurm may report the start of the whole run for each part of a resized run. A part therefore starts no
    earlier than its own submission, which is the time of the resize.
    """
    return np.maximum(start_s, submit_s)


def stopped_at(end_s: Floats, now_s: float) -> Floats:
    """Return the end of each row's allocation; `now_s` for running rows."""
    return np.where(np.isnan(end_s), np.floor(now_s), end_s)
