"""Count the GPUs of the cluster at one moment, and average the counts over five minutes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.gpu_count import agreed_per_gpu, job_mgpu
from slurm_gpu.slurm.occupancy import occupancy
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.usage import BINS_S

BIN_S = min(BINS_S.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """The numbers of GPUs at one moment, or their means over a time."""

    gpus: float
    """GPUs of nodes in service, and allocated GPUs of other nodes."""
    allocated: float
    """GPUs that are allocated to jobs, even if only in part."""
    busy: float | None
    """`allocated` × the mean utilisation of the measured GPUs; None if too few of them are measured."""
    waiting_jobs: float
    """Pending jobs; each task of an array counts."""
    waiting_gpus: float
    """GPUs that pending jobs request; jobs whose number of GPUs is unknown do not count."""


def count_gpus(
    nodes: Mapping[str, SlurmNode],
    jobs: Iterable[QueuedJob],
    live: Mapping[str, Live],
    min_coverage: float,
) -> UsageSample:
    """Return the numbers of GPUs according to slurmctld's nodes and jobs, and to the nodes' live values.

    `busy` requires the utilisation of at least the fraction `min_coverage` of the allocated GPUs.
    """
    jobs = list(jobs)
    gpus = allocated = 0
    for entry in occupancy(nodes.values(), jobs):
        shared = {position for holder in entry.holders for position in holder.shared_gpus}
        here = min(entry.node.n_gpus, sum(entry.node.gpus_allocated.values()) + len(shared))
        allocated += here
        gpus += entry.node.n_gpus if entry.in_service else here
    measured = [
        device.util_pct
        for name, values in live.items()
        if name in nodes  # machines without Slurm also send live values
        for device in values.devices.values()
        if device.jobs and device.util_pct is not None
    ]
    is_known = allocated == 0 or (bool(measured) and len(measured) >= min_coverage * allocated)
    mean_pct = math.fsum(measured) / len(measured) if measured else 0.0
    per_gpu = agreed_per_gpu(nodes.values())
    pending = [job for job in jobs if job.state == "PENDING"]
    return UsageSample(
        gpus=gpus,
        allocated=allocated,
        busy=allocated * mean_pct / 100 if is_known else None,
        waiting_jobs=sum(job.n_tasks for job in pending),
        waiting_gpus=sum(job.n_tasks * (job_mgpu(job, per_gpu) or 0) for job in pending) / 1000,
    )


@dataclass(slots=True)
class UsageBin:
    """The samples of the five minutes from `from_s`, UTC epoch seconds."""

    from_s: int
    samples: list[UsageSample] = field(default_factory=list)

    @classmethod
    def at(cls, now_s: float) -> UsageBin:
        """Return the empty bin that contains a time."""
        return cls(int(now_s // BIN_S) * BIN_S)

    def mean(self) -> UsageSample:
        """Return the mean of the samples, of which there must be at least one."""
        return mean_of([(1, sample) for sample in self.samples])


def mean_of(weighted: Iterable[tuple[int, UsageSample]]) -> UsageSample:
    """Return the weighted mean of samples.

    `busy` is the mean of `allocated` × the utilisation in the samples in which `busy` is known. It is None if
    these are less than half of the samples.
    """
    weighted = list(weighted)

    def mean(values: Iterable[tuple[int, float]]) -> float:
        values = list(values)
        return math.fsum(n * value for n, value in values) / sum(n for n, _ in values)

    allocated = mean((n, sample.allocated) for n, sample in weighted)
    known = [(n, sample.busy, sample.allocated) for n, sample in weighted if sample.busy is not None]
    is_known = 2 * sum(n for n, _, _ in known) >= sum(n for n, _ in weighted)
    busy_there, allocated_there = (math.fsum(one[0] * one[at] for one in known) for at in (1, 2))
    utilisation = busy_there / allocated_there if allocated_there else 0.0
    return UsageSample(
        gpus=mean((n, sample.gpus) for n, sample in weighted),
        allocated=allocated,
        busy=allocated * utilisation if is_known else None,
        waiting_jobs=mean((n, sample.waiting_jobs) for n, sample in weighted),
        waiting_gpus=mean((n, sample.waiting_gpus) for n, sample in weighted),
    )
