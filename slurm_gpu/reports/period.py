"""The period of a report, which consists of whole days in the site's time zone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from slurm_gpu.errors import UsageError
from slurm_gpu.reports.category import Floats

_DAYS_BY_HOUR = 8
_DAYS_BY_WEEK = 400
# Reports also read the year before the first day and the month after the last day, so Python's calendar must
# contain both.
_FIRST, _LAST = date(1970, 1, 1), date(9000, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPeriod:
    """Days from `since` up to, but not including, `until`."""

    since: date
    until: date
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if self.until <= self.since:
            raise UsageError(f"the report ends on {self.until}, but begins on {self.since}: end it later")
        if self.since < _FIRST or self.until > _LAST:
            raise UsageError(
                f"the report is for {self.since} to {self.until}: use days from {_FIRST} to {_LAST}"
            )

    @property
    def since_s(self) -> int:
        """Return the start in UTC epoch seconds."""
        return self.midnight_s(self.since)

    @property
    def until_s(self) -> int:
        """Return the exclusive end in UTC epoch seconds."""
        return self.midnight_s(self.until)

    @property
    def days(self) -> int:
        """Return the number of days."""
        return (self.until - self.since).days

    def midnight_s(self, day: date) -> int:
        """Return the start of a day in the site's time zone."""
        return round(datetime.combine(day, time(), ZoneInfo(self.timezone)).timestamp())

    def edges_s(self) -> Floats:
        """Return the edges of the time bins: hours, days or weeks, depending on the length of the period."""
        if self.days <= _DAYS_BY_HOUR:
            return np.append(np.arange(self.since_s, self.until_s, 3600), self.until_s).astype(np.float64)
        step = timedelta(days=1 if self.days <= _DAYS_BY_WEEK else 7)
        days = [self.since + i * step for i in range(-(-self.days // step.days))]
        return np.array([*map(self.midnight_s, days), self.until_s], np.float64)

    def bin_name(self) -> str:
        """Return the name of one bin of `edges_s`."""
        return "hour" if self.days <= _DAYS_BY_HOUR else "day" if self.days <= _DAYS_BY_WEEK else "week"

    def before(self) -> ReportPeriod | None:
        """Return the same number of days before this period; None if they are too long ago."""
        earlier = self.since - timedelta(days=self.days)
        return None if earlier < _FIRST else replace(self, since=earlier, until=self.since)

    def months(self, n: int) -> list[date]:
        """Return the first days of the last `n` calendar months of the period, and of the next month."""
        last = (self.until - timedelta(days=1)).replace(day=1)
        return [_month_after(last, back) for back in range(1 - n, 2)]


def _month_after(first: date, months: int) -> date:
    index = first.year * 12 + first.month - 1 + months
    return date(index // 12, index % 12 + 1, 1)
