"""What EASY backfill keeps for a blocked job: when it can start at the latest, and on which nodes.

That moment follows from the time limits of what runs. A job from behind may start in the meantime where it is
over by then, or leaves the blocked job its room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.state import Free, Mask, ModelState


class BackfillReservation:
    """The nodes that a blocked job will have at `at_s`."""

    def __init__(
        self, state: ModelState, request: ResourceRequest, nodes: Sequence[int], at_s: float
    ) -> None:
        self.at_s = at_s
        self.nodes = frozenset(nodes)
        self.mask: Mask = np.zeros(len(state.on_node), dtype=np.bool_)
        self.mask[list(nodes)] = True
        self.left_room: dict[ResourceRequest, dict[int, bool]] = {}
        """What `leaves_room` said, for the scheduler to remember; forgotten where something was taken."""
        self._state, self._request = state, request
        self._then: dict[int, Free] = {}

    @classmethod
    def of(
        cls, state: ModelState, request: ResourceRequest, when: NDArray[np.float64], now_s: float
    ) -> BackfillReservation | None:
        """The earliest, by when each node has room; None for a job that has it now, or is promised none."""
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
        """Whether a job that outlasts `at_s` may have its part on a reserved node."""
        then = self._free_then(node)
        then.take(request, devices)
        left = then.fits(self._request)
        then.give_back(request, devices)
        return left

    def take(self, node: int, request: ResourceRequest, devices: Sequence[int]) -> None:
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


def _first_in_one_zone(when: NDArray[np.float64], state: ModelState, n: int) -> list[int]:
    """The n nodes of a zone that have room first; none where no zone has so many nodes."""
    order = np.argsort(when, kind="stable")
    best: list[int] = []
    for zone in range(int(state.zone.max()) + 1):
        nodes = order[state.zone[order] == zone][:n].tolist()
        if len(nodes) == n and (not best or when[nodes[-1]] < when[best[-1]]):
            best = nodes
    return best
