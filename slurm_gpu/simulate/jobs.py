"""Store millions of simulated jobs in columns; each distinct request is stored once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.simulate.request import ResourceRequest as ResourceRequest

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJob:
    """One job, for callers with few jobs."""

    request: ResourceRequest
    submit_s: float
    run_s: float
    limit_s: float = math.inf
    partition: int = 0
    priority: float = 0.0
    """Jobs with higher priority start first; jobs with equal priority start in the order of submission."""
    cancel_s: float = math.inf
    """The job is cancelled if it has not started by this time."""
    counters: tuple[int, ...] = ()
    """Indices of the limit counters that count the job."""
    qos: str = ""
    """Determines which jobs this job may preempt, and which jobs may preempt it."""


@dataclass(frozen=True)
class Jobs:
    """Jobs as columns of equal length in the order of submission; codes are indices into the tables."""

    submit_s: Floats
    """Earliest possible start: later than the submission if the job had a begin time or a dependency."""
    run_s: Floats
    limit_s: Floats
    priority: Floats
    cancel_s: Floats
    request: Codes
    partition: Codes
    counters: Codes
    qos: Codes
    requests: Sequence[ResourceRequest]
    counter_sets: Sequence[tuple[int, ...]] = ((),)
    qos_names: Sequence[str] = ("",)

    def __post_init__(self) -> None:
        n = len(self.submit_s)
        columns = (
            self.run_s,
            self.limit_s,
            self.priority,
            self.cancel_s,
            self.request,
            self.partition,
            self.counters,
            self.qos,
        )
        if any(len(column) != n for column in columns):
            raise ValueError("the columns of jobs differ in length")
        if n and (np.isnan(self.submit_s).any() or (np.diff(self.submit_s) < 0).any()):
            raise ValueError("jobs must be in the order of submission")
        if n and not ((self.run_s >= 0) & (self.limit_s > 0)).all():
            raise ValueError("run_s must not be negative, and limit_s must be positive")

    def __len__(self) -> int:
        return len(self.submit_s)

    @classmethod
    def of(cls, jobs: Iterable[ModelJob]) -> Jobs:
        """Build the columns of these jobs, sorted by submission time (stable)."""
        rows = sorted(jobs, key=lambda job: job.submit_s)
        requests = _Table[ResourceRequest]()
        counter_sets = _Table[tuple[int, ...]]()
        names = _Table[str]()

        def floats(values: Iterable[float]) -> Floats:
            return np.fromiter(values, dtype=np.float64, count=len(rows))

        def codes(values: Iterable[int]) -> Codes:
            return np.fromiter(values, dtype=np.int32, count=len(rows))

        return cls(
            submit_s=floats(job.submit_s for job in rows),
            run_s=floats(job.run_s for job in rows),
            limit_s=floats(job.limit_s for job in rows),
            priority=floats(job.priority for job in rows),
            cancel_s=floats(job.cancel_s for job in rows),
            request=codes(requests.code(job.request) for job in rows),
            partition=codes(job.partition for job in rows),
            counters=codes(counter_sets.code(job.counters) for job in rows),
            qos=codes(names.code(job.qos) for job in rows),
            requests=requests.values,
            counter_sets=counter_sets.values,
            qos_names=names.values,
        )


class _Table(Generic[T]):
    """Maps each distinct value to a code."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._codes: dict[T, int] = {}

    def code(self, value: T) -> int:
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = len(self.values)
            self.values.append(value)
        return code
