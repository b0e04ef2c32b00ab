"""Convert the site's time zone to UTC offsets, since job_submit.lua has no time-zone database."""

from __future__ import annotations

import datetime as dt
import functools
from zoneinfo import ZoneInfo

# Number of calendar years for which clock changes are listed, including the first year.
YEARS = 4


def start_of_day(day: dt.date, zone: ZoneInfo) -> int:
    """Return the epoch second at which a day begins."""
    return int(dt.datetime.combine(day, dt.time(), zone).timestamp())


def end_of_day(day: dt.date, zone: ZoneInfo) -> int:
    """Return the epoch second at which a day ends."""
    return 2**53 if day == dt.date.max else start_of_day(day + dt.timedelta(days=1), zone)


@functools.cache
def utc_offsets(zone: ZoneInfo, first_year: int) -> tuple[tuple[int, int], ...]:
    """Return the UTC offsets since `first_year`: ascending pairs (epoch second, seconds east of UTC).

    Each offset applies from its epoch second; the first offset also applies to earlier times. A zone without
    clock changes has a single pair.
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
            low, high = before, after  # the change is in (low, high]
            while high - low > 1:
                middle = (low + high) // 2
                if offset(middle) == found[-1][1]:
                    low = middle
                else:
                    high = middle
            found.append((high, offset(high)))
    return tuple(found)
