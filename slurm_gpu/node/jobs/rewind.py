"""Records as they stood a while ago, for segments whose end is learnt late.

Where an epilog never came, Slurm's word for the end comes when samples of later have been counted already,
and those may be another job's. The record that stood at the end is the truth, less what came after it.
"""

from __future__ import annotations

import json
import zlib

from slurm_gpu.wire import Record

# Of a young segment one is kept at these ages, for good: it may end before the first checkpoint.
YOUNG_S = (1.0, 2.0, 4.0, 8.0)
# All of the last three minutes are kept, since slurm-gpudbd waits two before it calls a job over. Of those
# before, the more often two divides a checkpoint's number, the longer it is: three for each power of two.
_ALL_OF = 18
_KEPT = 6
_WINDOW_BITS, _MEMORY_LEVEL = 12, 4


class Checkpoints:
    """Checkpoints of one segment on one device: of each age one that is at most half as old again.

    A day of checkpoints each 10 s leaves some 50, of 2 KB each.
    """

    def __init__(self) -> None:
        self._added = 0
        self._kept: list[tuple[int, float, bytes]] = []
        self._young: list[tuple[int, float, bytes]] = []

    def add(self, at_s: float, record: bytes) -> None:
        """The record of now (Clock.monotonic()) as JSON; to be called at equal intervals."""
        self._added += 1
        self._kept.append((self._added, at_s, _packed(record)))
        self._kept = [
            kept for kept in self._kept if self._added - kept[0] < max(_ALL_OF, _KEPT * (kept[0] & -kept[0]))
        ]

    def wants_young(self, age_s: float) -> bool:
        """Should the record of a segment of that age be kept besides?"""
        return len(self._young) < len(YOUNG_S) and age_s >= YOUNG_S[len(self._young)]

    def add_young(self, at_s: float, record: bytes) -> None:
        """See `wants_young`."""
        self._young.append((0, at_s, _packed(record)))

    def at(self, moment_s: float) -> Record | None:
        """The newest one that was taken by then, if any is left."""
        until = [kept for kept in (*self._young, *self._kept) if kept[1] <= moment_s]
        packed = max(until, key=lambda kept: kept[1], default=None)
        return None if packed is None else Record.from_wire(json.loads(zlib.decompress(packed[2])), {})

    def __len__(self) -> int:
        return len(self._kept)


def _packed(record: bytes) -> bytes:
    # The usual 256 KiB of zlib's own would cost more to lay out than a record to compress.
    packer = zlib.compressobj(level=1, wbits=_WINDOW_BITS, memLevel=_MEMORY_LEVEL)
    return packer.compress(record) + packer.flush()
