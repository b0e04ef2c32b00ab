"""In which periods Slurm's accounting is read: years of it not at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_DAY_S = 86400
SHORTEST_S, LONGEST_S = _DAY_S, 28 * _DAY_S
EMPTY_S = 91 * _DAY_S
"""So long is the next where there was nothing, as there is before a cluster's first day."""
WANTED_ROWS = 30_000
"""sacct and slurmdbd hold all rows of a question in memory, some kilobytes each."""
SLURMDBD_S = 1_199_145_600
"""2008-01-01: there was no slurmdbd before, so what is older is asked for at once."""


@dataclass(frozen=True, slots=True)
class ImportPeriod:
    """From when until when; None: until all that there is."""

    from_s: int
    until_s: int | None


class Periods:
    """One period after the other from `from_s` on, the last of which has no end.

    Each is as long as WANTED_ROWS took in the one before: `n_rows` is to be set to how many that had.
    """

    def __init__(self, from_s: int, now_s: int) -> None:
        self._from_s, self._now_s = from_s, now_s
        self.n_rows = 0

    def __iter__(self) -> Iterator[ImportPeriod]:
        begin_s, length_s = self._from_s, LONGEST_S
        while True:
            end_s = SLURMDBD_S if begin_s < SLURMDBD_S else begin_s + length_s
            if end_s >= self._now_s:
                yield ImportPeriod(begin_s, None)
                return
            yield ImportPeriod(begin_s, end_s)
            if self.n_rows == 0:
                length_s = EMPTY_S
            else:
                length_s = min(max(SHORTEST_S, length_s * WANTED_ROWS // self.n_rows), LONGEST_S)
            begin_s = end_s
