"""Records as they stood a while ago, for segments whose end is learnt late.

Where an epilog never came, Slurm's word for the end comes when samples of later have been counted already,
and those may be another job's. The record that stood at the end is the truth, less what came after it.
"""

from __future__ import annotations

import json
import zlib

from slurm_gpu.records import Record

# The more often two divides a checkpoint's number, the longer it is kept: three for each power of two.
_KEPT = 6


class History:
    """Checkpoints of one segment on one device: of each age one that is at most half as old again.

    A day of checkpoints each 10 s leaves 40, some 2 KB each.
    """

    def __init__(self) -> None:
        self._added = 0
        self._kept: list[tuple[int, float, bytes]] = []

    def add(self, at_s: float, record: Record) -> None:
        """The record of now (Clock.monotonic()); to be called at equal intervals."""
        self._added += 1
        packed = zlib.compress(json.dumps(record.to_wire(), separators=(",", ":")).encode(), 1)
        self._kept.append((self._added, at_s, packed))
        self._kept = [kept for kept in self._kept if self._added - kept[0] < _KEPT * (kept[0] & -kept[0])]

    def at(self, moment_s: float) -> Record | None:
        """The newest one that was taken by then, if any is left."""
        packed = next((packed for _, at_s, packed in reversed(self._kept) if at_s <= moment_s), None)
        return None if packed is None else Record.from_wire(json.loads(zlib.decompress(packed)))

    def __len__(self) -> int:
        return len(self._kept)
