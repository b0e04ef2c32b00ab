"""Periods of limits on resource-hours: calendar periods, and rolling windows of whole days such as 30d.

All periods begin at midnight in the site's time zone and include the current day; weeks begin on Monday.
"""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

CALENDAR = ("day", "week", "month", "quarter", "year")
# A window is at most a year long. A window of one day is the period `day`.
_ROLLING = r"([2-9]|[1-9]\d|[12]\d\d|3[0-5]\d|36[0-6])d"
# The suffix of the calendar period before the current one, such as week_before.
BEFORE = "_before"
PERIOD_PATTERN = f"({'|'.join(CALENDAR)}|{_ROLLING})"


def first_day(period: str, today: dt.date) -> dt.date:
    """Return the first day of the period that contains today."""
    match period:
        case "day":
            return today
        case "week":
            return today - dt.timedelta(days=today.weekday())
        case "month":
            return today.replace(day=1)
        case "quarter":
            return today.replace(month=(today.month - 1) // 3 * 3 + 1, day=1)
        case "year":
            return today.replace(month=1, day=1)
    return today - dt.timedelta(days=_days(period) - 1)


def period_start(period: str, now_s: float, zone: ZoneInfo) -> int:
    """Return the start of the period that contains `now_s`, or of the one before it, in epoch seconds."""
    day = first_day(period.removesuffix(BEFORE), dt.datetime.fromtimestamp(now_s, zone).date())
    if period.endswith(BEFORE):
        day = first_day(period.removesuffix(BEFORE), day - dt.timedelta(days=1))
    return midnight(day, zone)


def midnight(day: dt.date, zone: ZoneInfo) -> int:
    """Return the beginning of a day in epoch seconds."""
    return int(dt.datetime.combine(day, dt.time(), zone).timestamp())


def each_text(period: str) -> str:
    """Return the wording of a period in a limit, such as "a week" or "in 30 days"."""
    return f"a {period}" if period in CALENDAR else f"in {_days(period)} days"


def this_text(period: str) -> str:
    """Return the current period in words, such as "this week" or "in 30 days"."""
    if period == "day":
        return "today"
    return f"this {period}" if period in CALENDAR else f"in {_days(period)} days"


def includes(wider: str, period: str) -> bool:
    """Return whether the current `wider` period always contains all days of the current `period`."""
    longest = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}.get(period) or _days(period)
    if wider in CALENDAR:
        order = ("day", "month", "quarter", "year")  # a week may be in two months
        both = wider in order and period in order
        return wider == period or period == "day" or (both and order.index(period) <= order.index(wider))
    return longest <= _days(wider)


def _days(window: str) -> int:
    return int(window.removesuffix("d"))
