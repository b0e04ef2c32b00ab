"""Find EASY backfill's reservation for a blocked job: its latest possible start, and its nodes.

The start follows from the time limits of the running jobs. A lower-priority job may start earlier if it ends
by then or leaves enough room for the blocked job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.state import FreeResources, Mask, ModelState


class BackfillReservation:
    """The nodes that are reserved for a blocked job from `at_s` on."""

    def __init__(
        self, state: ModelState, request: ResourceRequest, nodes: Sequence[int], at_s: float
    ) -> None:
        self.at_s = at_s
        self.nodes = frozenset(nodes)
        self.mask: Mask = np.zeros(len(state.on_node), dtype=np.bool_)
        self.mask[list(nodes)] = True
        self.left_room: dict[ResourceRequest, dict[int, bool]] = {}
        """Cached results of `leaves_room`; results for a node are dropped when a job starts on it."""
        self._state, self._request = state, request
        self._then: dict[int, FreeResources] = {}

    @classmethod
    def of(
        cls, state: ModelState, request: ResourceRequest, when: NDArray[np.float64], now_s: float
    ) -> BackfillReservation | None:
        """Return the earliest reservation, given when each node has room; None if there is none."""
        n = request.nodes
        if n > len(when):
            return None
        if n == 1:
            first = [int(when.argmin())]
        elif request.one_zone:
            first = _first_in_one_zone(when, state, n)
        else:
            first = np.argsort(when, kind="stable")[:n].tolist()
        if not first:
            return None
        at_s = float(when[first].max())
        return None if math.isinf(at_s) else cls(state, request, first, max(now_s, at_s))

    def leaves_room(self, node: int, request: ResourceRequest, devices: Sequence[int]) -> bool:
        """Return whether a reserved node keeps enough room if a job that outlasts `at_s` uses these GPUs."""
        then = self._free_then(node)
        then.take(request, devices)
        left = then.fits(self._request)
        then.give_back(request, devices)
        return left

    def take(self, node: int, request: ResourceRequest, devices: Sequence[int]) -> None:
        """Record that a job that outlasts `at_s` starts on a reserved node."""
        self._free_then(node).take(request, devices)
        for seen in self.left_room.values():
            seen.pop(node, None)

    def _free_then(self, node: int) -> FreeResources:
        then = self._then.get(node)
        if then is None:
            then = self._state.free(node)
            for allocation in self._state.on_node[node].values():
                if allocation.until_s <= self.at_s:
                    then.give_back(allocation.request, allocation.devices_on(node))
            self._then[node] = then
        return then


def _first_in_one_zone(when: NDArray[np.float64], state: ModelState, n: int) -> list[int]:
    """Return n nodes of the first zone in which the job fits; empty if no zone has enough nodes."""
    order = np.argsort(when, kind="stable")
    best: list[int] = []
    for zone in range(int(state.zone.max()) + 1):
        nodes = order[state.zone[order] == zone][:n].tolist()
        if len(nodes) == n and (not best or when[nodes[-1]] < when[best[-1]]):
            best = nodes
    return best
