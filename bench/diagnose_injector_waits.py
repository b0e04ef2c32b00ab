"""Inject faults that make all workers wait: links, input, and hangs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bench.diagnose_injector_fault import Fault, node, of_workers, one, since
from bench.diagnose_injector_job import Floats, Job
from bench.diagnose_injector_play import Pause
from bench.diagnose_injector_steps import Condition
from slurm_gpu.diagnose.verdict import Cause


def comm_for(job: Job, size: float) -> float:
    """Return the factor of the exchange for which a step takes 1 + size times as long."""
    wanted = job.exposed_s(1.0) + size * job.step_s
    low, high = 1.0, 1e4
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if job.exposed_s(middle) < wanted else (low, middle)
    return low


def congestion(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    return Fault(
        cause=Cause.COMMUNICATION,
        kind="congestion",
        size=size,
        since_s=since(length_s, rng),
        condition=Condition(comm=comm_for(job, size)),
        named=False,
    )


def link(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """Slow down one node's link. A ring has equal traffic everywhere, so records cannot identify the node."""
    return Fault(
        cause=Cause.COMMUNICATION,
        kind="slow link",
        size=size,
        since_s=since(length_s, rng),
        condition=Condition(comm=comm_for(job, size)),
        culprits=node(job, rng),
        exact=False,
        named=False,
    )


def nvlink(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """Remove a GPU's NVLink, so that NCCL uses PCIe, from the start of the job or from a restart on."""
    rows = one(job, rng)
    since_s = since(length_s, rng, 0.5)
    restart = Pause(seconds=float(rng.uniform(20, 60)), spins=np.zeros(job.n_workers, dtype=bool), cpu=0.3)
    return Fault(
        cause=Cause.COMMUNICATION,
        kind="nvlink",
        size=size,
        since_s=since_s,
        condition=Condition(
            comm=comm_for(job, size), nvlink=of_workers(job, rows, float(rng.uniform(0.0, 0.3)))
        ),
        before=None if since_s is None else restart,
        culprits=rows,
        exact=False,
    )


def sockets(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """Remove a node's InfiniBand, so that NCCL uses sockets."""
    rows = node(job, rng)
    by_tcp = np.zeros(job.n_nodes, dtype=bool)
    by_tcp[rows[0] // job.per_node] = True
    return Fault(
        cause=Cause.COMMUNICATION,
        kind="sockets",
        size=size,
        since_s=since(length_s, rng, 0.5),
        condition=Condition(comm=comm_for(job, size), by_tcp=by_tcp),
        culprits=rows,
        exact=False,
        needs_hosts=True,
    )


def starved_all(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """Slow down a file system for all workers, or give all nodes too few CPUs (fewest on one node)."""
    if rng.random() < 0.6:
        rows = np.flatnonzero(job.readers())
        source = np.zeros(job.n_workers, dtype=np.intp)
        return _starved(job, rows, size, length_s, rng, "all, storage", source, named=False)
    pace = rng.normal(1, 0.015, job.n_nodes)
    rows = np.flatnonzero(job.readers())
    slowest = int(np.argmax(np.where(np.isin(np.arange(job.n_nodes), job.node()[rows]), pace, 0)))
    fault = _starved(
        job, rows, size, length_s, rng, "all, CPUs", job.node(), named=False, pace=pace, cpu=0.95
    )
    # All other workers wait for the readers on the slowest node.
    return replace(fault, culprits=tuple(rows[job.node()[rows] == slowest].tolist()))


def starved_node(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """Slow down the CPUs or the disk of one node that reads data."""
    readers = job.readers()
    nodes = np.unique(job.node()[readers])
    if len(nodes) == 1:
        return starved_all(job, size, length_s, rng)
    rows = np.flatnonzero(readers & (job.node() == int(rng.choice(nodes))))
    cpu = float(rng.choice([0.0, 0.95]))
    kind = "node, CPUs" if cpu else "node, disk"
    return _starved(job, rows, size, length_s, rng, kind, job.node(), named=True, cpu=cpu)


def starved_worker(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    rows = rng.choice(np.flatnonzero(job.readers()), 1)
    source = np.arange(job.n_workers)
    return _starved(job, rows, size, length_s, rng, "worker", source, named=True)


def _starved(
    job: Job,
    rows: NDArray[np.intp],
    size: float,
    length_s: float,
    rng: np.random.Generator,
    kind: str,
    source: NDArray[np.intp],
    *,
    named: bool,
    pace: Floats | float = 1.0,
    cpu: float = 0.0,
) -> Fault:
    load_s = np.zeros(job.n_workers)
    load_s[rows] = job.step_s * (1 + size) * np.broadcast_to(pace, job.n_nodes)[job.node()[rows]]
    touched = np.isin(np.arange(job.n_nodes), job.node()[rows])
    return Fault(
        cause=Cause.STARVATION,
        kind=kind,
        size=size,
        since_s=since(length_s, rng, 0.4),
        condition=Condition(
            load_s=load_s,
            load_source=source,
            load_jitter=0.05 if cpu else 0.2,  # varying cost of batches, varying latency of storage
            cpu=np.where(touched, cpu, 0.0),
        ),
        culprits=tuple(rows.tolist()),
        named=named,
        exact=len(rows) == 1,
    )


def stuck(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """Block one worker's process before the collective, in its interpreter or its file system."""
    rows = one(job, rng)
    spins = np.ones(job.n_workers, dtype=bool)
    spins[rows[0]] = False
    return _hang("stuck worker", length_s, rng, spins, culprits=rows)


def deadlock(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    return _hang("deadlock", length_s, rng, np.ones(job.n_workers, dtype=bool))


def no_data(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """Let all workers wait for a file system that does not answer."""
    return _hang("no data", length_s, rng, np.zeros(job.n_workers, dtype=bool))


def _hang(
    kind: str,
    length_s: float,
    rng: np.random.Generator,
    spins: NDArray[np.bool_],
    culprits: tuple[int, ...] = (),
) -> Fault:
    return Fault(
        cause=Cause.HANG,
        kind=kind,
        size=1.0,
        since_s=since(length_s, rng),
        stop=Pause(seconds=length_s, spins=spins, cpu=0.02),
        culprits=culprits,
        named=bool(culprits),
    )
