"""The faults that bench/diagnose.py injects: what is different from when on, and what is to be found.

The size of a fault is by how much longer something takes: of a slow GPU its computing, of an imbalance the
work of those who have more (of unequal sequences the whole step's), of links and input the whole step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bench.diagnose_injector_job import Floats, Job
from bench.diagnose_injector_play import Pause
from bench.diagnose_injector_record import START_S, workers_of
from bench.diagnose_injector_steps import Condition
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.records import Event

SIZES = (0.05, 0.60)
_FAILING_XIDS = (48, 64, 79, 95, 119)
"""Memory that cannot be corrected or remapped, off the bus, uncontained, the GPU's own processor silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong from `since_s` on (None: from the beginning).

    `culprits` are workers; `exact`: they, and nobody else, are to be named. Where `named` is false nobody in
    particular can be told by what is recorded: nobody is to be named, or them, or everybody.
    """

    cause: Cause
    kind: str
    size: float
    since_s: float | None
    condition: Condition = field(default_factory=Condition)
    stop: Pause | None = None
    """Of a hang: how it stands still."""
    before: Pause | None = None
    """What comes with it: a restart."""
    culprits: tuple[int, ...] = ()
    exact: bool = True
    named: bool = True
    events: tuple[Event, ...] = ()
    lost: int | None = None
    needs_hosts: bool = False


def draw_fault(cause: Cause, number: int, job: Job, length_s: float, rng: np.random.Generator) -> Fault:
    """The `number`th fault of that class."""
    kinds = _KINDS[cause]
    turns = (kinds[(number + later) % len(kinds)] for later in range(len(kinds)))
    kind = next(kind for kind in turns if _fits(kind, job))
    return kind(job, float(rng.uniform(*SIZES)), length_s, rng)


Kind = Callable[[Job, float, float, np.random.Generator], Fault]


def _fits(kind: Kind, job: Job) -> bool:
    if kind is _stage:
        return job.pipeline > 1
    if kind is _nvlink:
        return job.model.nvlink is not None
    if kind is _tcp:
        return job.n_nodes > 2
    return True


def wants_pipeline(cause: Cause, number: int) -> bool | None:
    """Whether the job of the `number`th fault has to have pipeline stages; None: as may be."""
    kind = _KINDS[cause][number % len(_KINDS[cause])]
    return True if kind is _stage else None


def _since(length_s: float, rng: np.random.Generator, always: float = 0.0) -> float | None:
    if rng.random() < always:
        return None
    return float(rng.uniform(0.25, 0.65) * length_s)


def _of_workers(job: Job, rows: tuple[int, ...], value: float, rest: float = 1.0) -> Floats:
    values = np.full(job.n_workers, rest)
    values[list(rows)] = value
    return values


def _one(job: Job, rng: np.random.Generator) -> tuple[int, ...]:
    return (int(rng.integers(job.n_workers)),)


def _node(job: Job, rng: np.random.Generator) -> tuple[int, ...]:
    node = int(rng.integers(job.n_nodes))
    return tuple(range(node * job.per_node, (node + 1) * job.per_node))


def _clock_for(job: Job, size: float) -> float:
    """The part of its clock at which a GPU takes 1 + size times as long."""
    return job.clock_bound / (job.clock_bound + size)


def _slow_by_heat(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    rows = _one(job, rng)
    return Fault(
        cause=Cause.SLOW,
        kind="heat",
        size=size,
        since_s=_since(length_s, rng, 0.3),
        condition=Condition(
            clock=_of_workers(job, rows, _clock_for(job, size)),
            throttled=_of_workers(job, rows, float(rng.uniform(0.6, 1.0)), 0.0),
        ),
        culprits=rows,
    )


def _slow_node(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """A power supply that holds a whole node down."""
    rows = _node(job, rng)
    if job.n_nodes == 1:
        rows = rows[: job.per_node // 2]
    return Fault(
        cause=Cause.SLOW,
        kind="power supply",
        size=size,
        since_s=_since(length_s, rng, 0.3),
        condition=Condition(
            clock=_of_workers(job, rows, _clock_for(job, size)),
            throttled=_of_workers(job, rows, float(rng.uniform(0.8, 1.0)), 0.0),
        ),
        culprits=rows,
    )


def _slow_clock(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    rows = _one(job, rng)
    return Fault(
        cause=Cause.SLOW,
        kind="clock",
        size=size,
        since_s=_since(length_s, rng, 0.4),
        condition=Condition(clock=_of_workers(job, rows, _clock_for(job, size))),
        culprits=rows,
    )


def _slow_memory(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    rows = _one(job, rng)
    return Fault(
        cause=Cause.SLOW,
        kind="same clock",
        size=size,
        since_s=_since(length_s, rng, 0.4),
        condition=Condition(stall=_of_workers(job, rows, 1 + size)),
        culprits=rows,
    )


def _failing(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """The driver tells an error; the process dies, and the others wait for it."""
    rows = _one(job, rng)
    code = int(rng.choice(_FAILING_XIDS))
    since_s = _since(length_s, rng)
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


def _stage(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    stage = int(rng.choice([job.pipeline - 1, job.pipeline - 1, 0, rng.integers(job.pipeline)]))
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


def _shard(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    n = int(rng.integers(1, max(2, job.data // 4 + 1)))
    replicas = rng.choice(job.data, n, replace=False)
    factors = np.ones(job.data)
    factors[replicas] = 1 + size
    return Fault(
        cause=Cause.IMBALANCE,
        kind="shard",
        size=size,
        since_s=_since(length_s, rng, 0.6),
        condition=Condition(work=factors),
        culprits=tuple(np.flatnonzero(np.isin(job.place()[1], replicas)).tolist()),
        exact=False,
    )


def _sequence(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
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
    """How unequal sequences must be for the slowest replica to have 1 + size times the mean's work."""
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


def comm_for(job: Job, size: float) -> float:
    """How many times as long the exchange must take for a step to take 1 + size times as long."""
    wanted = job.exposed_s(1.0) + size * job.step_s
    low, high = 1.0, 1e4
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if job.exposed_s(middle) < wanted else (low, middle)
    return low


def _congestion(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    return Fault(
        cause=Cause.COMMUNICATION,
        kind="congestion",
        size=size,
        since_s=_since(length_s, rng),
        condition=Condition(comm=comm_for(job, size)),
        named=False,
    )


def _link(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """One node's link is slow. A ring carries as much everywhere, so nothing recorded tells whose."""
    return Fault(
        cause=Cause.COMMUNICATION,
        kind="slow link",
        size=size,
        since_s=_since(length_s, rng),
        condition=Condition(comm=comm_for(job, size)),
        culprits=_node(job, rng),
        exact=False,
        named=False,
    )


def _nvlink(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """A GPU whose NVLink is gone: NCCL takes PCIe, from the start of the job on or after a restart."""
    rows = _one(job, rng)
    since_s = _since(length_s, rng, 0.5)
    restart = Pause(seconds=float(rng.uniform(20, 60)), spins=np.zeros(job.n_workers, dtype=bool), cpu=0.3)
    return Fault(
        cause=Cause.COMMUNICATION,
        kind="nvlink",
        size=size,
        since_s=since_s,
        condition=Condition(
            comm=comm_for(job, size), nvlink=_of_workers(job, rows, float(rng.uniform(0.0, 0.3)))
        ),
        before=None if since_s is None else restart,
        culprits=rows,
        exact=False,
    )


def _tcp(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """A node whose InfiniBand is gone, so that NCCL takes sockets."""
    rows = _node(job, rng)
    by_tcp = np.zeros(job.n_nodes, dtype=bool)
    by_tcp[rows[0] // job.per_node] = True
    return Fault(
        cause=Cause.COMMUNICATION,
        kind="sockets",
        size=size,
        since_s=_since(length_s, rng, 0.5),
        condition=Condition(comm=comm_for(job, size), by_tcp=by_tcp),
        culprits=rows,
        exact=False,
        needs_hosts=True,
    )


def _starved_all(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """A file system that is slow for all, or too few CPUs everywhere (a node's most of all)."""
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
    # The slowest of them is whom the others wait for.
    return replace(fault, culprits=tuple(rows[job.node()[rows] == slowest].tolist()))


def _starved_node(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """CPUs or disk of one node that reads."""
    readers = job.readers()
    nodes = np.unique(job.node()[readers])
    if len(nodes) == 1:
        return _starved_all(job, size, length_s, rng)
    rows = np.flatnonzero(readers & (job.node() == int(rng.choice(nodes))))
    cpu = float(rng.choice([0.0, 0.95]))
    kind = "node, CPUs" if cpu else "node, disk"
    return _starved(job, rows, size, length_s, rng, kind, job.node(), named=True, cpu=cpu)


def _starved_worker(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
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
        since_s=_since(length_s, rng, 0.4),
        condition=Condition(
            load_s=load_s,
            load_source=source,
            load_jitter=0.05 if cpu else 0.2,  # of batches' cost, of storage's latency
            cpu=np.where(touched, cpu, 0.0),
        ),
        culprits=tuple(rows.tolist()),
        named=named,
        exact=len(rows) == 1,
    )


def _stuck(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """One worker's process does not come to the collective: its interpreter or its file system."""
    rows = _one(job, rng)
    spins = np.ones(job.n_workers, dtype=bool)
    spins[rows[0]] = False
    return _hang("stuck worker", length_s, rng, spins, culprits=rows)


def _deadlock(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    return _hang("deadlock", length_s, rng, np.ones(job.n_workers, dtype=bool))


def _no_data(job: Job, size: float, length_s: float, rng: np.random.Generator) -> Fault:
    """All wait for a file system that does not answer."""
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
        since_s=_since(length_s, rng),
        stop=Pause(seconds=length_s, spins=spins, cpu=0.02),
        culprits=culprits,
        named=bool(culprits),
    )


_KINDS: dict[Cause, tuple[Kind, ...]] = {
    Cause.IMBALANCE: (_stage, _shard, _sequence, _shard),
    Cause.SLOW: (
        _slow_by_heat,
        _slow_memory,
        _slow_clock,
        _slow_node,
        _failing,
        _slow_by_heat,
        _slow_clock,
    ),
    Cause.COMMUNICATION: (_congestion, _nvlink, _link, _tcp),
    Cause.STARVATION: (_starved_all, _starved_node, _starved_worker),
    Cause.HANG: (_stuck, _deadlock, _no_data),
}
CAUSES = tuple(_KINDS)
