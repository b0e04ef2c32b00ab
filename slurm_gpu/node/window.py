"""The last ten minutes of one segment on one device: every field second by second, to be seen while it runs.

Seconds are those of the wall clock as it was when the segment began; the value of a second is the mean of
what was measured of it. A field takes 2,400 bytes from when it is first measured: some 50 KB in all where a
device tells everything, 20 KB where jobs share it.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

WIDTH_S = 1
SECONDS = 600

_GAP = math.nan


class Columns:
    """Fields that are measured over the same intervals, one interval after another."""

    __slots__ = ("_columns", "_newest", "_newest_s")

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._newest = -1
        # How much of the newest second has been measured.
        self._newest_s = 0.0

    def add(self, begin_s: float, end_s: float, values: Mapping[str, float | None]) -> None:
        """Each of these was so in between, in seconds since the window's zero; None was not measured."""
        newest = self._newest
        last = math.ceil(end_s) - 1
        first = max(int(begin_s), newest, last - SECONDS + 1)
        if last < first or end_s <= begin_s:
            return
        weight = self._newest_s if first == newest else 0.0
        for column in self._columns.values():
            for second in range(max(newest + 1, last - SECONDS + 1), last + 1):
                column[second % SECONDS] = _GAP
        seconds = min(end_s, first + 1.0) - max(begin_s, first)
        slot = first % SECONDS
        for name, value in values.items():
            if value is None:
                continue
            column_or_none = self._columns.get(name)
            column = self._new(name) if column_or_none is None else column_or_none
            before = column[slot]
            if weight > 0 and not math.isnan(before):
                column[slot] = (before * weight + value * seconds) / (weight + seconds)
            else:
                column[slot] = value
            for second in range(first + 1, last + 1):
                column[second % SECONDS] = value
        self._newest = last
        self._newest_s = weight + seconds if first == last else end_s - last

    def _new(self, name: str) -> array[float]:
        column = self._columns[name] = array("f", [_GAP]) * SECONDS
        return column

    @property
    def newest(self) -> int:
        """The last second of which anything was measured; -1 before the first."""
        return self._newest

    def series(self, first: int, last: int) -> Iterator[tuple[str, array[float]]]:
        """Each field that was measured, from second `first` to `last`; NaN is a gap."""
        oldest = self._newest - SECONDS + 1
        for name, column in self._columns.items():
            values = array(
                "f",
                (
                    column[second % SECONDS] if oldest <= second <= self._newest else _GAP
                    for second in range(first, last + 1)
                ),
            )
            if not all(map(math.isnan, values)):
                yield name, values


class Window:
    """Collects from Clock.monotonic() `start_s` on, at which the wall clock told `wall_s`."""

    __slots__ = ("_details", "_memory", "_start_wall_s", "_utilization", "_zero_s")

    def __init__(self, start_s: float, wall_s: float) -> None:
        self._start_wall_s = math.floor(wall_s)
        self._zero_s = start_s - (wall_s - self._start_wall_s)
        self._utilization, self._memory, self._details = Columns(), Columns(), Columns()

    def utilization(self, start_s: float, end_s: float, values: Mapping[str, float | None]) -> None:
        """The job's and the device's utilization between two moments."""
        self._utilization.add(start_s - self._zero_s, end_s - self._zero_s, values)

    def memory(self, start_s: float, end_s: float, values: Mapping[str, float | None]) -> None:
        """The same for memory."""
        self._memory.add(start_s - self._zero_s, end_s - self._zero_s, values)

    def details(self, start_s: float, end_s: float, values: Mapping[str, float | None]) -> None:
        """The same for all other fields."""
        self._details.add(start_s - self._zero_s, end_s - self._zero_s, values)

    def to_wire(self, job_id: int, segment: str, device: str) -> dict[str, Any] | None:
        """As docs/contracts.md has it; None until something was measured."""
        parts = (self._utilization, self._memory, self._details)
        last = max(part.newest for part in parts)
        if last < 0:
            return None
        first = max(0, last - SECONDS + 1)
        return {
            "job_id": job_id,
            "segment": segment,
            "device": device,
            "start_s": self._start_wall_s + first,
            "width_s": WIDTH_S,
            "series": {name: _base64(values) for part in parts for name, values in part.series(first, last)},
        }


def _base64(values: array[float]) -> str:
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")
