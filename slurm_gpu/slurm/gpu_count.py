"""Count the GPUs of a job in the queue, even if Slurm's accounting does not track them."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.tres import GPU_GRES, SHARED_GRES, SharesPerGpu, count_mgpu, parse_gres, uses_gpus


def per_gpu_of(nodes: Iterable[SlurmNode | None]) -> SharesPerGpu:
    """Return the numbers of shards and MPS per GPU; unknown if the nodes differ or one of them is None."""
    known = {SharesPerGpu() if node is None else node.per_gpu for node in nodes}
    return known.pop() if len(known) == 1 else SharesPerGpu()


def agreed_per_gpu(nodes: Iterable[SlurmNode]) -> SharesPerGpu:
    """Return the numbers of shards and MPS per GPU; a number is unknown if nodes with that GRES differ."""
    some = [node.per_gpu for node in nodes]
    shards, mps = {one.shard for one in some if one.shard}, {one.mps for one in some if one.mps}
    return SharesPerGpu(*(next(iter(sizes)) if len(sizes) == 1 else None for sizes in (shards, mps)))


def most_per_gpu(nodes: Iterable[SlurmNode]) -> SharesPerGpu:
    """Return the largest numbers of shards and MPS per GPU on any of these nodes."""
    some = [node.per_gpu for node in nodes]
    shard = max((one.shard for one in some if one.shard), default=None)
    return SharesPerGpu(shard, max((one.mps for one in some if one.mps), default=None))


def job_mgpu(job: QueuedJob, per_gpu: SharesPerGpu) -> int | None:
    """Return the GPUs that are allocated to a job or that it requests, in thousandths; None if unknown.

    If AccountingStorageTRES does not contain GPUs, the TRES of jobs lack them, too. In this case, the
    allocated positions are counted or, for a pending job, the GPUs that it requests per node or per job.
    """
    tres = job.tres_requested if not job.nodes or uses_gpus(job.tres_requested) else job.tres_allocated
    if uses_gpus(tres):
        return count_mgpu(tres, per_gpu)
    if job.nodes:
        positions = list(job.gpu_index.values())
        if any(kinds.get(name) for kinds in positions for name in SHARED_GRES):
            return None
        return 1000 * sum(len(kinds.get("gpu", ())) for kinds in positions)
    if any(name in job.gres_per_task for name in GPU_GRES):
        return None
    times = max(job.n_nodes, 1) if job.tres_per_node else 1
    try:
        requested = parse_gres(job.gres_per_node)
    except ValueError:
        return None
    totals: dict[str, float] = {}
    for entry in requested:
        totals[f"gres/{entry.name}"] = totals.get(f"gres/{entry.name}", 0.0) + entry.count * times
    return count_mgpu(totals, per_gpu)


def known_gpu_types(nodes: Iterable[SlurmNode]) -> frozenset[str]:
    """Return the GPU types of these nodes, in lower case."""
    return frozenset(kind.lower() for node in nodes for kind in node.gpus if kind)
