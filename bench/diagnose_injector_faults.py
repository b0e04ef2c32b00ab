"""Draw faults of each class in turn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bench import diagnose_injector_gpus as gpus
from bench import diagnose_injector_waits as waits
from bench.diagnose_injector_fault import Fault
from bench.diagnose_injector_job import Job
from slurm_gpu.diagnose.verdict import Cause

SIZES = (0.05, 0.60)


def draw_fault(cause: Cause, number: int, job: Job, length_s: float, rng: np.random.Generator) -> Fault:
    """Return the `number`th fault of a class."""
    kinds = _KINDS[cause]
    turns = (kinds[(number + later) % len(kinds)] for later in range(len(kinds)))
    kind = next(kind for kind in turns if _fits(kind, job))
    return kind(job, float(rng.uniform(*SIZES)), length_s, rng)


Kind = Callable[[Job, float, float, np.random.Generator], Fault]


def _fits(kind: Kind, job: Job) -> bool:
    if kind is gpus.stage:
        return job.pipeline > 1
    if kind is waits.nvlink:
        return job.model.nvlink is not None
    if kind is waits.sockets:
        return job.n_nodes > 2
    return True


def wants_pipeline(cause: Cause, number: int) -> bool | None:
    """Return True if the job of the `number`th fault must have pipeline stages, and None otherwise."""
    kind = _KINDS[cause][number % len(_KINDS[cause])]
    return True if kind is gpus.stage else None


_KINDS: dict[Cause, tuple[Kind, ...]] = {
    Cause.IMBALANCE: (gpus.stage, gpus.shard, gpus.sequence, gpus.shard),
    Cause.SLOW: (
        gpus.slow_by_heat,
        gpus.slow_memory,
        gpus.slow_clock,
        gpus.slow_node,
        gpus.failing,
        gpus.slow_by_heat,
        gpus.slow_clock,
    ),
    Cause.COMMUNICATION: (waits.congestion, waits.nvlink, waits.link, waits.sockets),
    Cause.STARVATION: (waits.starved_all, waits.starved_node, waits.starved_worker),
    Cause.HANG: (waits.stuck, waits.deadlock, waits.no_data),
}
CAUSES = tuple(_KINDS)
