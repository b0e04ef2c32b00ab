"""What was blocked in one pass, so that nobody is tried who needs as much, or more, for as long."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_gpu.simulate.queue import Shape

_Needs = tuple[int, int, int, int]
"""Nodes, whole GPUs, CPUs, memory (MiB)."""


class TooMuch:
    """For one pass, in which what is free only shrinks, and what is promised only grows."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self._shapes = shapes
        self._blocked: dict[tuple[int, str, str, int], list[tuple[float, _Needs]]] = {}
        """For jobs of one partition, QOS and GPU type, and one share of a GPU."""
        self._refused: dict[int, float] = {}
        """By shape."""

    def add(self, index: int, past_s: float, *, larger_too: bool) -> None:
        """No job of this shape that may run past this moment can start.

        `larger_too`: for lack of room, so that nobody can who needs more; else because it was not placed.
        """
        if larger_too:
            shape = self._shapes[index]
            self._blocked.setdefault(_like(shape), []).append((past_s, _needs(shape)))
        else:
            self._refused[index] = min(past_s, self._refused.get(index, past_s))

    def covers(self, index: int, end_s: float) -> bool:
        """Whether it is known that a job of this shape, which may run until then, is blocked."""
        if end_s > self._refused.get(index, math.inf):
            return True
        shape = self._shapes[index]
        blocked = self._blocked.get(_like(shape))
        if not blocked:
            return False
        needs = _needs(shape)
        return any(past_s < end_s and _is_less(less, needs) for past_s, less in blocked)


def _like(shape: Shape) -> tuple[int, str, str, int]:
    return shape.partition, shape.qos, shape.request.gpu_type, shape.request.share_mgpu


def _needs(shape: Shape) -> _Needs:
    request = shape.request
    return request.nodes, request.gpus, request.cpus, request.memory_mib


def _is_less(one: _Needs, other: _Needs) -> bool:
    """Or the same, in every respect."""
    return one[0] <= other[0] and one[1] <= other[1] and one[2] <= other[2] and one[3] <= other[3]
