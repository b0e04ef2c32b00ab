"""Parse times of options: a date, a date and time, or a duration before or after now."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

from slurm_gpu.errors import UsageError
from slurm_gpu.text.cells import moment
from slurm_gpu.text.units import parse_duration


def parse_moment(option: str, value: str | None, zone: ZoneInfo, now_s: float) -> int | None:
    """Return epoch seconds of "2026-11-01", "2026-11-01T12:30" (in the site's zone) or "7d" (ago)."""
    if value is None:
        return None
    try:
        at_s = _at_s(value, zone, now_s)
        dt.datetime.fromtimestamp(at_s, zone)  # raises an error for years out of range
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{option} {value}: use a date (2026-11-01), a time (2026-11-01T12:30) "
            "or a duration ago (12h, 7d)"
        ) from None
    return at_s


def parse_period(
    since: str | None, until: str | None, zone: ZoneInfo, now_s: float
) -> tuple[int | None, int | None]:
    """Return --since and --until in epoch seconds; raise UsageError for invalid times or an empty period."""
    since_s = parse_moment("--since", since, zone, now_s)
    until_s = parse_moment("--until", until, zone, now_s)
    if since_s is not None and until_s is not None and until_s <= since_s:
        raise UsageError(
            f"--until {until} ({moment(until_s, zone)}) must be later than "
            f"--since {since} ({moment(since_s, zone)})"
        )
    return since_s, until_s


def parse_future(option: str, value: str | None, zone: ZoneInfo, now_s: float) -> int | None:
    """Return epoch seconds of "2026-12-01", "2026-12-01T12:30" (in the site's zone) or "2d" (from now)."""
    if value is None:
        return None
    try:
        try:
            at_s = int(now_s + parse_duration(value))
        except ValueError:
            at_s = _at_s(value, zone, now_s)
        dt.datetime.fromtimestamp(at_s, zone)
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{option} {value}: use a date (2026-12-01), a time (2026-12-01T12:30) "
            "or a duration from now (2d)"
        ) from None
    return at_s


def _at_s(value: str, zone: ZoneInfo, now_s: float) -> int:
    try:
        at = dt.datetime.fromisoformat(value)
    except ValueError:
        return int(now_s - parse_duration(value))
    return int((at if at.tzinfo else at.replace(tzinfo=zone)).timestamp())
