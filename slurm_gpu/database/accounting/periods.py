"""Split the time range of an import into periods, since Slurm's accounting may cover years."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_DAY_S = 86400
SHORTEST_S, LONGEST_S = _DAY_S, 28 * _DAY_S
# Length of the period after an empty one. All periods before a cluster's first day are empty.
EMPTY_S = 91 * _DAY_S
# sacct and slurmdbd keep all rows of a query in memory, some kilobytes each.
WANTED_ROWS = 30_000
# 2008-01-01: all time before this is one period, because slurmdbd did not exist yet.
SLURMDBD_S = 1_199_145_600


@dataclass(frozen=True, slots=True)
class ImportPeriod:
    """A period to import; it is open-ended if `until_s` is None."""

    from_s: int
    until_s: int | None


class Periods:
    """Consecutive periods from `from_s`; the last one is open-ended.

    Each period is long enough to contain about WANTED_ROWS rows, estimated from the previous period. Set
    `n_rows` to the number of rows in the current period.
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
