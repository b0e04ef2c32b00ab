"""One pass over the queue: strict priority, and EASY backfill behind what is blocked."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.jobs import Request
from slurm_gpu.simulate.limits import Limits
from slurm_gpu.simulate.placement import Placement
from slurm_gpu.simulate.preemption import Preemption, victims_for
from slurm_gpu.simulate.queue import Key, Kind, Queue
from slurm_gpu.simulate.reservation import FitTimes, Reservation
from slurm_gpu.simulate.state import ClusterState, Mask

Start = Callable[[int, tuple[int, ...], tuple[tuple[int, ...], ...]], None]
"""Carries out the start of a job on these nodes, with the GPUs of each."""

_FEW = 8
"""Up to so many kinds are looked at one by one."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How the queue is worked off; the defaults look at everything at every event."""

    backfill: bool = True
    backfill_every_s: float = 0.0
    """Slurm's bf_interval is 30; in between only the first of each partition may start. 0: at every event."""
    depth: int | None = None
    """Kinds of jobs that one backfill pass tries to place at most (bf_max_job_test); None: all."""


@dataclass
class Scheduler:
    """Starts what can start. Knows the moment only by what it is told."""

    state: ClusterState
    queue: Queue
    limits: Limits
    placement: Placement
    preemption: Preemption
    qos_of: Callable[[int], str]
    start: Start
    requeue: Callable[[int], None]
    ran_s: Callable[[int], float]
    """How long a running job has run."""
    _failed: dict[int, int] = field(default_factory=dict)
    """Kind → `released` of the state when it had no room: until that grows, it has none."""
    _times: dict[tuple[int, Request], FitTimes] = field(default_factory=dict)

    def strict_pass(self, now_s: float) -> None:
        """Start the first of each partition, again and again, until it is blocked.

        What comes after a blocked job keeps off the nodes of that job's partition.
        """
        to_do = list(range(len(self.state.cluster.partitions)))
        kept: Mask | None = None
        while to_do:
            heads = [(head, p) for p in to_do if (head := self.queue.head_of_partition(p)) is not None]
            if not heads:
                return
            (_, job), partition = min(heads)
            kind = self.queue.kind_of(job)
            if self._park(job, kind, now_s) or self._try(job, kind, now_s, kept, ()):
                continue
            to_do.remove(partition)
            room = self.state.room(partition, "")
            kept = room if kept is None else kept | room

    def backfill_pass(self, now_s: float, depth: int | None = None) -> None:
        """All kinds in the order of priority; who is blocked first in a partition gets a reservation."""
        heads = self.queue.heads()
        possible = self._possible([kind for _, kind in heads])
        reserved: dict[int, Reservation] = {}
        tried = 0
        while heads:
            (_, job), index = heapq.heappop(heads)
            kind = self.queue.kinds[index]
            has_reservation = kind.partition in reserved
            try_it = index in possible or kind.qos in self.preemption.of
            if not try_it and has_reservation:
                continue
            if self._park(job, index, now_s):
                self._push_next(heads, index)
                continue
            if try_it:
                if depth is not None and tried >= depth:
                    return
                tried += 1
                if self._try(job, index, now_s, None, tuple(reserved.values())):
                    self._push_next(heads, index)
                    continue
            if not has_reservation:
                reservation = self._reserve(kind, now_s)
                if reservation is not None:
                    reserved[kind.partition] = reservation

    def _push_next(self, heads: list[tuple[Key, int]], kind: int) -> None:
        head = self.queue.head_of_kind(kind)
        if head is not None:
            heapq.heappush(heads, (head, kind))

    def _park(self, job: int, kind: int, now_s: float) -> bool:
        """Whether a limit hinders it; its line then waits for that limit."""
        counters = self.queue.counters_of(job)
        if not counters:
            return False
        hindered = self.limits.hindered_by(counters, self.queue.amounts(kind))
        if hindered is None:
            return False
        self.queue.park(job, hindered, now_s)
        return True

    def _possible(self, kinds: Sequence[int]) -> frozenset[int]:
        """Those that have room somewhere, whatever is reserved: one look at all of them."""
        state = self.state
        fresh = [kind for kind in kinds if self._failed.get(kind) != state.released]
        if len(fresh) <= _FEW:
            return frozenset(fresh)
        some = np.flatnonzero(state.open & (state.free_cpus > 0))
        requests = [self.queue.kinds[kind].request for kind in fresh]
        rooms = [
            state.room(self.queue.kinds[kind].partition, request.gpu_type)[some]
            for kind, request in zip(fresh, requests, strict=True)
        ]
        fits = np.stack(rooms)
        fits &= _column(one.cpus for one in requests) <= state.free_cpus[some]
        fits &= _column(one.gpus for one in requests) <= state.free_gpus[some]
        fits &= _column(one.share_mgpu for one in requests) <= state.largest_mgpu[some]
        fits &= _column(one.memory_mib for one in requests) <= state.free_memory_mib[some]
        enough = fits.sum(axis=1) >= np.array([one.nodes for one in requests])
        found = []
        for kind, fit in zip(fresh, enough.tolist(), strict=True):
            if fit:
                found.append(kind)
            else:
                self._failed[kind] = state.released
        return frozenset(found)

    def _try(
        self, job: int, index: int, now_s: float, kept: Mask | None, ahead: Sequence[Reservation]
    ) -> bool:
        """Start a job if it has room that is kept for nobody; else, if it may, by preemption."""
        state, kind = self.state, self.queue.kinds[index]
        request, room = kind.request, state.room(kind.partition, kind.request.gpu_type)
        outlasted = [one for one in ahead if now_s + kind.limit_s > one.at_s]
        if self._failed.get(index) != state.released:
            fit = state.fits(request, room)
            if int(np.count_nonzero(fit)) < request.nodes:
                self._failed[index] = state.released
            else:
                if kept is not None:
                    fit &= ~kept
                for reservation in outlasted:
                    self._keep_off(fit, request, reservation)
                if self._place(job, request, fit, outlasted):
                    return True
        victims = self.preemption.of.get(kind.qos)
        if victims is None:
            return False
        for mask in (kept, *(one.mask for one in outlasted)):
            if mask is not None:
                room = room & ~mask
        return self._preempt(job, request, room, victims)

    def _place(self, job: int, request: Request, fit: Mask, outlasted: Sequence[Reservation]) -> bool:
        fitting = np.flatnonzero(fit)
        if len(fitting) < request.nodes:
            return False
        nodes = tuple(int(node) for node in self.placement.choose(self.state, request, fitting))
        if not nodes:
            return False
        devices = tuple(self.placement.devices(self.state, node, request) for node in nodes)
        parts = [
            (reservation, node, indices)
            for reservation in outlasted
            for node, indices in zip(nodes, devices, strict=True)
            if node in reservation.nodes
        ]
        # `_keep_off` may have looked before another job took a part of the same node in this pass.
        if not all(one.leaves_room(node, request, indices) for one, node, indices in parts):
            return False
        for reservation, node, indices in parts:
            reservation.take(node, request, indices)
        self.start(job, nodes, devices)
        return True

    def _keep_off(self, fit: Mask, request: Request, reservation: Reservation) -> None:
        """Take out the reserved nodes on which a job that outlasts the reservation would be in the way."""
        seen = reservation.left_room.setdefault(request, {})
        for node in np.flatnonzero(fit & reservation.mask).tolist():
            left = seen.get(node)
            if left is None:
                devices = self.placement.devices(self.state, node, request)
                left = seen[node] = reservation.leaves_room(node, request, devices)
            if not left:
                fit[node] = False

    def _preempt(self, job: int, request: Request, room: Mask, victims: frozenset[str]) -> bool:
        found = victims_for(
            self.state, request, room, lambda other: self.qos_of(other) in victims, self.ran_s
        )
        if found is None:
            return False
        nodes, jobs = found
        for victim in jobs:
            self.requeue(victim)
        self.start(job, nodes, tuple(self.placement.devices(self.state, node, request) for node in nodes))
        return True

    def _reserve(self, kind: Kind, now_s: float) -> Reservation | None:
        state, request = self.state, kind.request
        key = (kind.partition, request)
        times = self._times.get(key)
        if times is None:
            room = state.room(kind.partition, request.gpu_type)
            times = self._times[key] = FitTimes(state, request, room)
        return Reservation.of(state, request, times, now_s)


def _column(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), dtype=np.int64)[:, np.newaxis]
