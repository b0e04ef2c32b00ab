"""Inject slow and failing GPUs and nodes, and workload imbalance."""

from __future__ import annotations

import numpy as np

from bench.diagnose_injector_fault import Fault, node, of_workers, one, since
from bench.diagnose_injector_job import Job
from bench.diagnose_injector_play import Pause
from bench.diagnose_injector_record import START_S, workers_of
from bench.diagnose_injector_steps import Condition
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.wire import Event

_FAILING_XIDS = (48, 64, 79, 95, 119)
"""Uncorrectable memory, failed remapping, GPU off the bus, uncontained error, no answer from the GSP."""


def _clock_for(job: Job, size: float) -> float:
    """Return the fraction of its clock at which a GPU takes 1 + size times as long."""
    return job.clock_bound / (job.clock_bound + size)


def slow_by_heat(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    rows = one(job, rng)
    return Fault(
        cause=Cause.SLOW,
        kind="heat",
        size=size,
        since_s=since(length_s, rng, 0.3),
        condition=Condition(
            clock=of_workers(job, rows, _clock_for(job, size)),
            throttled=of_workers(job, rows, float(rng.uniform(0.6, 1.0)), 0.0),
        ),
        culprits=rows,
    )


def slow_node(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """Inject a power supply that throttles a whole node."""
    rows = node(job, rng)
    if job.n_nodes == 1:
        rows = rows[: job.per_node // 2]
    return Fault(
        cause=Cause.SLOW,
        kind="power supply",
        size=size,
        since_s=since(length_s, rng, 0.3),
        condition=Condition(
            clock=of_workers(job, rows, _clock_for(job, size)),
            throttled=of_workers(job, rows, float(rng.uniform(0.8, 1.0)), 0.0),
        ),
        culprits=rows,
    )


def slow_clock(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    rows = one(job, rng)
    return Fault(
        cause=Cause.SLOW,
        kind="clock",
        size=size,
        since_s=since(length_s, rng, 0.4),
        condition=Condition(clock=of_workers(job, rows, _clock_for(job, size))),
        culprits=rows,
    )


def slow_memory(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    rows = one(job, rng)
    return Fault(
        cause=Cause.SLOW,
        kind="same clock",
        size=size,
        since_s=since(length_s, rng, 0.4),
        condition=Condition(stall=of_workers(job, rows, 1 + size)),
        culprits=rows,
    )


def failing(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """Inject an error that the driver reports; the process dies, and the others wait for it."""
    rows = one(job, rng)
    code = int(rng.choice(_FAILING_XIDS))
    since_s = since(length_s, rng)
    assert since_s is not None
    worker = workers_of(job)[rows[0]]
    kinds = [("xid", {"code": code})] + [("gpu_lost", {})] * (code == 79)
    events = [
        Event(
            node=worker.node,
            boot_id="b",
            n=n,
            at_s=int(START_S + since_s + rng.uniform(0, 10)),
            kind=kind,
            device=worker.device,
            data=data,
        )
        for n, (kind, data) in enumerate(kinds)
    ]
    spins = np.ones(job.n_workers, dtype=bool)
    spins[rows[0]] = False
    return Fault(
        cause=Cause.SLOW,
        kind="failing",
        size=1.0,
        since_s=since_s,
        stop=Pause(seconds=length_s, spins=spins),
        culprits=rows,
        events=tuple(events),
        lost=rows[0] if code == 79 else None,
    )


def stage(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    stage = int(rng.choice([job.pipeline - 1, job.pipeline - 1, 0, int(rng.integers(job.pipeline))]))
    factors = np.ones(job.pipeline)
    factors[stage] = 1 + size
    return Fault(
        cause=Cause.IMBALANCE,
        kind="stage",
        size=size,
        since_s=None,
        condition=Condition(stage=factors),
        culprits=tuple(np.flatnonzero(job.place()[0] == stage).tolist()),
        exact=False,
    )


def shard(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    n = int(rng.integers(1, max(2, job.data // 4 + 1)))
    replicas = rng.choice(job.data, n, replace=False)
    factors = np.ones(job.data)
    factors[replicas] = 1 + size
    return Fault(
        cause=Cause.IMBALANCE,
        kind="shard",
        size=size,
        since_s=since(length_s, rng, 0.6),
        condition=Condition(work=factors),
        culprits=tuple(np.flatnonzero(np.isin(job.place()[1], replicas)).tolist()),
        exact=False,
    )


def sequence(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    return Fault(
        cause=Cause.IMBALANCE,
        kind="sequence",
        size=size,
        since_s=None,
        condition=Condition(sequence=sigma_for(job, size)),
        exact=False,
        named=False,
    )


def sigma_for(job: Job, size: float) -> float:
    """Return the inequality of sequences at which the slowest replica has 1 + size times the mean work."""
    normal = np.random.default_rng(0).normal(0, 1, (400, job.microbatches, job.data))
    low, high = 0.0, 3.0
    for _ in range(30):
        sigma = (low + high) / 2
        work = np.exp(sigma * normal - sigma * sigma / 2).mean(axis=1)
        if work.max(axis=1).mean() / work.mean() < 1 + size:
            low = sigma
        else:
            high = sigma
    return low
