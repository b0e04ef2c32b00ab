"""What a job that preempts could have: the cluster as it would be without those whose places it may take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.simulate.cluster import ModelCluster
from slurm_gpu.simulate.fit_cache import Openings
from slurm_gpu.simulate.preemption import Preemption
from slurm_gpu.simulate.queue import JobShape
from slurm_gpu.simulate.state import Mask, ModelAllocation, ModelState

Victims = frozenset[str]
"""QOS whose jobs may be requeued."""


class Reach:
    """Kept beside the state itself, so that jobs that would preempt in vain cost no look at each node."""

    def __init__(self, cluster: ModelCluster, shapes: Sequence[JobShape], preemption: Preemption) -> None:
        self._shapes = shapes
        self._victims = [
            None if shape.request.one_zone and shape.request.nodes > 1 else preemption.of.get(shape.qos)
            for shape in shapes
        ]
        """None, too, for jobs that wait for one zone: they preempt once they wait for it no more."""
        self._states = {victims: ModelState(cluster) for victims in set(preemption.of.values())}
        self._openings = {victims: Openings(state, shapes) for victims, state in self._states.items()}

    def victims_of(self, shape: int) -> Victims | None:
        """Whom a job of this shape may have requeued."""
        return self._victims[shape]

    def may_fit(self, shape: int) -> bool:
        """Whether it is worth a look which of them would have to go."""
        victims = self._victims[shape]
        return victims is not None and self._openings[victims].may_fit(shape)

    def nodes_for(self, shape: int, room: Mask) -> Mask | None:
        """Where it would fit with all of them gone; None where that is not enough."""
        victims = self._victims[shape]
        assert victims is not None, "somebody asks for a shape that preempts"
        request = self._shapes[shape].request
        fits = self._states[victims].fits(request, room)
        if int(np.count_nonzero(fits)) >= request.nodes:
            return fits
        everywhere = self._states[victims].room(self._shapes[shape].partition, request.gpu_type)
        if np.array_equal(room, everywhere):
            self._openings[victims].close(shape)
        return None

    def look_again(self) -> None:
        """Take into account what was freed."""
        for openings in self._openings.values():
            openings.look_again()

    def start(self, allocation: ModelAllocation, qos: str) -> None:
        """A job of this QOS starts."""
        for victims, state in self._states.items():
            if qos not in victims:
                state.start(
                    allocation.job,
                    allocation.request,
                    allocation.nodes,
                    allocation.devices,
                    allocation.until_s,
                )

    def end(self, job: int, qos: str) -> None:
        """It ends, or is requeued."""
        for victims, state in self._states.items():
            if qos not in victims:
                state.end(job)

    def close(self, node: int) -> None:
        """The node takes no more jobs."""
        for state in self._states.values():
            state.close(node)

    def reopen(self, node: int) -> None:
        """One outage of the node is over."""
        for state in self._states.values():
            state.reopen(node)
