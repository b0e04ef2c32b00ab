"""Find where a preempting job would fit if the jobs that it may replace were removed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_gpu.simulate.cluster import ModelCluster
from slurm_gpu.simulate.fit_cache import FitCache
from slurm_gpu.simulate.preemption import Preemption
from slurm_gpu.simulate.queue import JobShape
from slurm_gpu.simulate.state import Mask, ModelAllocation, ModelState

# QOS whose jobs may be requeued.
Victims = frozenset[str]


class PreemptionFit:
    """Tracks where preempting jobs may fit, to avoid scanning all nodes for attempts that cannot succeed."""

    def __init__(self, cluster: ModelCluster, shapes: Sequence[JobShape], preemption: Preemption) -> None:
        self._shapes = shapes
        self._victims = [
            None if shape.request.one_zone and shape.request.nodes > 1 else preemption.of.get(shape.qos)
            for shape in shapes
        ]
        """The QOS whose jobs each shape may preempt; None if there are none.

        Multi-node jobs that require one zone can preempt only after the requirement is dropped.
        """
        self._states = {victims: ModelState(cluster) for victims in set(preemption.of.values())}
        self._fit_caches = {victims: FitCache(state, shapes) for victims, state in self._states.items()}

    def victims_of(self, shape: int) -> Victims | None:
        """Return the QOS whose jobs a job of this shape may preempt; None if there are none."""
        return self._victims[shape]

    def may_fit(self, shape: int) -> bool:
        """Return whether a search for jobs to requeue may succeed."""
        victims = self._victims[shape]
        return victims is not None and self._fit_caches[victims].may_fit(shape)

    def nodes_for(self, shape: int, room: Mask) -> Mask | None:
        """Return the nodes on which a job fits without the jobs that it may preempt; None if too few."""
        victims = self._victims[shape]
        assert victims is not None, "called for a shape that does not preempt"
        request = self._shapes[shape].request
        fits = self._states[victims].fits(request, room)
        if int(np.count_nonzero(fits)) >= request.nodes:
            return fits
        everywhere = self._states[victims].room(self._shapes[shape].partition, request.gpu_type)
        if np.array_equal(room, everywhere):
            self._fit_caches[victims].close(shape)
        return None

    def refresh(self) -> None:
        """Allow new attempts for shapes that may fit on freed nodes."""
        for fit_cache in self._fit_caches.values():
            fit_cache.refresh()

    def start(self, allocation: ModelAllocation, qos: str) -> None:
        """Record that a job of this QOS started."""
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
        """Record that a job ended or was requeued."""
        for victims, state in self._states.items():
            if qos not in victims:
                state.end(job)

    def close(self, node: int) -> None:
        """Stop accepting jobs on a node."""
        for state in self._states.values():
            state.close(node)

    def reopen(self, node: int) -> None:
        """End one outage of a node."""
        for state in self._states.values():
            state.reopen(node)
