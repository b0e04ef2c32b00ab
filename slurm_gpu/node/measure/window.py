"""Record the window of one segment on one device: one value per field and second for ten minutes.

Seconds are aligned to the wall clock at the segment's start. Utilisation is the mean over each second; other
fields are interpolated between the two samples around the middle of the second. Each field that has been
measured takes 2,400 bytes: about 50 KB for all fields, or 20 KB on a shared device.
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
    """A ring buffer with one value per field and second for the last SECONDS; `newest` is the last second."""

    __slots__ = ("_columns", "newest")

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self.newest = -1

    def put(self, second: int, values: Mapping[str, float | None]) -> None:
        """Set the values of a second, which must be later than all seconds set before.

        A value that is None or absent was not measured.
        """
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
        """Set the values of the seconds whose middle is in the interval."""
        last = math.ceil(end_s - 0.5) - 1
        first = max(math.ceil(begin_s - 0.5), self.newest + 1, last - SECONDS + 1)
        for second in range(first, last + 1):
            self.put(second, values)

    def series(self, first: int, last: int) -> Iterator[tuple[str, array[float]]]:
        """Yield each measured field from second `first` to `last`, with NaN where it was not measured."""
        oldest = self.newest - SECONDS + 1
        for name, column in self._columns.items():
            values = array("f")
            for second in range(first, last + 1):
                values.append(column[second % SECONDS] if oldest <= second <= self.newest else _GAP)
            if not all(map(math.isnan, values)):
                yield name, values


class _Average:
    """The average of one field over the measured part of a second."""

    __slots__ = ("seconds", "total")

    def __init__(self) -> None:
        self.total = self.seconds = 0.0

    def take(self) -> float | None:
        """Return the average and reset it."""
        mean = self.total / self.seconds if self.seconds > 0 else None
        self.total = self.seconds = 0.0
        return mean


class WindowRecorder:
    """Collects samples starting at `start_s` (Clock.monotonic()), when the wall clock was `wall_s`."""

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
        # Utilisation is measured several times a second; `_second` is the current second.
        self._own, self._device, self._second = _Average(), _Average(), 0

    def utilization(self, start_s: float, end_s: float, own: float | None, device: float) -> None:
        """Add the utilisation of the job (None if unknown) and the device, in percent, between two times."""
        begin_s, end_s = start_s - self._zero_s, end_s - self._zero_s
        if begin_s < self._second:
            begin_s = float(self._second)
        while begin_s < end_s:
            second = int(begin_s)
            if second > self._second:
                self._close_second()
                # Only the last ten minutes of a long interval are needed.
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
        """Add the memory fields between two times."""
        self._memory.put_between(start_s - self._zero_s, end_s - self._zero_s, values)

    def details(self, start_s: float, end_s: float, values: Mapping[str, float | None]) -> None:
        """Add all other fields between two times."""
        self._details.put_between(start_s - self._zero_s, end_s - self._zero_s, values)

    def to_wire(self, job_id: int, segment: str, device: str) -> dict[str, Any] | None:
        """Return the window in wire format (docs/contracts.md), or None before the first whole second."""
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
