"""What was blocked in one pass, so that nobody is tried who needs as much, or more, for as long."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_gpu.simulate.queue import JobShape

_Needs = tuple[int, int, int, int]
"""Nodes, whole GPUs, CPUs, memory (MiB)."""


class TooMuch:
    """Within one pass what is free only shrinks, and what is promised only grows."""

    def __init__(self, shapes: Sequence[JobShape]) -> None:
        requests = [shape.request for shape in shapes]
        self._needs = [(one.nodes, one.gpus, one.cpus, one.memory_mib) for one in requests]
        self._like = [
            (one.partition, one.qos, one.request.gpu_type, one.request.share_mgpu, one.request.one_zone)
            for one in shapes
        ]
        self._blocked: dict[tuple[int, str, str, int, bool], list[tuple[float, _Needs]]] = {}
        """Those that need least, of one partition, QOS, GPU type and share of a GPU, in one zone or any."""
        self._refused: dict[int, float] = {}
        """By shape."""

    def begin(self) -> None:
        """Another pass: forget the last one."""
        self._blocked.clear()
        self._refused.clear()

    def add(self, shape: int, past_s: float, *, larger_too: bool) -> None:
        """No job of this shape that may run past this moment can start.

        `larger_too`: for lack of room, so that nobody can who needs more; else because it was not placed.
        """
        if larger_too:
            needs, blocked = self._needs[shape], self._blocked.setdefault(self._like[shape], [])
            blocked[:] = [one for one in blocked if one[0] < past_s or not _is_less(needs, one[1])]
            blocked.append((past_s, needs))
        else:
            self._refused[shape] = min(past_s, self._refused.get(shape, past_s))

    def covers(self, shape: int, end_s: float) -> bool:
        """Whether it is known that a job of this shape, which may run until then, is blocked."""
        if end_s > self._refused.get(shape, math.inf):
            return True
        needs = self._needs[shape]
        for past_s, less in self._blocked.get(self._like[shape], ()):
            if past_s < end_s and _is_less(less, needs):
                return True
        return False


def _is_less(one: _Needs, other: _Needs) -> bool:
    """Or the same, in every respect."""
    return one[0] <= other[0] and one[1] <= other[1] and one[2] <= other[2] and one[3] <= other[3]
