"""Track the recent mix of job requests, which determines which free GPUs are usable.

Each job counts once, when it is first seen as pending or running. The weight of a job decays over time. An
array task is counted when it becomes a job of its own. All data comes from slurmctld. The mix survives
restarts of slurm-gpuctld; after a reboot, it starts with the jobs in the queue.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.controller.queue.amounts import CountingFacts, amounts_of, asked_gpu_types
from slurm_gpu.controller.run_file import write_run_file
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import OutsideError
from slurm_gpu.placement.mix import Mix, coarse
from slurm_gpu.placement.order import NodeKind, NodeOrder
from slurm_gpu.simulate.request import GPU_MGPU, ResourceRequest
from slurm_gpu.slurm.queue import CountedJob

log = logging.getLogger("slurm-gpuctld")

FILE_NAME = "jobmix.json"
# Time after which the weight of a job is halved.
HALF_LIFE_S = 3 * 86400.0
# Maximum number of classes. The classes with the largest weights are kept; a request made once a month is
# dropped.
MOST_CLASSES = 256
# Interval of updates; no job is missed, because slurmctld lists jobs for minutes after their end (MinJobAge).
_UPDATE_EVERY_S = 10.0
_WRITE_EVERY_S = 60.0
_VERSION = 1
_FORGOTTEN = 1e-3
# Share of new jobs after which an order of nodes is rebuilt.
_MOVED = 0.05


class JobMix:
    """The requests per node and their weights."""

    def __init__(
        self, clock: Clock, path: Path | None = None, partitions: Collection[str] | None = None
    ) -> None:
        """Load the mix from `path`; count only jobs in `partitions` if they are given."""
        self._clock, self._path = clock, path
        self._partitions = None if partitions is None else frozenset(partitions)
        self._classes: dict[ResourceRequest, float] = {}
        self._at_s = clock.wall()
        """Time up to which the weights have decayed."""
        self._counted_until_s: float | None = None
        """Submit time until which the previous process counted jobs; None after the first update."""
        self._ids: frozenset[int] = frozenset()
        self._next_update_s = self._next_write_s = 0.0
        self._outage = OutageLog(
            log,
            "the mix of jobs could not be saved: %s; after a restart it starts with the jobs in the queue",
            clock,
            over="the mix of jobs is saved again",
        )
        self.counted = 0.0
        """Total weight ever counted; it changes whenever the mix changes."""
        if path is not None:
            self._read(path)

    @property
    def n_seen(self) -> float:
        """The total weight of jobs; a new job counts 1 for each of its nodes."""
        return sum(self._classes.values())

    def mix(self) -> Mix:
        """Return the mix of requests with their weights."""
        return Mix.of(self._classes.items())

    def update(self, jobs: Sequence[CountedJob], facts: CountingFacts) -> None:
        """Count jobs that appeared since the last update, at most every `_UPDATE_EVERY_S` seconds."""
        now = self._clock.monotonic()
        if now < self._next_update_s:
            return
        self._next_update_s = now + _UPDATE_EVERY_S
        before, self._ids = self._ids, frozenset(job.job_id for job in jobs)
        until_s, self._counted_until_s = self._counted_until_s, None
        fresh = [
            job
            for job in jobs
            if job.job_id not in before
            and (until_s is None or job.submit_s is None or job.submit_s > until_s)
            and self._is_managed(job)
        ]
        if self._count(filter(None, (request_of(job, facts) for job in fresh))) and now >= self._next_write_s:
            self._next_write_s = now + _WRITE_EVERY_S
            self.write()

    def write(self) -> None:
        """Save the mix; log a failure once."""
        if self._path is None or not self.counted:
            return
        try:
            write_run_file(self._path, json.dumps(self._plain()) + "\n")
        except OutsideError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()

    def _is_managed(self, job: CountedJob) -> bool:
        return self._partitions is None or not self._partitions.isdisjoint(job.partition.split(","))

    def _count(self, requests: Iterable[ResourceRequest]) -> bool:
        """Count requests; return whether there were any requests."""
        n = 0
        for request in requests:
            if not n:
                self._age()
            one = coarse(replace(request, nodes=1))
            self._classes[one] = self._classes.get(one, 0.0) + request.nodes
            n += request.nodes
        self.counted += n
        if len(self._classes) > MOST_CLASSES:
            heaviest = sorted(self._classes.items(), key=lambda item: -item[1])[:MOST_CLASSES]
            self._classes = dict(heaviest)
        return n > 0

    def _age(self) -> None:
        """Reduce the weights to their decayed values at the current time."""
        now_s = self._clock.wall()
        part = 0.5 ** (max(0.0, now_s - self._at_s) / HALF_LIFE_S)
        self._at_s = now_s
        aged = {request: times * part for request, times in self._classes.items()}
        self._classes = {request: times for request, times in aged.items() if times >= _FORGOTTEN}

    def _plain(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "at_s": int(self._at_s),
            "classes": [
                {**_fields(request), "times": round(times, 4)} for request, times in self._classes.items()
            ],
        }

    def _read(self, path: Path) -> None:
        """Load the mix if its file exists; log and ignore a damaged file."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain["version"] != _VERSION:
                return
            classes = dict(map(_class_of, plain["classes"][:MOST_CLASSES]))
            at_s = float(int(plain["at_s"]))
        except FileNotFoundError:
            return
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            log.warning(
                "mix of jobs not loaded: %s: %r; rebuilding it from the jobs in the queue", path, error
            )
            return
        self._classes = classes
        self._at_s = min(at_s, self._clock.wall())
        self._counted_until_s = self._at_s
        self.counted = self.n_seen


class MixedOrder:
    """Provides the order of nodes for the current mix; rebuilds it when the mix or the nodes change."""

    def __init__(self, mix: JobMix) -> None:
        self.jobs = mix
        self._order: NodeOrder | None = None
        self._kinds: frozenset[NodeKind] = frozenset()
        self._counted = 0.0

    def of(self, kinds: Mapping[NodeKind, int]) -> NodeOrder | None:
        """Return the order of nodes of these kinds; None before any jobs were seen."""
        if not self.jobs.counted:
            return None
        moved = self.jobs.counted - self._counted > _MOVED * self.jobs.n_seen
        if self._order is None or moved or not self._kinds.issuperset(kinds):
            self._order = NodeOrder(self.jobs.mix(), self.jobs.n_seen, kinds)
            self._kinds, self._counted = frozenset(kinds), self.jobs.counted
        return self._order


def request_of(job: CountedJob, facts: CountingFacts) -> ResourceRequest | None:
    """Return the request of a job or array task on each of its nodes; None if it requests no GPUs."""
    amounts = amounts_of(job, facts)
    if not amounts.mgpu:
        return None
    nodes = max(job.n_nodes, 1)
    mgpu = math.ceil(amounts.mgpu / nodes)
    types = asked_gpu_types(job)
    return ResourceRequest(
        nodes=nodes,
        gpus=math.ceil(mgpu / GPU_MGPU) if mgpu >= GPU_MGPU else 0,
        share_mgpu=mgpu if mgpu < GPU_MGPU else 0,
        cpus=math.ceil(amounts.cpus / nodes),
        memory_mib=math.ceil(amounts.mib / nodes),
        gpu_type=next(iter(types)) if len(types) == 1 else "",
    )


def _fields(request: ResourceRequest) -> dict[str, Any]:
    return {
        "gpus": request.gpus,
        "share_mgpu": request.share_mgpu,
        "cpus": request.cpus,
        "memory_mib": request.memory_mib,
        "gpu_type": request.gpu_type,
    }


def _class_of(plain: Mapping[str, Any]) -> tuple[ResourceRequest, float]:
    times = float(plain["times"])
    if not 0 < times < math.inf:
        raise ValueError(f"invalid count of a class: {times}")
    return ResourceRequest(
        gpus=int(plain["gpus"]),
        share_mgpu=int(plain["share_mgpu"]),
        cpus=int(plain["cpus"]),
        memory_mib=int(plain["memory_mib"]),
        gpu_type=str(plain["gpu_type"]),
    ), times
