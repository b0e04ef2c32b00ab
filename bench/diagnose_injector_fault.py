"""Define a fault that bench/diagnose.py injects, and functions that all kinds of faults use.

The size of a fault is the relative increase of a time or of work. For a slow GPU, this is its computing time;
for links, input and unequal sequences, the time of a step. For other imbalances, it is the work of the most
loaded workers.
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
    """A fault from `since_s` on (None: from the start).

    `culprits` are workers; with `exact`, the verdict must name them and no others. If `named` is false, the
    recorded values do not identify workers: the verdict may name none, the culprits, or all.
    """

    cause: Cause
    kind: str
    size: float
    since_s: float | None
    condition: Condition = field(default_factory=Condition)
    stop: Pause | None = None
    """The state of the GPUs in a hang."""
    before: Pause | None = None
    """A pause before the fault, such as a restart."""
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
