"""Record which shapes are blocked during one pass, to skip jobs with equal or larger needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_gpu.simulate.queue import JobShape

# Nodes, whole GPUs, CPUs, memory in MiB.
_Needs = tuple[int, int, int, int]


class BlockedShapes:
    """The blocked shapes of one pass, during which free resources only shrink and reservations only grow."""

    def __init__(self, shapes: Sequence[JobShape]) -> None:
        requests = [shape.request for shape in shapes]
        self._needs = [(one.nodes, one.gpus, one.cpus, one.memory_mib) for one in requests]
        self._like = [
            (one.partition, one.qos, one.request.gpu_type, one.request.share_mgpu, one.request.one_zone)
            for one in shapes
        ]
        self._blocked: dict[tuple[int, str, str, int, bool], list[tuple[float, _Needs]]] = {}
        """Minimal blocked needs by partition, QOS, GPU type, share of a GPU, and requirement of one zone."""
        self._refused: dict[int, float] = {}
        """For each refused shape, the earliest time past which the placement does not let jobs run."""

    def begin(self) -> None:
        """Start a pass: clear the records of the previous pass."""
        self._blocked.clear()
        self._refused.clear()

    def add(self, shape: int, past_s: float, *, larger_too: bool) -> None:
        """Record that jobs of this shape cannot start if they may run past `past_s`.

        With `larger_too`, the reason is a lack of room, which also blocks larger jobs. Otherwise the
        placement refused the job.
        """
        if larger_too:
            needs, blocked = self._needs[shape], self._blocked.setdefault(self._like[shape], [])
            blocked[:] = [one for one in blocked if one[0] < past_s or not _is_less(needs, one[1])]
            blocked.append((past_s, needs))
        else:
            self._refused[shape] = min(past_s, self._refused.get(shape, past_s))

    def covers(self, shape: int, end_s: float) -> bool:
        """Return whether a job of this shape that may run until `end_s` is known to be blocked."""
        if end_s > self._refused.get(shape, math.inf):
            return True
        needs = self._needs[shape]
        for past_s, less in self._blocked.get(self._like[shape], ()):
            if past_s < end_s and _is_less(less, needs):
                return True
        return False


def _is_less(one: _Needs, other: _Needs) -> bool:
    """Return whether `one` needs at most as much as `other` in every respect."""
    return one[0] <= other[0] and one[1] <= other[1] and one[2] <= other[2] and one[3] <= other[3]
