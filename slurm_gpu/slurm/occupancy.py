"""Who sits on which GPU of which node, from slurmctld's nodes and jobs: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.slurm.client import QueuedJob, SlurmNode

HOLDING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED"})
"""States of a job that has something of its nodes."""
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
"""Words of a node's state with which Slurm starts no job there; it powers up a powered_down one by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job's part of one node: positions of whole GPUs, and of GPUs that it has shards of."""

    job: QueuedJob
    gpus: Sequence[int]
    shared_gpus: Sequence[int]
    all_shards: bool = False
    """Whether it has all shards of these GPUs, on each of its nodes, so that it shares them with nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """A node with its holders; what is free counts only where the node takes jobs."""

    node: SlurmNode
    holders: Sequence[Holder]
    in_service: bool
    gpus_free: int
    """Whole GPUs that no job holds and no job has a shard of."""
    shards_free: int


def occupancy(nodes: Iterable[SlurmNode], jobs: Iterable[QueuedJob]) -> list[Occupancy]:
    """One entry per node, in their order; holders by when they are expected to leave."""
    nodes = list(nodes)
    per_gpu = {node.name: node.shards_per_gpu for node in nodes}
    holders: dict[str, list[Holder]] = {}
    for job in jobs:
        if job.state in HOLDING:
            has_all = _has_all_shards(job, per_gpu)
            for name in job.nodes:
                index = job.gpu_index.get(name, {})
                whole, shared = index.get("gpu", ()), index.get("shard", ())
                holder = Holder(job=job, gpus=whole, shared_gpus=shared, all_shards=has_all and bool(shared))
                holders.setdefault(name, []).append(holder)
    return [_occupancy(node, holders.get(node.name, [])) for node in nodes]


def out_of_service(node: SlurmNode) -> list[str]:
    """The words of its state with which Slurm starts no job there, sorted; none where it takes jobs."""
    return sorted(_OUT_OF_SERVICE.intersection(node.state.split("+")))


def _occupancy(node: SlurmNode, holders: list[Holder]) -> Occupancy:
    in_service = not out_of_service(node)
    shared = {position for holder in holders for position in holder.shared_gpus}
    held = sum(node.gpus_allocated.values())
    per_gpu = node.shards_per_gpu
    held_shards = node.shards_allocated + (0 if per_gpu is None else held * per_gpu)
    return Occupancy(
        node=node,
        holders=sorted(holders, key=_leaves),
        in_service=in_service,
        gpus_free=max(0, node.n_gpus - held - len(shared)) if in_service else 0,
        shards_free=max(0, node.shards - held_shards) if in_service else 0,
    )


def _has_all_shards(job: QueuedJob, per_gpu: Mapping[str, int | None]) -> bool:
    """Slurm tells a job's shards in all, and no job has more of a GPU than there are."""
    most = 0
    for name, index in job.gpu_index.items():
        shards = per_gpu.get(name)
        if index.get("shard") and shards is None:
            return False
        most += len(index.get("shard", ())) * (0 if shards is None else shards)
    return most > 0 and job.tres_allocated.get("gres/shard") == most


def _leaves(holder: Holder) -> tuple[bool, int, int]:
    """Jobs without an end come last."""
    end_s = holder.job.end_s
    return end_s is None, 0 if end_s is None else end_s, holder.job.job_id
