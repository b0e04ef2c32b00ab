"""Build small clusters and jobs."""

from __future__ import annotations

import math

from slurm_gpu.simulate.cluster import ModelCluster, ModelNode, ModelPartition, Outage
from slurm_gpu.simulate.jobs import Jobs, ModelJob, ResourceRequest
from slurm_gpu.simulate.model import simulate
from slurm_gpu.simulate.outcome import ModelOutcome


def nodes(*gpus: int, cpus: int = 64, memory_mib: int = 64000) -> tuple[ModelNode, ...]:
    return tuple(
        ModelNode(name=f"n{i}", gpus=n, cpus=cpus, memory_mib=memory_mib, gpu_type="a100")
        for i, n in enumerate(gpus)
    )


def cluster(*gpus: int, outages: tuple[Outage, ...] = ()) -> ModelCluster:
    """Return a cluster with one partition of all nodes."""
    return ModelCluster(nodes(*gpus), (ModelPartition("gpu", tuple(range(len(gpus)))),), outages)


def job(
    submit_s: float = 0.0,
    gpus: int = 1,
    run_s: float = 100.0,
    limit_s: float | None = None,
    *,
    n_nodes: int = 1,
    share_mgpu: int = 0,
    cpus: int = 1,
    memory_mib: int = 0,
    gpu_type: str = "",
    partition: int = 0,
    priority: float = 0.0,
    cancel_s: float = math.inf,
    counters: tuple[int, ...] = (),
    qos: str = "",
) -> ModelJob:
    """Build a job; its time limit defaults to its run time."""
    request = ResourceRequest(
        nodes=n_nodes,
        gpus=0 if share_mgpu else gpus,
        share_mgpu=share_mgpu,
        cpus=cpus,
        memory_mib=memory_mib,
        gpu_type=gpu_type,
    )
    return ModelJob(
        request=request,
        submit_s=submit_s,
        run_s=run_s,
        limit_s=max(run_s, 1.0) if limit_s is None else limit_s,
        partition=partition,
        priority=priority,
        cancel_s=cancel_s,
        counters=counters,
        qos=qos,
    )


def run(where: ModelCluster, *jobs: ModelJob, **options: object) -> ModelOutcome:
    """Simulate these jobs, which must be in the order of submission."""
    assert [one.submit_s for one in jobs] == sorted(one.submit_s for one in jobs)
    return simulate(where, Jobs.of(jobs), log=True, **options)  # type: ignore[arg-type]


def starts(where: ModelCluster, *jobs: ModelJob, **options: object) -> list[float | None]:
    """Return the start of each job; None if it never started."""
    found = run(where, *jobs, **options).start_s.tolist()
    return [None if math.isnan(start) else start for start in found]
