"""Convert --begin to epoch seconds; all formats of Slurm's parse_time() are accepted, in local time."""

from __future__ import annotations

import re
import time

from slurm_gpu.errors import UsageError

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_HOURS = {"midnight": "0", "elevenses": "11", "noon": "12", "fika": "15", "teatime": "16"}
_EPOCH = re.compile(r"uts(\d{7,12})", re.IGNORECASE)
_FROM_NOW = re.compile(r"now(?:\s*([+-])\s*(\d{1,9})\s*(?:(second|minute|hour|day|week)s?)?)?", re.IGNORECASE)
_GAP = r"[\sT-]*"
_CLOCK = (
    r"(?:(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d))?\s*(?P<half>[ap]m)?"
    rf"|(?P<word>{'|'.join(_HOURS)}))"
)
_DAY = (
    r"(?:(?P<near>today|tomorrow)|(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"|(?P<us_month>\d{1,2})[./]?(?P<us_day>\d{1,2})(?:[./]?(?P<us_year>\d\d))?)"
)
_FORMATS = tuple(
    re.compile(f"{_GAP}{one}{_GAP}{other}?{_GAP}", re.IGNORECASE)
    for one, other in ((_CLOCK, _DAY), (_DAY, _CLOCK))
)


def begin_time(value: str | None, now_s: float) -> int | None:
    """Return the earliest start in epoch seconds; None if --begin is not given.

    Raise UsageError if Slurm would not accept the value.
    """
    if value is None:
        return None
    if match := _EPOCH.fullmatch(value):
        return int(match[1])
    if match := _FROM_NOW.fullmatch(value.strip()):
        sign, count, unit = match.groups()
        return int(now_s) + int(f"{sign or ''}{count or 0}") * _UNITS[(unit or "second").lower()]
    try:
        return next(_begin_s(match, now_s) for one in _FORMATS if (match := one.fullmatch(value)))
    except (StopIteration, ValueError, OverflowError):
        raise UsageError(
            f"--begin: {value[:40]!r} must be a time, such as 2026-12-01T08:00, 16:00, tomorrow or now+2hours"
        ) from None


def _begin_s(match: re.Match[str], now_s: float) -> int:
    """Return the epoch seconds of a date, a time of day, or both; raise ValueError if invalid."""
    hour = int(_HOURS[match["word"].lower()] if match["word"] else match["hour"] or 0)
    if match["half"]:
        hour = hour % 12 + (12 if match["half"].lower() == "pm" else 0)
    minute, second = int(match["minute"] or 0), int(match["second"] or 0)
    year, month, day = _day(match, (hour, minute), now_s)
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour <= 23 and minute <= 59 and second <= 59):
        raise ValueError
    return int(time.mktime((year, month, day, hour, minute, second, 0, 0, -1)))


def _day(match: re.Match[str], clock: tuple[int, int], now_s: float) -> tuple[int, int, int]:
    """Return the year, month and day; if the date or its year is missing, choose the next possible date."""
    now, tomorrow = time.localtime(now_s), time.localtime(now_s + 86400)
    if match["year"]:
        return int(match["year"]), int(match["month"]), int(match["day"])
    if match["us_month"]:
        month, day = int(match["us_month"]), int(match["us_day"])
        is_past = (month, day, *clock) <= (now.tm_mon, now.tm_mday, now.tm_hour, now.tm_min)
        year = 2000 + int(match["us_year"]) if match["us_year"] else now.tm_year + is_past
        return year, month, day
    is_today = (match["near"] or "").lower() == "today" or (
        not match["near"] and clock > (now.tm_hour, now.tm_min)
    )
    chosen = now if is_today else tomorrow
    return chosen.tm_year, chosen.tm_mon, chosen.tm_mday
