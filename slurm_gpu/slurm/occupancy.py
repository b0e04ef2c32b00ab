"""Assign jobs to the GPUs of nodes, from slurmctld's nodes and jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.tres import SHARED_GRES, SharesPerGpu, amount

# States in which a job has an allocation.
ALLOCATED_STATES = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED"})
# State words of nodes on which Slurm starts no job. powered_down is not among them: Slurm powers the node up.
_OUT_OF_SERVICE = frozenset(
    {
        "blocked",
        "down",
        "drain",
        "drained",
        "draining",
        "error",
        "fail",
        "failing",
        "future",
        "inval",
        "maint",
    }
    | {
        "not_responding",
        "power_down",
        "powering_down",
        "reboot",
        "reboot_issued",
        "reboot_requested",
        "unknown",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAllocation:
    """The allocation of a job on one node: positions of whole GPUs, and of GPUs shared by shards or MPS."""

    job: QueuedJob
    gpus: Sequence[int]
    shared_gpus: Sequence[int]
    all_shards: bool = False
    """Whether the job has all shards of its GPUs on every node, so that no other job shares these GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAllocations:
    """A node with the jobs on it. A node that is out of service has no free resources."""

    node: SlurmNode
    holders: Sequence[JobAllocation]
    in_service: bool
    gpus_free: int
    """The number of GPUs that are allocated to no job, not even in part."""
    shards_free: int


def occupancy(nodes: Iterable[SlurmNode], jobs: Iterable[QueuedJob]) -> list[NodeAllocations]:
    """Return one entry per node, in the order of the nodes, with its jobs sorted by their expected end."""
    nodes = list(nodes)
    per_gpu = {node.name: node.per_gpu for node in nodes}
    holders: dict[str, list[JobAllocation]] = {}
    for job in jobs:
        if job.state in ALLOCATED_STATES:
            has_all = _shares_none(job, per_gpu)
            for name in job.nodes:
                index = job.gpu_index.get(name, {})
                whole = index.get("gpu", ())
                shared = [position for kind in SHARED_GRES for position in index.get(kind, ())]
                holder = JobAllocation(
                    job=job, gpus=whole, shared_gpus=shared, all_shards=has_all and bool(shared)
                )
                holders.setdefault(name, []).append(holder)
    return [_occupancy(node, holders.get(node.name, [])) for node in nodes]


def out_of_service(node: SlurmNode) -> list[str]:
    """Return the sorted words of a node's state that prevent new jobs; [] if the node accepts jobs."""
    return sorted(_OUT_OF_SERVICE.intersection(node.state.split("+")))


def _occupancy(node: SlurmNode, holders: list[JobAllocation]) -> NodeAllocations:
    in_service = not out_of_service(node)
    shared = {position for holder in holders for position in holder.shared_gpus}
    allocated = sum(node.gpus_allocated.values())
    per_gpu = node.shards_per_gpu
    allocated_shards = node.shards_allocated + (0 if per_gpu is None else allocated * per_gpu)
    return NodeAllocations(
        node=node,
        holders=sorted(holders, key=_expected_end),
        in_service=in_service,
        gpus_free=max(0, node.n_gpus - allocated - len(shared)) if in_service else 0,
        shards_free=max(0, node.shards - allocated_shards) if in_service else 0,
    )


def _shares_none(job: QueuedJob, per_gpu: Mapping[str, SharesPerGpu]) -> bool:
    """Return whether a job's shards or MPS add up to whole GPUs.

    Slurm reports only the total of a job's shards. That total equals the shards of the job's GPUs only if the
    job has all of these shards.
    """
    whole = dict.fromkeys(SHARED_GRES, 0)
    for name, index in job.gpu_index.items():
        for kind in SHARED_GRES:
            n_gpus, of_one = len(index.get(kind, ())), getattr(per_gpu.get(name), kind, None)
            if n_gpus and of_one is None:
                return False
            whole[kind] += n_gpus * (of_one or 0)
    return any(whole.values()) and all(amount(job.tres_allocated, kind) == n for kind, n in whole.items())


def _expected_end(holder: JobAllocation) -> tuple[bool, int, int]:
    end_s = holder.job.end_s  # jobs without an end come last
    return end_s is None, 0 if end_s is None else end_s, holder.job.job_id
