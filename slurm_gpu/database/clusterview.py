"""What slurmctld says of nodes, the jobs on them and those that wait, for GET /v1/cluster."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu.database.clusterstate import ClusterHolder, ClusterJob, ClusterNode, ClusterState
from slurm_gpu.database.identity import Caller
from slurm_gpu.database.nodeperiods import Places
from slurm_gpu.database.slurmview import Queue
from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.occupancy import Occupancy, occupancy

_WAITING = "PENDING"


def show_cluster(
    nodes: Mapping[str, SlurmNode], queue: Queue, places: Places, caller: Caller
) -> ClusterState:
    """The cluster as `caller` may see it; jobs by their ids."""
    shown = occupancy(nodes.values(), queue.by_id.values())
    here = {holder.job.job_id for entry in shown for holder in entry.holders}
    jobs = (job for job in queue.by_id.values() if job.state == _WAITING or job.job_id in here)
    return ClusterState(
        as_of_s=queue.as_of_s,
        nodes=[_node(entry, places) for entry in shown],
        jobs=[_job(job, caller) for job in sorted(jobs, key=lambda job: job.job_id)],
    )


def _node(entry: Occupancy, places: Places) -> ClusterNode:
    node = entry.node
    return ClusterNode(
        node=node.name,
        state=node.state,
        reason=node.reason,
        in_service=entry.in_service,
        partitions=list(node.partitions),
        zone=places.zones.get(node.name),
        server_type=places.server_types.get(node.name),
        gpus=dict(node.gpus),
        gpus_free=entry.gpus_free,
        cpus=node.cpus,
        cpus_allocated=node.cpus_allocated,
        memory_mib=node.memory_mib,
        memory_allocated_mib=node.memory_allocated_mib,
        holders=[
            ClusterHolder(
                job_id=holder.job.job_id, gpus=list(holder.gpus), shared_gpus=list(holder.shared_gpus)
            )
            for holder in entry.holders
        ],
    )


def _job(job: QueuedJob, caller: Caller) -> ClusterJob:
    full = caller.may_see(job.uid, job.user)
    return ClusterJob(
        id=job.label,
        job_id=job.job_id,
        full=full,
        user=job.user,
        account=job.account,
        partition=job.partition,
        qos=job.qos,
        state=job.state,
        reason=job.reason,
        n_tasks=job.n_tasks,
        n_nodes=job.n_nodes,
        n_gpus=job.tres_requested.get("gres/gpu", 0.0),
        submit_s=job.submit_s,
        eligible_s=job.eligible_s,
        start_s=job.start_s,
        end_s=job.end_s,
        time_limit_s=job.time_limit_s,
        name=job.name if full else None,
    )
