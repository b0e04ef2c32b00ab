"""Collect the facts about a node's jobs that only slurmctld can provide to the node."""

from __future__ import annotations

from typing import Any

from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.tres import SHARED_GRES, SharesPerGpu, amount, count_mgpu


def jobs_on(
    node: str, slurm_node: SlurmNode | None, queue: QueueState | None, now_s: float
) -> dict[str, Any]:
    """Return the facts of all jobs on a node by job ID, with their age at `now_s` as `age_s`."""
    if queue is None:
        return {}
    # If slurmctld does not answer, the last state may be hours old.
    age_s = round(max(0.0, now_s - queue.as_of_s), 1)
    return {
        str(job.job_id): {**job_facts(job, node, slurm_node), "age_s": age_s}
        for job in queue.by_node.get(node, ())
    }


def job_facts(job: QueuedJob, node: str, slurm_node: SlurmNode | None) -> dict[str, Any]:
    """Return the facts of a job that the hooks on `node` cannot determine; docs/api.md lists the keys.

    `granted_mgpu` is the job's part of each device in thousandths: 1000 for a whole GPU, less for shards and
    MPS, None if unknown.
    """
    shards = amount(job.tres_allocated, "shard")
    return {
        "array_job_id": job.array_job_id,
        "array_task": job.array_task,
        "het_job_id": job.het_job_id,
        "restart": job.restarts,
        "state": job.state,
        "in_prolog": job.reason == "Prolog",
        "uid": job.uid,
        "start_s": job.start_s,
        "shards": round(shards / _n_nodes(job)) if shards else None,
        "granted_mgpu": _granted_mgpu(job, node, slurm_node),
        "gpu_index": {name: list(index) for name, index in job.gpu_index.get(node, {}).items()},
    }


def _granted_mgpu(job: QueuedJob, node: str, slurm_node: SlurmNode | None) -> int | None:
    """Return the job's part of each device on the node, in thousandths.

    Return None if Slurm does not report how the job's shares are distributed over the devices.
    """
    index, tres = job.gpu_index.get(node, {}), job.tres_allocated
    kinds = [kind for kind in SHARED_GRES if index.get(kind) or amount(tres, kind)]
    if not kinds:
        # slurmctld reports no GPU positions for a completing job. Its shares may be of a kind that Slurm does
        # not account for.
        hidden = () if slurm_node is None else set(slurm_node.unaccounted) & set(SHARED_GRES)
        return None if hidden and not index.get("gpu") and not amount(tres, "gpu") else 1000
    if len(kinds) > 1 or index.get("gpu") or amount(tres, "gpu"):
        return None
    (kind,) = kinds
    per_gpu = SharesPerGpu() if slurm_node is None else slurm_node.per_gpu
    shares, n_nodes, n_gpus = round(amount(tres, kind)), _n_nodes(job), len(index.get(kind, ()))
    of_one: int | None = getattr(per_gpu, kind)
    if not of_one or not shares or shares % n_nodes:
        return None
    on_node = shares // n_nodes
    if on_node == of_one * max(1, n_gpus):
        return 1000
    part = {f"gres/{kind}": float(on_node)}
    return None if n_gpus > 1 or on_node > of_one else count_mgpu(part, per_gpu)


def _n_nodes(job: QueuedJob) -> int:
    """Return the number of nodes in the allocation.

    The node list of a completing job contains only the nodes that it has not left yet.
    """
    return max(1, round(job.tres_allocated.get("node", len(job.nodes))))
