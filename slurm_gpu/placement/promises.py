"""Promised starts of reservations against what came of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class PromiseDelays:
    """How late the first jobs of reservations started, in seconds after the promise; None of no such job."""

    n: int
    """Reservations whose first job started."""
    unused: int
    """Those in which no job ever started: there was nobody to be late."""
    median_s: float | None = None
    worst_s: float | None = None
    not_made: int = 0
    """Those that Slurm never had: nobody could use them."""


def lateness_s(promised_s: int, started_s: int | None, submitted_s: int | None = None) -> int | None:
    """Seconds after the promise, or after the job came where that was later; None where none started."""
    if started_s is None:
        return None
    due_s = promised_s if submitted_s is None else max(promised_s, submitted_s)
    return max(0, started_s - due_s)


def kept(lateness: Collection[int | None], not_made: int = 0) -> PromiseDelays:
    """The sum of it, over reservations that are over, and the number of others that Slurm never had."""
    late = [one for one in lateness if one is not None]
    unused = len(lateness) - len(late)
    if not late:
        return PromiseDelays(0, unused, not_made=not_made)
    return PromiseDelays(len(late), unused, float(median(late)), float(max(late)), not_made)
