"""A fault as bench/diagnose.py injects it, and what all kinds of faults are made of.

The size of a fault is by how much longer something takes: of a slow GPU its computing, of an imbalance the
work of those who have more (of unequal sequences the whole step's), of links and input the whole step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.diagnose_injector_job import Floats, Job
from bench.diagnose_injector_play import Pause
from bench.diagnose_injector_steps import Condition
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.wire import Event


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


def since(length_s: float, rng: np.random.Generator, always: float = 0.0) -> float | None:
    if rng.random() < always:
        return None
    return float(rng.uniform(0.25, 0.65) * length_s)


def of_workers(job: Job, rows: tuple[int, ...], value: float, rest: float = 1.0) -> Floats:
    values = np.full(job.n_workers, rest)
    values[list(rows)] = value
    return values


def one(job: Job, rng: np.random.Generator) -> tuple[int, ...]:
    return (int(rng.integers(job.n_workers)),)


def node(job: Job, rng: np.random.Generator) -> tuple[int, ...]:
    node = int(rng.integers(job.n_nodes))
    return tuple(range(node * job.per_node, (node + 1) * job.per_node))
