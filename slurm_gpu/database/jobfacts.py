"""What hooks cannot know of the jobs on a node, and slurmctld says."""

from __future__ import annotations

from typing import Any

from slurm_gpu.database.slurmview import Queue
from slurm_gpu.slurm.client import QueuedJob, SlurmNode


def jobs_on(node: str, slurm_node: SlurmNode | None, queue: Queue | None, now_s: float) -> dict[str, Any]:
    """The facts of all jobs there, by id; `age_s` is how old they are at `now_s` (wall clock)."""
    if queue is None:
        return {}
    # Where slurmctld does not answer, what it said last may be hours old.
    age_s = round(max(0.0, now_s - queue.as_of_s), 1)
    return {
        str(job.job_id): {**job_facts(job, node, slurm_node), "age_s": age_s}
        for job in queue.by_node.get(node, ())
    }


def job_facts(job: QueuedJob, node: str, slurm_node: SlurmNode | None) -> dict[str, Any]:
    """What hooks cannot know of a job on `node`; docs/api.md lists the keys.

    `granted_mgpu` is per device: 1000 for a whole GPU, the job's part of one for shards, None for unknown.
    """
    shards = job.tres_allocated.get("gres/shard")
    return {
        "array_job_id": job.array_job_id,
        "array_task": job.array_task,
        "het_job_id": job.het_job_id,
        "restart": job.restarts,
        "state": job.state,
        "in_prolog": job.reason == "Prolog",
        "uid": job.uid,
        "start_s": job.start_s,
        "shards": None if shards is None else round(shards / _n_nodes(job)),
        "granted_mgpu": _granted_mgpu(job, node, None if slurm_node is None else slurm_node.shards_per_gpu),
        "gpu_index": {name: list(index) for name, index in job.gpu_index.get(node, {}).items()},
    }


def _granted_mgpu(job: QueuedJob, node: str, shards_per_gpu: int | None) -> int | None:
    """Of each device that it holds there; None where Slurm does not tell how its shards are shared out."""
    shards = round(job.tres_allocated.get("gres/shard", 0))
    if not shards:
        return 1000
    n_nodes, n_gpus = _n_nodes(job), len(job.gpu_index.get(node, {}).get("shard", ()))
    if not shards_per_gpu or shards % n_nodes or job.tres_allocated.get("gres/gpu"):
        return None
    on_node = shards // n_nodes
    if on_node == shards_per_gpu * max(1, n_gpus):
        return 1000
    return None if n_gpus > 1 or on_node > shards_per_gpu else round(on_node * 1000 / shards_per_gpu)


def _n_nodes(job: QueuedJob) -> int:
    """How many its allocation has; a job that is completing shows only those that it has yet to leave."""
    return max(1, round(job.tres_allocated.get("node", len(job.nodes))))
