"""Cache which shapes may fit, so that shapes that do not fit are not tried repeatedly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.queue import JobShape
from slurm_gpu.simulate.state import ModelState


class FitCache:
    """A cache of the shapes that may fit.

    A shape that does not fit is skipped until a node that can host a part of it is freed.
    """

    def __init__(self, state: ModelState, shapes: Sequence[JobShape]) -> None:
        self._state = state
        self._may_fit = np.ones(len(shapes), dtype=np.bool_)
        requests = [shape.request for shape in shapes]
        self._cpus = _column(request.cpus for request in requests)
        self._gpus = _column(request.gpus for request in requests)
        self._share_mgpu = _column(request.share_mgpu for request in requests)
        self._memory_mib = _column(request.memory_mib for request in requests)
        rooms = {(shape.partition, shape.request.gpu_type): 0 for shape in shapes}
        for index, key in enumerate(rooms):
            rooms[key] = index
        self._room_of = np.array(
            [rooms[one.partition, one.request.gpu_type] for one in shapes], dtype=np.intp
        )
        self._rooms = np.array([state.room(*key) for key in rooms])

    def may_fit(self, shape: int) -> bool:
        """Return whether the shape may fit."""
        return bool(self._may_fit[shape])

    def close(self, shape: int) -> None:
        """Record that the shape does not fit."""
        self._may_fit[shape] = False

    def refresh(self) -> None:
        """Allow new attempts for shapes that may fit on nodes freed since the last call."""
        state = self._state
        if not state.freed:
            return
        freed = np.array(sorted(state.freed), dtype=np.intp)
        state.freed.clear()
        closed = np.flatnonzero(~self._may_fit)
        if not len(closed):
            return
        fits = self._rooms[self._room_of[closed][:, np.newaxis], freed] & state.open[freed]
        fits &= self._cpus[closed] <= state.free_cpus[freed]
        fits &= self._gpus[closed] <= state.free_gpus[freed]
        fits &= self._share_mgpu[closed] <= state.largest_mgpu[freed]
        fits &= self._memory_mib[closed] <= state.free_memory_mib[freed]
        self._may_fit[closed[fits.any(axis=1)]] = True


def _column(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), dtype=np.int64)[:, np.newaxis]
