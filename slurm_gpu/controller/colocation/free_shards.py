"""Track the free shards and the jobs on each GPU, and find requests that make Slurm choose a given GPU.

Slurm accepts no request for a particular GPU: a job with shards gets the node's first GPU that has enough
free shards (docs/colocation.md). The node, the number of shards and the start time of a job therefore
determine its GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.occupancy import ALLOCATED_STATES, out_of_service
from slurm_gpu.slurm.tres import amount, uses_gpus


class GpuPlace(NamedTuple):
    """A GPU, identified by its node and its position on that node."""

    node: str
    position: int


class SharersOnGpu(NamedTuple):
    """The shards that a job has on one GPU."""

    place: GpuPlace
    shards: int


@dataclass(slots=True)
class CorunGpu:
    """A GPU on a node that accepts jobs."""

    place: GpuPlace
    free: int
    """Free shards."""
    sharers: list[int] = field(default_factory=list)
    """IDs of the GPU's jobs that agreed to share, in order of arrival."""
    is_others: bool = False
    """Whether a job that did not agree to share uses the GPU."""


@dataclass(slots=True)
class SharedNode:
    """A node and its free resources for jobs that share GPUs."""

    node: SlurmNode
    gpus: list[CorunGpu]
    cpus: int
    """Free CPUs."""
    memory_mib: int

    def size_for(self, position: int, least: int, leave: int | None = None) -> int | None:
        """Return the number of shards that a job must request to get this GPU; None if no number works.

        The job needs at least `least` shards. If no other job should join, `leave` is the maximum number of
        shards that may stay free. More free shards would attract jobs that should go to a later GPU.
        """
        free = self.gpus[position].free
        before = max((gpu.free for gpu in self.gpus[:position]), default=0)
        size = max(least, before + 1, 0 if leave is None else free - leave)
        return size if size <= free else None

    def take(self, position: int, job_id: int, shards: int, cpus: int, memory_mib: int) -> None:
        """Count a job that is about to start on a GPU; do nothing if the GPU no longer exists."""
        if position >= len(self.gpus):
            return
        gpu = self.gpus[position]
        gpu.free -= shards
        gpu.sharers.append(job_id)
        self.cpus -= cpus
        self.memory_mib -= memory_mib


def shares_of(job: QueuedJob, of: int) -> list[SharersOnGpu]:
    """Return the shards that a job has on each GPU; [] if Slurm does not report its GPUs."""
    found = []
    for node, index in job.gpu_index.items():
        found += [SharersOnGpu(GpuPlace(node, position), of) for position in index.get("gpu", ())]
        found += [SharersOnGpu(GpuPlace(node, position), of) for position in index.get("mps", ())]
        shared = index.get("shard", ())
        each = int(amount(job.tres_allocated, "shard")) if len(shared) == 1 and len(job.nodes) == 1 else of
        found += [SharersOnGpu(GpuPlace(node, position), each) for position in shared]
    return found


def rooms(
    nodes: Iterable[SlurmNode],
    jobs: Sequence[QueuedJob],
    sharers: Iterable[int],
    known: Mapping[int, Sequence[SharersOnGpu]],
) -> dict[str, SharedNode]:
    """Return the nodes that have shards and accept jobs, by name.

    `known` contains the last known shards of each job. Slurm does not report the GPUs of a completing job,
    although its shards are not free yet. Nodes are left out if the shards of a job are unknown, or if a job
    runs on a GPU that no longer exists.
    """
    found: dict[str, SharedNode] = {}
    for node in nodes:
        of = node.shards_per_gpu
        if of is None or out_of_service(node):
            continue
        gpus = [CorunGpu(GpuPlace(node.name, position), of) for position in range(node.n_gpus)]
        found[node.name] = SharedNode(
            node, gpus, node.cpus - node.cpus_allocated, node.memory_mib - node.memory_allocated_mib
        )
    ours = frozenset(sharers)
    for job in sorted(jobs, key=lambda one: (one.start_s or 0, one.job_id)):
        if job.state not in ALLOCATED_STATES:
            continue
        for name in job.nodes:
            room = found.get(name)
            if room is None:
                continue
            shares = [one for one in _shares_on(job, room, known) if one.place.node == name]
            # A job may continue on a GPU that was removed from Slurm's configuration.
            strange = any(one.place.position >= len(room.gpus) for one in shares)
            if strange or (not shares and has_gpus(job)):
                del found[name]
                continue
            for one in shares:
                _count(room.gpus[one.place.position], job.job_id, one.shards, is_ours=job.job_id in ours)
    return found


def _shares_on(
    job: QueuedJob, room: SharedNode, known: Mapping[int, Sequence[SharersOnGpu]]
) -> Sequence[SharersOnGpu]:
    of = room.node.shards_per_gpu
    return shares_of(job, of or 0) or known.get(job.job_id, ())


def has_gpus(job: QueuedJob) -> bool:
    """Return whether GPUs or parts of GPUs are allocated to a job."""
    return uses_gpus(job.tres_allocated) or any(job.gpu_index.values())


def _count(gpu: CorunGpu, job_id: int, shards: int, *, is_ours: bool) -> None:
    gpu.free = max(0, gpu.free - shards)
    if is_ours:
        gpu.sharers.append(job_id)
    else:
        gpu.is_others = True
