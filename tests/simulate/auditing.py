"""Replay a model's log independently and check its invariants at each moment.

The audit does not use the model's state, queue or reservations, and is as simple as possible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from slurm_gpu.simulate.cluster import ModelCluster
from slurm_gpu.simulate.jobs import ModelJob, ResourceRequest
from slurm_gpu.simulate.limits import LimitCounter, Resource
from slurm_gpu.simulate.outcome import JobTransition, ModelEvent

Room = list[tuple[list[int], int, int]]
"""For each node, free mgpu of each GPU, CPUs, MiB."""


class LogAudit:
    """The running and waiting jobs at a moment of the log."""

    def __init__(
        self, cluster: ModelCluster, jobs: Sequence[ModelJob], counters: Sequence[LimitCounter]
    ) -> None:
        self.cluster, self.jobs, self.counters = cluster, jobs, counters
        self.waiting: set[int] = set()
        self.running: dict[int, ModelEvent] = {}

    def take_in(self, event: ModelEvent) -> None:
        """Apply one event of the log."""
        if event.what in (JobTransition.SUBMIT, JobTransition.REQUEUE):
            self.running.pop(event.job, None)
            self.waiting.add(event.job)
        elif event.what is JobTransition.START:
            self.waiting.remove(event.job)
            self.running[event.job] = event
        elif event.what is JobTransition.END:
            del self.running[event.job]
        else:
            self.waiting.remove(event.job)

    def room(self, at_s: float = -math.inf) -> Room:
        """Return the resources free now, or at a later moment if every job runs to its time limit."""
        room = [([1000] * node.gpus, node.cpus, node.memory_mib) for node in self.cluster.nodes]
        for job, event in self.running.items():
            if event.at_s + self.jobs[job].limit_s > at_s:
                room = without(room, self.jobs[job].request, event)
        return room

    def order(self) -> list[int]:
        """Return the waiting jobs in order, except those that their limits delay."""
        return [
            job
            for job in sorted(self.waiting, key=lambda one: (-self.jobs[one].priority, one))
            if not self.over_limit([job])
        ]

    def over_limit(self, more: Sequence[int] = ()) -> bool:
        """Return whether the running jobs and `more` exceed a limit.

        If `more` is not empty, only the limits of its first job are checked.
        """
        relevant = self.jobs[more[0]].counters if more else range(len(self.counters))
        for counter in relevant:
            mine = [job for job in (*self.running, *more) if counter in self.jobs[job].counters]
            for resource, cap in self.counters[counter].caps.items():
                if sum(amount(self.jobs[job].request, resource) for job in mine) > cap:
                    return True
        return False

    def nodes_of(self, job: int) -> list[int]:
        """Return the nodes on which a job may run."""
        gpu_type = self.jobs[job].request.gpu_type
        nodes = self.cluster.partitions[self.jobs[job].partition].nodes
        return [node for node in nodes if gpu_type in ("", self.cluster.nodes[node].gpu_type)]

    def fits(self, job: int, room: Room) -> bool:
        """Return whether a job fits, in one zone if the job requires one."""
        request = self.jobs[job].request
        fitting = [node for node in self.nodes_of(job) if node_fits(request, room[node])]
        if request.one_zone:
            zones = [self.cluster.nodes[node].zone for node in fitting]
            return any(zones.count(zone) >= request.nodes for zone in zones)
        return len(fitting) >= request.nodes

    def latest_start(self, job: int, now_s: float) -> float:
        """Return the latest start of the job if it is first, given the running jobs' time limits."""
        ends = sorted({event.at_s + self.jobs[one].limit_s for one, event in self.running.items()})
        return next((at for at in (now_s, *ends) if self.fits(job, self.room(at))), math.inf)


def without(room: Room, request: ResourceRequest, event: ModelEvent) -> Room:
    """Subtract the allocation of one job."""
    room = [(list(devices), cpus, mib) for devices, cpus, mib in room]
    for node, indices in zip(event.nodes, event.devices, strict=True):
        devices, cpus, mib = room[node]
        for index in indices:
            devices[index] -= request.share_mgpu or 1000
        room[node] = devices, cpus - request.cpus, mib - request.memory_mib
    return room


def node_fits(request: ResourceRequest, free: tuple[list[int], int, int]) -> bool:
    devices, cpus, mib = free
    gpus = sum(mgpu == 1000 for mgpu in devices) >= request.gpus
    share = max(devices, default=0) >= request.share_mgpu
    return gpus and share and cpus >= request.cpus and mib >= request.memory_mib


def amount(request: ResourceRequest, resource: Resource) -> int:
    return {
        Resource.MGPU: request.nodes * (1000 * request.gpus + request.share_mgpu),
        Resource.JOBS: 1,
        Resource.CPUS: request.nodes * request.cpus,
        Resource.MEMORY_MIB: request.nodes * request.memory_mib,
        Resource.NODES: request.nodes,
    }[resource]


def moments(log: Sequence[ModelEvent]) -> Iterator[tuple[float, list[ModelEvent]]]:
    """Group the events of the log by moment."""
    for at_s, events in itertools.groupby(log, key=lambda event: event.at_s):
        yield at_s, list(events)
