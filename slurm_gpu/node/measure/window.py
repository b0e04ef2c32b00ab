"""The last ten minutes of one segment on one device: every field second by second, to be seen while it runs.

Seconds are those of the wall clock as it was when the segment began. Utilization is the mean of a second; all
else is what was measured between the two looks around the middle of the second. A field takes 2,400 bytes
from when it is first measured: some 50 KB in all where a device tells everything, 20 KB where jobs share it.
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
    """Fields of which each second has one value: a ring of the last SECONDS."""

    __slots__ = ("_columns", "newest")

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self.newest = -1
        """The last second that was set."""

    def put(self, second: int, values: Mapping[str, float | None]) -> None:
        """Set a second later than all before; what is None or left out was not measured."""
        slot = second % SECONDS
        n_set = 0
        for name, value in values.items():
            column = self._columns.get(name)
            if column is None:
                if value is None:
                    continue
                column = self._columns[name] = array("f", [_GAP]) * SECONDS
            column[slot] = _GAP if value is None else value
            n_set += 1
        if n_set < len(self._columns) or second > self.newest + 1:
            for name, column in self._columns.items():
                for missed in range(max(self.newest + 1, second - SECONDS + 1), second):
                    column[missed % SECONDS] = _GAP
                if name not in values:
                    column[slot] = _GAP
        self.newest = second

    def put_between(self, begin_s: float, end_s: float, values: Mapping[str, float | None]) -> None:
        """Set the seconds whose middle lies in between."""
        last = math.ceil(end_s - 0.5) - 1
        first = max(math.ceil(begin_s - 0.5), self.newest + 1, last - SECONDS + 1)
        for second in range(first, last + 1):
            self.put(second, values)

    def series(self, first: int, last: int) -> Iterator[tuple[str, array[float]]]:
        """Each field that was measured, from second `first` to `last`; NaN is a gap."""
        oldest = self.newest - SECONDS + 1
        for name, column in self._columns.items():
            values = array("f")
            for second in range(first, last + 1):
                values.append(column[second % SECONDS] if oldest <= second <= self.newest else _GAP)
            if not all(map(math.isnan, values)):
                yield name, values


class _Average:
    """Of one field over the part of a second that was measured."""

    __slots__ = ("seconds", "total")

    def __init__(self) -> None:
        self.total = self.seconds = 0.0

    def take(self) -> float | None:
        """The average, to begin anew."""
        mean = self.total / self.seconds if self.seconds > 0 else None
        self.total = self.seconds = 0.0
        return mean


class WindowRecorder:
    """Collects from Clock.monotonic() `start_s` on, at which the wall clock told `wall_s`."""

    __slots__ = (
        "_details",
        "_device",
        "_memory",
        "_own",
        "_second",
        "_start_wall_s",
        "_utilization",
        "_zero_s",
    )

    def __init__(self, start_s: float, wall_s: float) -> None:
        self._start_wall_s = math.floor(wall_s)
        self._zero_s = start_s - (wall_s - self._start_wall_s)
        self._utilization, self._memory, self._details = Columns(), Columns(), Columns()
        # Utilization is measured several times a second, in the one that `_second` is.
        self._own, self._device, self._second = _Average(), _Average(), 0

    def utilization(self, start_s: float, end_s: float, own: float | None, device: float) -> None:
        """The job's (None if unknown) and the device's utilization in percent between two moments."""
        begin_s, end_s = start_s - self._zero_s, end_s - self._zero_s
        if begin_s < self._second:
            begin_s = float(self._second)
        while begin_s < end_s:
            second = int(begin_s)
            if second > self._second:
                self._close_second()
                # Of what lasted long, the last ten minutes are enough.
                self._second = second = max(second, math.ceil(end_s) - SECONDS)
                begin_s = max(begin_s, second)
            stop_s = end_s if end_s < second + 1.0 else second + 1.0
            seconds = stop_s - begin_s
            if own is not None:
                self._own.total += own * seconds
                self._own.seconds += seconds
            self._device.total += device * seconds
            self._device.seconds += seconds
            begin_s = stop_s
            if stop_s == second + 1.0:
                self._close_second()
                self._second = second + 1

    def _close_second(self) -> None:
        own, device = self._own.take(), self._device.take()
        if device is not None:
            self._utilization.put(self._second, {"util_pct": own, "device_util_pct": device})

    def memory(self, start_s: float, end_s: float, values: Mapping[str, float | None]) -> None:
        """What of memory was in use between two moments."""
        self._memory.put_between(start_s - self._zero_s, end_s - self._zero_s, values)

    def details(self, start_s: float, end_s: float, values: Mapping[str, float | None]) -> None:
        """The same for all other fields."""
        self._details.put_between(start_s - self._zero_s, end_s - self._zero_s, values)

    def to_wire(self, job_id: int, segment: str, device: str) -> dict[str, Any] | None:
        """As docs/contracts.md has it, whole seconds only; None until there is one."""
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
