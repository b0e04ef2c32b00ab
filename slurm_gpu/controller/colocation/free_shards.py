"""Which GPU has how many shards left, who is there, and how to get a job onto a certain one.

Stock Slurm takes no request for a GPU by its position: a job of some shards gets the first of the node that
has them left (docs/colocation.md). So where a job lands is steered by its node, its size and its moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.occupancy import ALLOCATED_STATES, out_of_service
from slurm_gpu.slurm.tres import amount, uses_gpus


class GpuPlace(NamedTuple):
    """One GPU."""

    node: str
    position: int


class SharersOnGpu(NamedTuple):
    """What a job has of one GPU."""

    place: GpuPlace
    shards: int


@dataclass(slots=True)
class CorunGpu:
    """One GPU of a node that takes jobs."""

    place: GpuPlace
    free: int
    """Shards."""
    sharers: list[int] = field(default_factory=list)
    """Jobs that agreed to share, in the order in which they came."""
    is_others: bool = False
    """Whether anybody is there of whom nobody knows what he does."""


@dataclass(slots=True)
class SharedNode:
    """A node, as far as jobs that share are concerned."""

    node: SlurmNode
    gpus: list[CorunGpu]
    cpus: int
    """Free."""
    memory_mib: int

    def size_for(self, position: int, least: int, leave: int | None = None) -> int | None:
        """Shards that bring a job of `least` or more onto this GPU; None where nothing does.

        `leave`: so many at most are to be left there, as nobody is to come any more, and what is left would
        draw in jobs that are to go to a GPU behind it.
        """
        free = self.gpus[position].free
        before = max((gpu.free for gpu in self.gpus[:position]), default=0)
        size = max(least, before + 1, 0 if leave is None else free - leave)
        return size if size <= free else None

    def take(self, position: int, job_id: int, shards: int, cpus: int, memory_mib: int) -> None:
        """Count a job there that is about to start, if the GPU is still there."""
        if position >= len(self.gpus):
            return
        gpu = self.gpus[position]
        gpu.free -= shards
        gpu.sharers.append(job_id)
        self.cpus -= cpus
        self.memory_mib -= memory_mib


def held_by(job: QueuedJob, of: int) -> list[SharersOnGpu]:
    """What a job has of each GPU; [] where Slurm does not tell."""
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
    """The nodes that take jobs and have shards, by name.

    `known` is what jobs were last seen to have: Slurm no longer tells of one that is completing, though its
    shards are not free yet. A node where that is not known either is left out, as is one of which a job has a
    GPU that it no longer has.
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
            held = [one for one in _held(job, room, known) if one.place.node == name]
            # A job may go on on a GPU that was taken out of Slurm's configuration.
            strange = any(one.place.position >= len(room.gpus) for one in held)
            if strange or (not held and has_gpus(job)):
                del found[name]
                continue
            for one in held:
                _count(room.gpus[one.place.position], job.job_id, one.shards, is_ours=job.job_id in ours)
    return found


def _held(
    job: QueuedJob, room: SharedNode, known: Mapping[int, Sequence[SharersOnGpu]]
) -> Sequence[SharersOnGpu]:
    of = room.node.shards_per_gpu
    return held_by(job, of or 0) or known.get(job.job_id, ())


def has_gpus(job: QueuedJob) -> bool:
    """Return whether a job has GPUs or parts of them."""
    return uses_gpus(job.tres_allocated) or any(job.gpu_index.values())


def _count(gpu: CorunGpu, job_id: int, shards: int, *, is_ours: bool) -> None:
    gpu.free = max(0, gpu.free - shards)
    if is_ours:
        gpu.sharers.append(job_id)
    else:
        gpu.is_others = True
