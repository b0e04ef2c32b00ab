"""Predict the free resources of each node over time, assuming that every job runs until its time limit."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.cluster import GPU_MGPU
from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.state import Mask, ModelState

_CPUS, _MEMORY_MIB, _GPUS, _LARGEST_MGPU = range(4)


class Prospects:
    """The free resources of each node at several moments: now, and at the end of each of its jobs.

    Only the rows of nodes that changed since the last call are rebuilt.
    """

    def __init__(self, state: ModelState) -> None:
        self._state = state
        n = len(state.on_node)
        self._at_s = np.full((n, 1), math.inf)
        """The moments of each node: -inf is now, and inf marks unused entries of a row."""
        self._free = np.zeros((4, n, 1), dtype=np.int64)
        self._seen = -1

    def when(self, request: ResourceRequest, room: Mask) -> NDArray[np.float64]:
        """Return the time at which each node has room for its part of a request: -inf is now, inf never."""
        self._bring_up_to_date()
        fits = self._free[_CPUS] >= request.cpus
        if request.gpus:
            fits &= self._free[_GPUS] >= request.gpus
        elif request.share_mgpu:
            fits &= self._free[_LARGEST_MGPU] >= request.share_mgpu
        if request.memory_mib:
            fits &= self._free[_MEMORY_MIB] >= request.memory_mib
        fits &= room[:, np.newaxis]
        times: NDArray[np.float64] = np.where(fits, self._at_s, math.inf).min(axis=1)
        return times

    def _bring_up_to_date(self) -> None:
        state = self._state
        for node in np.flatnonzero(state.changed > self._seen).tolist():
            self._make_row(node)
        self._seen = state.tick

    def _make_row(self, node: int) -> None:
        state = self._state
        self._at_s[node] = math.inf
        if not state.open[node]:
            return
        ending = sorted(
            (one for one in state.on_node[node].values() if one.until_s < math.inf),
            key=lambda one: one.until_s,
        )
        self._widen(1 + len(ending))
        free = state.free(node)
        moments = [-math.inf, *(one.until_s for one in ending)]
        amounts = []
        for allocation in (None, *ending):
            if allocation is not None:
                free.give_back(allocation.request, allocation.devices_on(node))
            whole = free.devices.count(GPU_MGPU)
            amounts.append((free.cpus, free.memory_mib, whole, max(free.devices, default=0)))
        self._at_s[node, : len(moments)] = moments
        self._free[:, node, : len(moments)] = np.array(amounts).T

    def _widen(self, wanted: int) -> None:
        have = self._at_s.shape[1]
        if wanted > have:
            more = max(wanted, 2 * have) - have
            self._at_s = np.pad(self._at_s, ((0, 0), (0, more)), constant_values=math.inf)
            self._free = np.pad(self._free, ((0, 0), (0, 0), (0, more)))
