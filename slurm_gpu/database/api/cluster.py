"""Return slurmctld's nodes, the jobs on these nodes and the pending jobs, for GET /v1/cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.gpu_count import agreed_per_gpu, job_mgpu, per_gpu_of
from slurm_gpu.slurm.occupancy import NodeAllocations, occupancy
from slurm_gpu.wire.answers.cluster import ClusterAllocation, ClusterJob, ClusterNode, ClusterState

if TYPE_CHECKING:
    # `slurm-gpu nodes` imports this module where the database libraries may be missing.
    from slurm_gpu.database.accounting.slurm_view import QueueState
    from slurm_gpu.database.maintenance.node_periods import Places
    from slurm_gpu.http.identity import Caller

_WAITING = "PENDING"


def show_cluster(
    nodes: Mapping[str, SlurmNode], queue: QueueState, places: Places, caller: Caller
) -> ClusterState:
    """Return the cluster as `caller` may see it, with jobs sorted by ID."""
    return cluster_state(
        occupancy(nodes.values(), queue.by_id.values()),
        queue.by_id.values(),
        queue.as_of_s,
        may_see=lambda job: caller.may_see(job.uid),
        zones=places.zones,
        server_types=places.server_types,
    )


def cluster_state(
    shown: Iterable[NodeAllocations],
    jobs: Iterable[QueuedJob],
    as_of_s: float,
    *,
    may_see: Callable[[QueuedJob], bool] = lambda job: True,
    zones: Mapping[str, str] = MappingProxyType({}),
    server_types: Mapping[str, str] = MappingProxyType({}),
) -> ClusterState:
    """Return the state of the nodes, and of the `jobs` that are pending or on one of the nodes.

    `zones` and `server_types` have the names of nodes as keys.
    """
    shown = list(shown)
    here = {holder.job.job_id for entry in shown for holder in entry.holders}
    listed = (job for job in jobs if job.state == _WAITING or job.job_id in here)
    by_name = {entry.node.name: entry.node for entry in shown}
    return ClusterState(
        as_of_s=as_of_s,
        nodes=[
            _node(entry, zones.get(entry.node.name), server_types.get(entry.node.name)) for entry in shown
        ],
        jobs=[
            _job(job, may_see(job), _n_gpus(job, by_name))
            for job in sorted(listed, key=lambda job: job.job_id)
        ],
    )


def _node(entry: NodeAllocations, zone: str | None, server_type: str | None) -> ClusterNode:
    node = entry.node
    return ClusterNode(
        node=node.name,
        state=node.state,
        reason=node.reason,
        in_service=entry.in_service,
        partitions=list(node.partitions),
        zone=zone,
        server_type=server_type,
        gpus=dict(node.gpus),
        gpus_free=entry.gpus_free,
        cpus=node.cpus,
        cpus_allocated=node.cpus_allocated,
        memory_mib=node.memory_mib,
        memory_allocated_mib=node.memory_allocated_mib,
        holders=[
            ClusterAllocation(
                job_id=holder.job.job_id, gpus=list(holder.gpus), shared_gpus=list(holder.shared_gpus)
            )
            for holder in entry.holders
        ],
        shards_per_gpu=node.shards_per_gpu,
    )


def _n_gpus(job: QueuedJob, nodes: Mapping[str, SlurmNode]) -> float | None:
    """Return the job's number of GPUs.

    Shares count as fractions of a GPU if all nodes have the same number of shares per GPU.
    """
    here = [nodes.get(name) for name in job.nodes]
    mgpu = job_mgpu(job, per_gpu_of(here) if here else agreed_per_gpu(nodes.values()))
    return None if mgpu is None else mgpu / 1000


def _job(job: QueuedJob, full: bool, n_gpus: float | None) -> ClusterJob:
    return ClusterJob(
        id=job.label,
        job_id=job.job_id,
        full=full,
        user=job.user,
        uid=job.uid,
        account=job.account,
        partition=job.partition,
        qos=job.qos,
        state=job.state,
        reason=job.reason,
        n_tasks=job.n_tasks,
        n_nodes=job.n_nodes,
        n_gpus=n_gpus,
        submit_s=job.submit_s,
        eligible_s=job.eligible_s,
        start_s=job.start_s,
        end_s=job.end_s,
        time_limit_s=job.time_limit_s,
        name=job.name if full else None,
        priority=job.priority,
        dependency=job.dependency if full else None,
    )
