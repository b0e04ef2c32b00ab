"""What EASY backfill keeps for a blocked job: when it can start at the latest, and on which nodes.

That moment follows from the time limits of what runs. A job from behind may start in the meantime where it is
over by then, or leaves the blocked job its room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.jobs import Request
from slurm_gpu.simulate.state import ClusterState, Free, Mask


class FitTimes:
    """For each node, when one node's part of a request will have room there by the time limits.

    -inf where it has now, inf where it never will. Kept from one question to the next; only nodes that
    changed in between are looked at again.
    """

    def __init__(self, state: ClusterState, request: Request, room: Mask) -> None:
        self._state, self._request, self._room = state, request, room
        self._times: NDArray[np.float64] = np.full(len(room), math.inf)
        self._seen = -1

    def now(self) -> NDArray[np.float64]:
        """By node; not to be written to."""
        stale = np.flatnonzero((self._state.changed > self._seen) & self._room)
        if len(stale):
            fits = self._state.fits(self._request, self._room)[stale].tolist()
            for node, fit in zip(stale.tolist(), fits, strict=True):
                self._times[node] = -math.inf if fit else self._time_of(node)
        self._seen = self._state.tick
        return self._times

    def _time_of(self, node: int) -> float:
        if not self._state.open[node]:
            return math.inf
        free = self._state.free(node)
        for allocation in sorted(self._state.on_node[node].values(), key=lambda one: (one.until_s, one.job)):
            if allocation.until_s == math.inf:
                break
            free.give_back(allocation.request, allocation.devices_on(node))
            if free.fits(self._request):
                return allocation.until_s
        return math.inf


class Reservation:
    """The nodes that a blocked job will have at `at_s`."""

    def __init__(self, state: ClusterState, request: Request, nodes: Sequence[int], at_s: float) -> None:
        self.at_s = at_s
        self.nodes = frozenset(nodes)
        self.mask: Mask = np.zeros(len(state.on_node), dtype=np.bool_)
        self.mask[list(nodes)] = True
        self.left_room: dict[Request, dict[int, bool]] = {}
        """What `leaves_room` said, for the scheduler to remember; forgotten where something was taken."""
        self._state, self._request = state, request
        self._then: dict[int, Free] = {}

    @classmethod
    def of(cls, state: ClusterState, request: Request, times: FitTimes, now_s: float) -> Reservation | None:
        """The earliest. None for a job that has room now, or is promised none by the time limits."""
        by_node = times.now()
        n = request.nodes
        if n > len(by_node):
            return None
        first = np.argsort(by_node, kind="stable")[:n].tolist() if n > 1 else [int(by_node.argmin())]
        at_s = float(by_node[first].max())
        return None if math.isinf(at_s) else cls(state, request, first, max(now_s, at_s))

    def leaves_room(self, node: int, request: Request, devices: Sequence[int]) -> bool:
        """Whether a job that outlasts `at_s` may have its part on a reserved node."""
        then = self._free_then(node)
        then.take(request, devices)
        left = then.fits(self._request)
        then.give_back(request, devices)
        return left

    def take(self, node: int, request: Request, devices: Sequence[int]) -> None:
        """A job that outlasts `at_s` starts on a reserved node."""
        self._free_then(node).take(request, devices)
        for seen in self.left_room.values():
            seen.pop(node, None)

    def _free_then(self, node: int) -> Free:
        then = self._then.get(node)
        if then is None:
            then = self._state.free(node)
            for allocation in self._state.on_node[node].values():
                if allocation.until_s <= self.at_s:
                    then.give_back(allocation.request, allocation.devices_on(node))
            self._then[node] = then
        return then
