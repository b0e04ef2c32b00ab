"""Compare the guaranteed starts of reservations with the actual ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class PromiseDelays:
    """Delays, in seconds, from the guaranteed starts of reservations to the starts of their first jobs.

    The delays are None if no job started.
    """

    n: int
    """Reservations whose first job started."""
    unused: int
    """Reservations in which no job started."""
    median_s: float | None = None
    worst_s: float | None = None
    not_made: int = 0
    """Reservations that were never created in Slurm."""


def lateness_s(promised_s: int, started_s: int | None, submitted_s: int | None = None) -> int | None:
    """Return the delay after the guaranteed start or, if later, the submission; None if no job started."""
    if started_s is None:
        return None
    due_s = promised_s if submitted_s is None else max(promised_s, submitted_s)
    return max(0, started_s - due_s)


def summarize(lateness: Collection[int | None], not_made: int = 0) -> PromiseDelays:
    """Summarise the delays of ended reservations, and count those that were never created."""
    late = [one for one in lateness if one is not None]
    unused = len(lateness) - len(late)
    if not late:
        return PromiseDelays(0, unused, not_made=not_made)
    return PromiseDelays(len(late), unused, float(median(late)), float(max(late)), not_made)
