"""Steps of synchronous training: the times in which each worker computes, waits, exchanges and idles.

A tensor-parallel group takes as long for a microbatch as its slowest GPU, then passes it to the next stage.
All replicas synchronise at the exchange of gradients, so a step takes equally long on all workers. Workers
that finish early spin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.diagnose_injector_job import FORWARD, Floats, Job

LOADER_DEPTH = 2
"""Maximum number of batches that a data loader has ready."""
_LATE = 0.02
"""The delay of later workers of one data source, as a fraction of the loading time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The changes that a fault causes; scalars apply to all workers. A factor of 1 means no change."""

    clock: Floats | float = 1.0
    """The remaining fraction of the clock per worker."""
    stall: Floats | float = 1.0
    """The factor by which each worker takes longer at the same clock, for example due to its memory."""
    throttled: Floats | float = 0.0
    """The fraction of time in which the driver reports a fault that throttles the clock."""
    work: Floats | float = 1.0
    """The work factor of each replica (data,)."""
    stage: Floats | float = 1.0
    """The work factor of each stage (pipeline,)."""
    sequence: float = 0.0
    """Sigma of the logarithm of a microbatch's length."""
    comm: float = 1.0
    """The factor by which the exchange takes longer."""
    tensor_comm: Floats | float = 1.0
    """The same factor within each tensor-parallel group (pipeline, data)."""
    nvlink: Floats | float = 1.0
    """The remaining fraction of each worker's NVLink traffic; the rest uses PCIe."""
    by_tcp: NDArray[np.bool_] | None = None
    """Nodes whose InfiniBand traffic goes over the network."""
    load_s: Floats | float = 0.0
    """The mean time of each worker's loader for the data of a step."""
    load_source: NDArray[np.intp] | None = None
    """The data source of each worker. Workers that share CPUs or a file system fall behind together, since a
    worker that is ahead stops reading. None: each has its own."""
    load_jitter: float = 0.05
    """Coefficient of variation of a source's time for a step."""
    cpu: Floats | float = 0.0
    """The fraction of CPUs of each node that other processes use."""
    forward_only: bool = False
    microbatches: float = 1.0
    """The factor by which the number of microbatches grows, as with a growing batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The times of n steps in seconds: (n, n_workers) per worker, (n,) for all.

    A step consists of `meet_s`, until all replicas have finished their work, then `comm_s`, then
    `optimizer_s`. In `meet_s` a worker is idle, computes (`busy_s`, including `tensor_s` of exchange in its
    group), and waits.
    """

    idle_s: Floats
    busy_s: Floats
    tensor_s: Floats
    work_s: Floats
    """The value of `busy_s` at the usual clock without stalls."""
    meet_s: Floats
    comm_s: Floats
    optimizer_s: Floats

    @property
    def total_s(self) -> Floats:
        """Return the duration of each step (n,)."""
        return self.meet_s + self.comm_s + self.optimizer_s


def slowness(job: Job, condition: Condition) -> Floats:
    """Return the factor of each worker's computing time (n_workers,)."""
    clock = np.broadcast_to(np.asarray(condition.clock, dtype=float), job.n_workers)
    stall = np.broadcast_to(np.asarray(condition.stall, dtype=float), job.n_workers)
    return stall * (job.clock_bound / clock + 1 - job.clock_bound)


def lengths(job: Job, condition: Condition, n: int, microbatches: int, rng: np.random.Generator) -> Floats:
    """Return the relative work of each microbatch (n, microbatches, 1, data)."""
    if not condition.sequence:
        return np.ones((n, microbatches, 1, job.data))
    sigma = condition.sequence
    return rng.lognormal(-sigma * sigma / 2, sigma, (n, microbatches, 1, job.data))


def run_steps(
    job: Job,
    condition: Condition,
    n: int,
    rng: np.random.Generator,
    compute: Floats | None = None,
) -> Steps:
    """Run `n` steps; `compute` (n, microbatches, pipeline, data) is their work, drawn if None."""
    microbatches = max(1, round(job.microbatches * condition.microbatches))
    if compute is None:
        shape = (n, microbatches, job.pipeline, job.data)
        stage = job.stage_work * np.asarray(condition.stage, dtype=float)
        replica = np.broadcast_to(np.asarray(condition.work, dtype=float), job.data)
        compute = np.broadcast_to(stage[:, None] * replica, shape) * lengths(
            job, condition, n, microbatches, rng
        )
        compute = compute * rng.lognormal(0, 0.004, (n, 1, 1, 1)) * job.microbatch_s
    noise = rng.lognormal(0, job.jitter, (*compute.shape, job.tensor))
    slow = (job.spread * slowness(job, condition)).reshape(job.pipeline, job.data, job.tensor)
    work = compute[..., None] * noise
    own = work * slow * (1 + job.gaps)
    if condition.forward_only:
        work, own = work * FORWARD, own * FORWARD
    slowest = own.max(axis=4)
    comm = job.tensor_comm * compute * (FORWARD if condition.forward_only else 1.0)
    group = slowest + comm * np.broadcast_to(
        np.asarray(condition.tensor_comm, dtype=float), (job.pipeline, job.data)
    )
    forward = group if condition.forward_only else group * FORWARD
    backward = group * 0 if condition.forward_only else group - forward
    replica_s = makespan(forward, backward)
    idle = _idle(job, condition, replica_s, rng)
    exposed = 0.0 if condition.forward_only else job.exposed_s(condition.comm)
    optimizer = 0.0 if condition.forward_only else job.optimizer_s
    delay = idle.reshape(-1, job.pipeline, job.data, job.tensor).max(axis=(1, 3))
    meet = (replica_s + delay).max(axis=1)
    if (waits := _loaded(job, condition, meet + exposed + optimizer, rng)) is not None:
        idle = idle + waits
        delay = idle.reshape(-1, job.pipeline, job.data, job.tensor).max(axis=(1, 3))
        meet = (replica_s + delay).max(axis=1)
    each = (len(compute), job.n_workers)
    return Steps(
        idle_s=idle,
        busy_s=own.sum(axis=1).reshape(each),
        tensor_s=np.repeat((group - slowest).sum(axis=1)[..., None], job.tensor, axis=3).reshape(each),
        work_s=work.sum(axis=1).reshape(each),
        meet_s=meet,
        comm_s=exposed * rng.lognormal(0, 0.03, len(meet)),
        optimizer_s=np.full(len(meet), optimizer),
    )


def makespan(forward: Floats, backward: Floats) -> Floats:
    """Return the time of each replica (n, data) for microbatches that pass through all stages and back.

    `forward` and `backward` have the shape (n, microbatches, pipeline, data). A stage runs one pass after the
    other, all forward passes first; the order of 1F1B needs less memory and takes the same time.
    """
    n, microbatches, stages, data = forward.shape
    if stages == 1:
        return np.asarray((forward + backward).sum(axis=1)[:, 0])
    free = [np.zeros((n, data)) for _ in range(stages)]
    arrived = []
    for m in range(microbatches):
        at = np.zeros((n, data))
        for s in range(stages):
            at = free[s] = np.maximum(at, free[s]) + forward[:, m, s]
        arrived.append(at)
    for m in range(microbatches):
        at = arrived[m]
        for s in reversed(range(stages)):
            at = free[s] = np.maximum(at, free[s]) + backward[:, m, s]
    return np.asarray(np.maximum.reduce(free))


def _idle(job: Job, condition: Condition, replica_s: Floats, rng: np.random.Generator) -> Floats:
    """Return seconds in which a worker's interpreter collects garbage and launches nothing (n, n_workers)."""
    shape = (len(replica_s), job.n_workers)
    if not job.collections:
        return np.zeros(shape)
    hit = rng.random(shape) < job.collections / np.sqrt(job.n_workers)
    return np.where(hit, rng.uniform(0.05, 0.4, shape), 0.0)


def _loaded(job: Job, condition: Condition, step_s: Floats, rng: np.random.Generator) -> Floats | None:
    """Return each worker's wait for data (n, n_workers); loaders are up to LOADER_DEPTH batches ahead."""
    load = np.broadcast_to(np.asarray(condition.load_s, dtype=float), job.n_workers)
    # In a pipeline, the first stage reads tokens and the last stage reads labels; only the first stage waits.
    reads = job.readers() & (load > 0)
    if not reads.any():
        return None
    source = np.arange(job.n_workers) if condition.load_source is None else condition.load_source
    n, n_sources = len(step_s), int(source.max()) + 1
    mean = np.zeros(n_sources)
    np.maximum.at(mean, source[reads], load[reads])
    takes = mean * rng.gamma(condition.load_jitter**-2, condition.load_jitter**2, (n, n_sources))
    late = np.where(reads, load * np.abs(rng.normal(0, _LATE, (n, job.n_workers))), 0.0)
    waits = np.zeros((n, job.n_workers))
    ready = np.zeros(n_sources)
    begun: list[float] = []
    now = 0.0
    for k in range(n):
        room = begun[k - LOADER_DEPTH] if k >= LOADER_DEPTH else -LOADER_DEPTH * float(step_s[0])
        ready = np.maximum(ready, room) + takes[k]
        behind = ready[source] - now
        waits[k] = np.where(reads & (behind > 0), behind + late[k], 0.0)
        begun.append(now + float(waits[k].max()))
        now = begun[-1] + float(step_s[k])
    return waits
