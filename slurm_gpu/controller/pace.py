"""When slurmctld is asked next: each second while it answers at once, ever less often while it does not."""

from __future__ import annotations

INTERVAL_S = 1.0
_SHARE = 0.3
"""At most this part of the time a question may be under way; most of it is squeue's own."""
_LONGEST_S = 15.0
"""Between two looks while slurmctld answers: a snapshot is good for 30 s."""
_LONGEST_AWAY_S = 20.0
"""Between two questions that are not answered: a snapshot is missed as soon as slurmctld is back."""


class Pace:
    """The growing delay of one watcher."""

    def __init__(self) -> None:
        self._failures = 0

    def after_answer(self, asked_s: float, took_s: float) -> float:
        """Seconds to wait after a look that took `took_s`, for `asked_s` of which slurmctld was asked.

        Our own sums are no burden to slurmctld, but may not keep a core busy for more than half of the time.
        """
        self._failures = 0
        return max(INTERVAL_S - took_s, took_s, min(asked_s * (1 / _SHARE - 1), _LONGEST_S))

    def after_failure(self, took_s: float) -> float:
        """Seconds to wait when there was no answer: twice as long each time.

        Slurm's commands may themselves try for many seconds before they give up.
        """
        self._failures += 1
        return max(INTERVAL_S, min(INTERVAL_S * 2.0**self._failures, _LONGEST_AWAY_S) - took_s)
