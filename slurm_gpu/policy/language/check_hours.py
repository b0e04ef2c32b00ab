"""Checks `when:`, the days and hours at which a rule holds."""

from __future__ import annotations

import re
from typing import Any

from slurm_gpu.config.checker import did_you_mean, shown
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.check_values import ValueCheck, name_of
from slurm_gpu.policy.language.model import Hours

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_ALL_DAYS = frozenset(range(len(DAYS)))
_HOURS = re.compile(r"(\d{1,2})(?::(\d\d))?\s*-\s*(\d{1,2})(?::(\d\d))?")


class HoursCheck(ValueCheck):
    """`when:` of a rule."""

    def when(self, location: Location, value: Any) -> Hours | None:
        """Days and hours; None where they cannot be read."""
        table = self.table(location, value, ("days", "hours"))
        if isinstance(value, dict) and not value:
            self.fail(location, 'when is empty; write {days: mon-fri, hours: "09-18"}, or leave it out')
        days = self._days((*location, "days"), table["days"]) if "days" in table else _ALL_DAYS
        hours = self._hours((*location, "hours"), table["hours"]) if "hours" in table else (0, 1440)
        return None if days is None or hours is None else Hours(days, *hours)

    def _days(self, location: Location, value: Any) -> frozenset[int] | None:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not parts:
            self.fail(location, f"days: {shown(value)} must be days such as mon-fri or [sat, sun]")
            return None
        days: set[int] = set()
        for part in parts:
            ends = part.split("-") if isinstance(part, str) else [part]
            names = [end.strip().lower() if isinstance(end, str) else end for end in ends]
            wrong = [name for name in names if name not in DAYS]
            if wrong or len(names) > 2:
                hint = did_you_mean(wrong[0], DAYS) if wrong else "write mon-fri"
                self.fail(location, f"days: {shown(part)} is no day; {hint}")
                return None
            first, last = DAYS.index(names[0]), DAYS.index(names[-1])
            days.update((first + n) % 7 for n in range((last - first) % 7 + 1))
        return frozenset(days)

    def _hours(self, location: Location, value: Any) -> tuple[int, int] | None:
        match = _HOURS.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            self.fail(
                location, f'{name_of(location)}: {shown(value)} must be hours such as "09-18" or "22:30-24"'
            )
            return None
        begin = int(match[1]) * 60 + int(match[2] or 0)
        end = int(match[3]) * 60 + int(match[4] or 0)
        if begin >= 1440 or end > 1440 or int(match[2] or 0) > 59 or int(match[4] or 0) > 59:
            self.fail(location, f"hours: {value!r} is not on the clock; hours go from 00:00 to 24:00")
        elif end == begin:
            self.fail(location, f"hours: {value!r} is no time at all; leave hours out for the whole day")
        elif end < begin:
            self.fail(
                location,
                f"hours: {value!r} goes past midnight; write two rules, one with hours "
                f'"{_clock(begin)}-24:00" and one with "00:00-{_clock(end)}"',
            )
        else:
            return begin, end
        return None


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
