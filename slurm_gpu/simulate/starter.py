"""Starts one job, if its limits and what is free let it, where it is in nobody's way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from slurm_gpu.simulate.fit_cache import Openings
from slurm_gpu.simulate.jobs import ResourceRequest
from slurm_gpu.simulate.limits import LimitCounters
from slurm_gpu.simulate.placement import PlacementChoice
from slurm_gpu.simulate.preemption import victims_for
from slurm_gpu.simulate.preemption_fit import Reach
from slurm_gpu.simulate.queue import ModelQueue
from slurm_gpu.simulate.reservation import BackfillReservation
from slurm_gpu.simulate.state import Mask, ModelState

Start = Callable[[int, tuple[int, ...], tuple[tuple[int, ...], ...]], None]
"""Carries out the start of a job on these nodes, with the GPUs of each."""


class Tried(Enum):
    """What came of an attempt to start a job."""

    STARTED = "started"
    NO_ROOM = "no room"
    """Nor for any job that needs more, for as long."""
    NOT_PLACED = "not placed"
    """The placement lets it wait, though it would have room."""


@dataclass
class Starter:
    """Knows the moment only by what it is told."""

    state: ModelState
    queue: ModelQueue
    limits: LimitCounters
    placement: PlacementChoice
    reach: Reach
    qos_of: Callable[[int], str]
    start: Start
    requeue: Callable[[int], None]
    ran_s: Callable[[int], float]
    """How long a running job has run."""

    def __post_init__(self) -> None:
        self._openings = Openings(self.state, self.queue.shapes)

    def look_again(self) -> None:
        """Take into account what was freed since the last time: for the beginning of a pass."""
        self._openings.look_again()
        self.reach.look_again()

    def park(self, job: int, now_s: float) -> bool:
        """Whether a limit hinders it; its line then waits for that limit."""
        counters = self.queue.counters_of(job)
        if not counters:
            return False
        hindered = self.limits.hindered_by(counters, self.queue.amounts_of(job))
        if hindered is None:
            return False
        self.queue.park(job, hindered, now_s)
        return True

    def is_hopeful(self, shape: int) -> bool:
        """Whether a job of this shape may find room, or make some."""
        return self._openings.may_fit(shape) or self.reach.may_fit(shape)

    def try_to_start(
        self, job: int, now_s: float, kept: Mask | None, ahead: Collection[BackfillReservation]
    ) -> Tried:
        """Start a job if it has room that is kept for nobody; else, if it may, by preemption.

        `kept`: nodes that it has to keep off; `ahead`: what was promised to those before it.
        """
        kind = self.queue.kinds[self.queue.kind_of(job)]
        if not self.is_hopeful(kind.shape):
            return Tried.NO_ROOM
        shape = self.queue.shapes[kind.shape]
        request, room = shape.request, self.state.room(shape.partition, shape.request.gpu_type)
        outlasted = [one for one in ahead if now_s + kind.limit_s > one.at_s]
        tried = Tried.NO_ROOM
        if self._openings.may_fit(kind.shape):
            fit = self.state.together(request, self.state.fits(request, room))
            if int(np.count_nonzero(fit)) < request.nodes:
                self._openings.close(kind.shape)
            else:
                if kept is not None:
                    fit &= ~kept
                for reservation in outlasted:
                    self._keep_off(fit, request, reservation)
                tried = self._place(job, request, fit, outlasted)
        if tried is Tried.STARTED or not self.reach.may_fit(kind.shape):
            return tried
        for mask in (kept, *(one.mask for one in outlasted)):
            if mask is not None:
                room = room & ~mask
        return Tried.STARTED if self._preempt(job, kind.shape, room) else tried

    def _place(
        self, job: int, request: ResourceRequest, fit: Mask, outlasted: Sequence[BackfillReservation]
    ) -> Tried:
        fitting = np.flatnonzero(self.state.together(request, fit))
        if len(fitting) < request.nodes:
            return Tried.NO_ROOM
        nodes = tuple(int(node) for node in self.placement.choose(self.state, request, fitting))
        if not nodes:
            return Tried.NOT_PLACED
        devices = tuple(self.placement.devices(self.state, node, request) for node in nodes)
        parts = [
            (reservation, node, indices)
            for reservation in outlasted
            for node, indices in zip(nodes, devices, strict=True)
            if node in reservation.nodes
        ]
        # `_keep_off` may have looked before another job took a part of the same node in this pass.
        if not all(one.leaves_room(node, request, indices) for one, node, indices in parts):
            return Tried.NOT_PLACED
        for reservation, node, indices in parts:
            reservation.take(node, request, indices)
        self.start(job, nodes, devices)
        return Tried.STARTED

    def _keep_off(self, fit: Mask, request: ResourceRequest, reservation: BackfillReservation) -> None:
        """Take out the reserved nodes on which a job that outlasts the reservation would be in the way."""
        seen = reservation.left_room.setdefault(request, {})
        for node in np.flatnonzero(fit & reservation.mask).tolist():
            left = seen.get(node)
            if left is None:
                devices = self.placement.devices(self.state, node, request)
                left = seen[node] = reservation.leaves_room(node, request, devices)
            if not left:
                fit[node] = False

    def _preempt(self, job: int, shape: int, room: Mask) -> bool:
        request, victims = self.queue.shapes[shape].request, self.reach.victims_of(shape)
        nodes_in_reach = self.reach.nodes_for(shape, room)
        if victims is None or nodes_in_reach is None:
            return False
        found = victims_for(
            self.state, request, nodes_in_reach, lambda other: self.qos_of(other) in victims, self.ran_s
        )
        if found is None:
            return False
        nodes, jobs = found
        for victim in jobs:
            self.requeue(victim)
        self.start(job, nodes, tuple(self.placement.devices(self.state, node, request) for node in nodes))
        return True
