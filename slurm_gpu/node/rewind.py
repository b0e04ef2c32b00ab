"""Records as they stood a while ago, for segments whose end is learnt late.

Where an epilog never came, Slurm's word for the end comes when samples of later have been counted already,
and those may be another job's. The record that stood at the end is the truth, less what came after it.
"""

from __future__ import annotations

from slurm_gpu.records import Record


class History:
    """Checkpoints of one segment on one device: few, but for any age one that is at most twice as old."""

    def __init__(self) -> None:
        self._added = 0
        self._kept: list[tuple[int, float, Record]] = []

    def add(self, at_s: float, record: Record) -> None:
        """The record of now (Clock.monotonic()); to be called at equal intervals."""
        self._added += 1
        self._kept.append((self._added, at_s, record))
        # The more often two divides its number, the longer one is kept: one or two for each power of two.
        self._kept = [kept for kept in self._kept if self._added - kept[0] < 3 * (kept[0] & -kept[0])]

    def at(self, moment_s: float) -> Record | None:
        """The newest one that was taken by then, if any is left."""
        return next((record for _, at_s, record in reversed(self._kept) if at_s <= moment_s), None)

    def __len__(self) -> int:
        return len(self._kept)
