"""Answers that are made already, as many as there is room for; what finds none is made each time."""

from __future__ import annotations

from typing import NamedTuple

from slurm_gpu.monitor.http.response import CachedResponse
from slurm_gpu.monitor.viewer import Flavour

ROOM_BYTES = 64 << 20
_OF_ITSELF_BYTES = 2048
"""Of an answer without a body, its headers and places in tables."""


class CacheKey(NamedTuple):
    """What was asked for, and who may see the answer: two that differ in either never share one."""

    name: str
    value: str
    flavour: Flavour


class Shelf:
    """Of one state: it goes with it."""

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._answers: dict[CacheKey, CachedResponse] = {}
        self._left_bytes = room_bytes

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: CacheKey) -> CachedResponse | None:
        """The one that was kept."""
        return self._answers.get(key)

    def keep(self, key: CacheKey, answer: CachedResponse) -> None:
        """Keep it, if there is room."""
        needed = _OF_ITSELF_BYTES + len(answer.body) + len(answer.packed or b"")
        if needed <= self._left_bytes and key not in self._answers:
            self._left_bytes -= needed
            self._answers[key] = answer
