"""Describe the hours of a rule in words."""

from __future__ import annotations

from slurm_gpu.policy.language.model import Hours, JobTime
from slurm_gpu.text.cells import time_of_day

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_JOBS = {JobTime.SUBMISSION: "submitted", JobTime.RUN: "that may run"}


def jobs_at(when: Hours) -> str:
    """Describe the jobs of a rule, such as "submitted on Monday from 22:00 to 06:00 the next day"."""
    days = "on any day" if len(when.days) == len(_DAYS) else f"on {_days(sorted(when.days))}"
    if (when.from_min, when.to_min) == (0, 1440):
        return f"{_JOBS[when.at]} {days}"
    return f"{_JOBS[when.at]} {days} from {time_of_day(when.from_min)} to {_end(when.to_min)}"


def _end(to_min: int) -> str:
    """Return the end of hours, in minutes since midnight, such as "06:00 the next day"."""
    return time_of_day(to_min) if to_min <= 1440 else f"{time_of_day(to_min - 1440)} the next day"


def _days(days: list[int]) -> str:
    if len(days) > 2 and days == list(range(days[0], days[-1] + 1)):
        return f"{_DAYS[days[0]]} to {_DAYS[days[-1]]}"
    names = [_DAYS[day] for day in days]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
