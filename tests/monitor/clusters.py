"""Clusters as in GET /v1/cluster, with defaults for all fields that a test does not set."""

from collections.abc import Sequence
from typing import Any

from slurm_gpu.wire.answers.cluster import ClusterAllocation, ClusterJob, ClusterNode, ClusterState

NOW_S = 1_795_000_000


def job(job_id: int, user: str = "alice", **given: Any) -> ClusterJob:
    """Return a running job that ends in an hour."""
    values: dict[str, Any] = {
        "id": str(job_id),
        "job_id": job_id,
        "full": True,
        "user": user,
        "account": "vision",
        "partition": "gpu",
        "qos": "normal",
        "state": "RUNNING",
        "reason": "None",
        "n_tasks": 1,
        "n_nodes": 1,
        "n_gpus": 1.0,
        "submit_s": NOW_S - 7200,
        "eligible_s": NOW_S - 7200,
        "start_s": NOW_S - 3600,
        "end_s": NOW_S + 3600,
        "time_limit_s": 7200,
        "name": "train",
    }
    return ClusterJob(**{**values, **given})


def waiting(job_id: int, reason: str = "Priority", **given: Any) -> ClusterJob:
    return job(job_id, **{"state": "PENDING", "reason": reason, "start_s": None, "end_s": None, **given})


def holds(job_id: int, *gpus: int, shared: Sequence[int] = ()) -> ClusterAllocation:
    return ClusterAllocation(job_id=job_id, gpus=gpus, shared_gpus=tuple(shared))


def node(name: str, *holders: ClusterAllocation, **given: Any) -> ClusterNode:
    """Return four A100; GPUs without a job are free."""
    gpus = given.get("gpus", {"a100": 4})
    allocated = {position for holder in holders for position in (*holder.gpus, *holder.shared_gpus)}
    in_service = given.get("in_service", True)
    n_gpus = sum(gpus.values())
    values: dict[str, Any] = {
        "node": name,
        "state": "mixed" if allocated else "idle",
        "reason": None,
        "in_service": in_service,
        "partitions": ["gpu"],
        "zone": None,
        "server_type": None,
        "gpus": gpus,
        "gpus_free": n_gpus - len(allocated) if in_service else 0,
        "cpus": 32,
        "cpus_allocated": 0,
        "memory_mib": 1 << 18,
        "memory_allocated_mib": 0,
        "holders": holders,
    }
    return ClusterNode(**{**values, **given})


def cluster(nodes: Sequence[ClusterNode], jobs: Sequence[ClusterJob] = ()) -> ClusterState:
    return ClusterState(as_of_s=NOW_S, nodes=nodes, jobs=jobs)
