"""Simulate a synchronous training run in which computing times determine every worker's metrics.

In each step, all workers spin until the slowest has finished; their counters follow from these times. The
model is small, and has no irregularities of real clusters except those that a test adds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import JobWorker, Series, WorkerSeries, align

START_S = 1_795_000_000.0
EVERYTHING = (
    *(Metric.UTIL, Metric.SM_ACTIVE, Metric.TENSOR, Metric.MEM_USED, Metric.POWER),
    *(Metric.SM_CLOCK, Metric.THROTTLE, Metric.NVLINK, Metric.PCIE),
)


@dataclass
class Training:
    """`n` workers, `per_node` on each node; set the arrays (n, n_bins) of a fault before calling `series`."""

    n: int = 16
    per_node: int = 8
    n_bins: int = 600
    width_s: float = 1.0
    seed: int = 1
    noise: float = 0.02
    metrics: tuple[Metric, ...] = EVERYTHING
    clock: np.ndarray = field(init=False)
    work: np.ndarray = field(init=False)
    """Relative amount of work in each step; 1 if all workers have the same amount."""
    speed: np.ndarray = field(init=False)
    """The GPU's speed except for its clock, such as that of its memory."""
    talk: np.ndarray = field(init=False)
    """Seconds of communication in each step, relative to one second of computing."""
    fetch: np.ndarray = field(init=False)
    """Seconds of a step in which the GPU has nothing to run."""
    runs: np.ndarray = field(init=False)
    """(n_bins,) whether the job computes."""

    def __post_init__(self):
        shape = (self.n, self.n_bins)
        self.clock, self.work, self.speed = np.full(shape, 0.95), np.ones(shape), np.ones(shape)
        self.talk, self.fetch = np.full(shape, 0.3), np.zeros(shape)
        self.throttle, self.memory = np.zeros(shape), np.full(self.n, 0.7)
        self.runs = np.ones(self.n_bins, dtype=bool)
        self.random = np.random.default_rng(self.seed)
        self.workers = tuple(
            JobWorker(node=f"n{i // self.per_node + 1}", device=f"GPU-{i:03}", rank=i) for i in range(self.n)
        )

    def at(self, minute: float) -> int:
        """Return the bin at this minute."""
        return int(minute * 60 / self.width_s)

    def values(self) -> dict[Metric, np.ndarray]:
        """Return all metrics of all workers in each bin, with noise."""
        computes = self.work / (self.speed * self.clock / 0.95)
        step = (computes + self.talk + self.fetch).max(axis=0)
        spins = np.maximum(step - computes - self.fetch, 0.0)
        shown = {
            Metric.UTIL: 1 - self.fetch / step,
            Metric.SM_ACTIVE: (0.9 * computes + 0.12 * spins) / step,
            Metric.TENSOR: 0.6 * self.work / (step * self.clock),
            Metric.POWER: 0.15 + (0.7 * computes * self.clock**2 * self.speed + 0.2 * spins) / step,
            Metric.NVLINK: 0.4 / step + np.zeros_like(computes),
            Metric.PCIE: 0.1 / step + np.zeros_like(computes),
            Metric.SM_CLOCK: self.clock,
            Metric.THROTTLE: self.throttle,
            Metric.MEM_USED: np.repeat(self.memory[:, None], self.n_bins, axis=1),
        }
        steady = {Metric.SM_CLOCK: 0.004, Metric.MEM_USED: 0.001, Metric.THROTTLE: 0.0}
        for metric, matrix in shown.items():
            own = 1 + 0.01 * self.random.standard_normal((self.n, 1)) * (metric is Metric.POWER)
            sigma = steady.get(metric, self.noise)
            matrix = matrix * own * (1 + sigma * self.random.standard_normal(matrix.shape))
            shown[metric] = np.clip(matrix, 0, 1)
            if metric not in (Metric.MEM_USED, Metric.SM_CLOCK):
                shown[metric][:, ~self.runs] = 0.13 if metric is Metric.POWER else 0.0
        return {metric: shown[metric] for metric in self.metrics}

    def worker_series(self) -> list[WorkerSeries]:
        """Return the series of each worker."""
        values = self.values()
        return [
            WorkerSeries(
                worker=worker,
                start_s=START_S,
                width_s=self.width_s,
                values={metric: matrix[row] for metric, matrix in values.items()},
            )
            for row, worker in enumerate(self.workers)
        ]

    def series(self, **more) -> Series:
        """Return the series of all workers on one grid."""
        return align(self.worker_series(), **more)
