"""Record the results of jobs that shared GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.simulation.sharing import SharingStretch
from slurm_gpu.colocation.simulation.world import World

Floats = NDArray[np.float64]


class SharingTransition(StrEnum):
    """A change in the state of a job."""

    SUBMIT = "submit"
    START = "start"
    PHASE = "phase"
    """The job entered its next phase."""
    END = "end"
    OUT_OF_MEMORY = "out of memory"
    """The job was killed; it will wait again and restart from its beginning."""
    SEPARATED = "separated"
    """The guard requeued the job, because it or a co-runner was slowed down too much."""
    REQUEUE = "requeue"
    """The job waits again."""


class SharingEvent(NamedTuple):
    """One line of the log."""

    at_s: float
    what: SharingTransition
    job: int
    gpu: int = -1
    """The GPU on which the job runs; -1 if it is not running."""


@dataclass(frozen=True)
class SharingOutcome:
    """Columns with one value per job, and means over all GPUs from the first submission to the last end."""

    submit_s: Floats
    start_s: Floats
    """Start of each job's completed run."""
    first_start_s: Floats
    end_s: Floats
    alone_s: Floats
    """Work of each job, in seconds of running alone."""
    kills: NDArray[np.int32]
    """Number of times that each job ran out of memory."""
    separations: NDArray[np.int32]
    """Number of times that the guard requeued each job."""
    utilisation: float | None
    """Mean fraction of the time in which kernels ran; None if unknown.

    On each GPU, each job contributes its utilisation when running alone × its speed; the sum is at most 1.
    """
    memory: float | None
    """Mean fraction of GPU memory in use; None if unknown."""
    memory_peak_mib: float | None
    """Maximum memory in use on any GPU at any time; None if unknown."""
    together: float
    """Mean number of jobs on a GPU while it has at least one."""
    most_together: int
    log: tuple[SharingEvent, ...]

    @property
    def makespan_s(self) -> float:
        """Return the time from the first submission to the last end."""
        return float(self.end_s.max() - self.submit_s.min()) if len(self.end_s) else 0.0

    @property
    def slowdown(self) -> Floats:
        """Return the duration of each completed run, relative to running alone."""
        return (self.end_s - self.start_s) / self.alone_s

    @property
    def wait_s(self) -> Floats:
        """Return each job's time from submission to its first start."""
        return self.first_start_s - self.submit_s

    @property
    def out_of_memory(self) -> int:
        """Return the total number of times that jobs ran out of memory."""
        return int(self.kills.sum())

    @property
    def placements(self) -> int:
        """Return the total number of times that jobs were started."""
        return sum(event.what is SharingTransition.START for event in self.log)


class StretchTally:
    """Sums over the stretches of all GPUs, from which the outcome is computed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._util_s: float | None = 0.0
        self._memory_mib_s = self._jobs_s = self._busy_s = 0.0
        self._peak_mib: float | None = None
        self._most = 0

    def add(self, stretch: SharingStretch) -> None:
        """Add one stretch."""
        seconds, n = stretch.to_s - stretch.from_s, len(stretch.ran)
        if not seconds > 0 or not n:
            return
        self._most = max(self._most, n)
        self._jobs_s += n * seconds
        self._busy_s += seconds
        memory_mib = stretch.memory_mib
        if memory_mib is not None:
            self._memory_mib_s += memory_mib * seconds
            self._peak_mib = memory_mib if self._peak_mib is None else max(self._peak_mib, memory_mib)
        use = 0.0
        for one in stretch.ran:
            util = self._world.profiles[one.application].phases[one.phase].util
            if util is None:
                self._util_s = None
            else:
                use += util * one.speed
        if self._util_s is not None:
            self._util_s += min(use, 1.0) * seconds

    def outcome(
        self,
        n_gpus: int,
        submit_s: Floats,
        alone_s: Floats,
        kills: NDArray[np.int32],
        separations: NDArray[np.int32],
        log: Sequence[SharingEvent],
    ) -> SharingOutcome:
        """Compute the outcome from all added stretches, the given columns and the log.

        The times of starts and ends are taken from the log.
        """
        n = len(submit_s)
        first, last, end = (np.full(n, math.nan) for _ in range(3))
        for event in log:
            if event.what is SharingTransition.START:
                last[event.job] = event.at_s
                if math.isnan(first[event.job]):
                    first[event.job] = event.at_s
            elif event.what is SharingTransition.END:
                end[event.job] = event.at_s
        gpu_s = n_gpus * float(end.max() - submit_s.min()) if n else 0.0
        has_memory = self._peak_mib is not None and gpu_s > 0 and math.isfinite(self._world.capacity_mib)
        return SharingOutcome(
            submit_s=submit_s,
            start_s=last,
            first_start_s=first,
            end_s=end,
            alone_s=alone_s,
            kills=kills,
            separations=separations,
            utilisation=None if self._util_s is None or not gpu_s > 0 else self._util_s / gpu_s,
            memory=self._memory_mib_s / (gpu_s * self._world.capacity_mib) if has_memory else None,
            memory_peak_mib=self._peak_mib,
            together=self._jobs_s / self._busy_s if self._busy_s > 0 else 0.0,
            most_together=self._most,
            log=tuple(log),
        )
