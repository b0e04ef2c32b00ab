"""Start a job if its limits and the free resources allow this and no reservation would be delayed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from slurm_gpu.simulate.fit_cache import FitCache
from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.limits import LimitCounters
from slurm_gpu.simulate.placement import PlacementChoice
from slurm_gpu.simulate.preemption import victims_for
from slurm_gpu.simulate.preemption_fit import PreemptionFit
from slurm_gpu.simulate.queue import ModelQueue
from slurm_gpu.simulate.reservation import BackfillReservation
from slurm_gpu.simulate.state import Mask, ModelState

# Starts a job on these nodes, with these GPUs of each node.
Start = Callable[[int, tuple[int, ...], tuple[tuple[int, ...], ...]], None]


class StartResult(Enum):
    """The result of an attempt to start a job."""

    STARTED = "started"
    NO_ROOM = "no room"
    """There is no room now for this job, or for any job that needs at least as much for at least as long."""
    NOT_PLACED = "not placed"
    """The request fits, but the placement makes it wait."""


@dataclass
class Starter:
    """Starts jobs; the caller passes the current time."""

    state: ModelState
    queue: ModelQueue
    limits: LimitCounters
    placement: PlacementChoice
    preemption_fit: PreemptionFit
    qos_of: Callable[[int], str]
    start: Start
    requeue: Callable[[int], None]
    ran_s: Callable[[int], float]
    """Returns the run time of a running job."""

    def __post_init__(self) -> None:
        self._fit_cache = FitCache(self.state, self.queue.shapes)

    def refresh(self) -> None:
        """Allow new attempts for shapes that may fit on nodes freed since the last pass."""
        self._fit_cache.refresh()
        self.preemption_fit.refresh()

    def park(self, job: int, now_s: float) -> bool:
        """Park the line of a job if a limit delays the job; return whether it was parked."""
        counters = self.queue.counters_of(job)
        if not counters:
            return False
        limiting = self.limits.limited_by(counters, self.queue.amounts_of(job))
        if limiting is None:
            return False
        self.queue.park(job, limiting, now_s)
        return True

    def may_start(self, shape: int) -> bool:
        """Return whether a job of this shape may fit, possibly by preemption."""
        return self._fit_cache.may_fit(shape) or self.preemption_fit.may_fit(shape)

    def try_to_start(
        self, job: int, now_s: float, kept: Mask | None, ahead: Collection[BackfillReservation]
    ) -> StartResult:
        """Start a job if there is room outside reservations, otherwise by preemption if the job may preempt.

        The job must not use the nodes in `kept`. `ahead` contains the reservations of the jobs before it.
        """
        kind = self.queue.kinds[self.queue.kind_of(job)]
        if not self.may_start(kind.shape):
            return StartResult.NO_ROOM
        shape = self.queue.shapes[kind.shape]
        request, room = shape.request, self.state.room(shape.partition, shape.request.gpu_type)
        outlasted = [one for one in ahead if now_s + kind.limit_s > one.at_s]
        tried = StartResult.NO_ROOM
        if self._fit_cache.may_fit(kind.shape):
            fit = self.state.together(request, self.state.fits(request, room))
            if int(np.count_nonzero(fit)) < request.nodes:
                self._fit_cache.close(kind.shape)
            else:
                if kept is not None:
                    fit &= ~kept
                for reservation in outlasted:
                    self._keep_off(fit, request, reservation)
                tried = self._place(job, request, fit, outlasted)
        if tried is StartResult.STARTED or not self.preemption_fit.may_fit(kind.shape):
            return tried
        for mask in (kept, *(one.mask for one in outlasted)):
            if mask is not None:
                room = room & ~mask
        return StartResult.STARTED if self._preempt(job, kind.shape, room) else tried

    def _place(
        self, job: int, request: ResourceRequest, fit: Mask, outlasted: Sequence[BackfillReservation]
    ) -> StartResult:
        fitting = np.flatnonzero(self.state.together(request, fit))
        if len(fitting) < request.nodes:
            return StartResult.NO_ROOM
        nodes = tuple(int(node) for node in self.placement.choose(self.state, request, fitting))
        if not nodes:
            return StartResult.NOT_PLACED
        devices = tuple(self.placement.devices(self.state, node, request) for node in nodes)
        parts = [
            (reservation, node, indices)
            for reservation in outlasted
            for node, indices in zip(nodes, devices, strict=True)
            if node in reservation.nodes
        ]
        # `_keep_off` may have run before another job used part of the same node in this pass.
        if not all(one.leaves_room(node, request, indices) for one, node, indices in parts):
            return StartResult.NOT_PLACED
        for reservation, node, indices in parts:
            reservation.take(node, request, indices)
        self.start(job, nodes, devices)
        return StartResult.STARTED

    def _keep_off(self, fit: Mask, request: ResourceRequest, reservation: BackfillReservation) -> None:
        """Remove the reserved nodes on which the job would delay the reservation."""
        seen = reservation.left_room.setdefault(request, {})
        for node in np.flatnonzero(fit & reservation.mask).tolist():
            left = seen.get(node)
            if left is None:
                devices = self.placement.devices(self.state, node, request)
                left = seen[node] = reservation.leaves_room(node, request, devices)
            if not left:
                fit[node] = False

    def _preempt(self, job: int, shape: int, room: Mask) -> bool:
        request, victims = self.queue.shapes[shape].request, self.preemption_fit.victims_of(shape)
        reachable = self.preemption_fit.nodes_for(shape, room)
        if victims is None or reachable is None:
            return False
        found = victims_for(
            self.state, request, reachable, lambda other: self.qos_of(other) in victims, self.ran_s
        )
        if found is None:
            return False
        nodes, jobs = found
        for victim in jobs:
            self.requeue(victim)
        self.start(job, nodes, tuple(self.placement.devices(self.state, node, request) for node in nodes))
        return True
