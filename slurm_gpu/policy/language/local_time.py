"""The site's time zone as numbers: job_submit.lua has no other clock than UTC, and no time-zone database."""

from __future__ import annotations

import datetime as dt
import functools
from zoneinfo import ZoneInfo

YEARS = 4
"""For how many calendar years changes of the clock are told, the first one included."""


def end_of_day(day: dt.date, zone: ZoneInfo) -> int:
    """Epoch second at which a day is over."""
    if day == dt.date.max:
        return 2**53
    midnight = dt.datetime.combine(day + dt.timedelta(days=1), dt.time(), zone)
    return int(midnight.timestamp())


@functools.cache
def utc_offsets(zone: ZoneInfo, first_year: int) -> tuple[tuple[int, int], ...]:
    """(epoch second, seconds east of UTC from then on), ascending, from the beginning of `first_year` on.

    The first holds since ever, the last for ever: one alone where the zone does not change its clocks.
    """

    def offset(second: int) -> int:
        utc_offset = dt.datetime.fromtimestamp(second, zone).utcoffset()
        return int(utc_offset.total_seconds()) if utc_offset is not None else 0

    begin = int(dt.datetime(first_year, 1, 1, tzinfo=dt.UTC).timestamp())
    end = int(dt.datetime(first_year + YEARS, 1, 1, tzinfo=dt.UTC).timestamp())
    found = [(0, offset(begin))]
    for before in range(begin, end, 86400):
        after = min(before + 86400, end)
        if offset(after) != found[-1][1]:
            low, high = before, after  # the change lies in (low, high]
            while high - low > 1:
                middle = (low + high) // 2
                if offset(middle) == found[-1][1]:
                    low = middle
                else:
                    high = middle
            found.append((high, offset(high)))
    return tuple(found)
