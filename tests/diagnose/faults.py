"""Provide faulty training runs for the tests in this folder."""

from itertools import pairwise

import numpy as np

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import WorkerSeries, align
from tests.diagnose.training import START_S, Training

SEEDS = range(3)
# Metrics of GPUs before Hopper.
OLDER = (Metric.UTIL, Metric.MEM_USED, Metric.POWER, Metric.SM_CLOCK, Metric.NVLINK, Metric.PCIE)


def culprits(verdict):
    return [worker.rank for worker in verdict.culprits]


def a_slow_clock(slowdown=0.2, **more):
    """Return a training run in which heat slows down worker 5 from the fourth minute on."""
    training = Training(**more)
    training.clock[5, training.at(4) :] *= 1 - slowdown
    training.throttle[5, training.at(4) :] = 0.8
    return training


def a_hang(**more):
    """Return a training run in which worker 3 stops after eight minutes, and the others spin."""
    training = Training(**more)
    values = training.values()
    stop = training.at(8)
    for metric, level in ((Metric.TENSOR, 0), (Metric.NVLINK, 0), (Metric.PCIE, 0), (Metric.SM_ACTIVE, 0.1)):
        if metric in values:
            values[metric][:, stop:] = level
    values[Metric.POWER][:, stop:] = 0.3
    values[Metric.UTIL][:, stop:] = 1.0
    values[Metric.UTIL][3, stop:] = 0.0
    return training, values


def as_series(training, values, **more):
    courses = [
        WorkerSeries(
            worker=worker,
            start_s=START_S,
            width_s=training.width_s,
            values={metric: matrix[row] for metric, matrix in values.items()},
        )
        for row, worker in enumerate(training.workers)
    ]
    return align(courses, **more)


def in_steps_of(seconds, training, ahead=(0, 0)):
    """Return a training run with steps of `seconds`: two thirds computing, then one third communication.

    `ahead` contains the seconds by which the clocks of its nodes are ahead.
    """
    values = training.values()
    at = np.arange(training.n_bins)
    for row, worker in enumerate(training.workers):
        computes = (at + ahead[int(worker.node[1:]) - 1]) % seconds < 2 * seconds / 3
        for metric in values.keys() & {Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER}:
            values[metric][row] *= np.where(computes, 1.2, 0.2)
        values[Metric.NVLINK][row] *= np.where(computes, 0.1, 2.0)
    return as_series(training, {metric: np.clip(matrix, 0, 1) for metric, matrix in values.items()})


def as_read(training, values, each=10, phases=(0, 4)):
    """Average values as nodes do that read their counters every `each` seconds, at different moments.

    Utilisation and memory are read each second.
    """
    read = {metric: matrix.copy() for metric, matrix in values.items()}
    for row, worker in enumerate(training.workers):
        phase = phases[(int(worker.node[1:]) - 1) % len(phases)]
        edges = np.unique(np.clip(np.arange(phase - each, training.n_bins + each, each), 0, training.n_bins))
        for metric, matrix in read.items():
            if metric not in (Metric.UTIL, Metric.MEM_USED):
                for first, stop in pairwise(edges):
                    matrix[row, first:stop] = values[metric][row, first:stop].mean()
    return as_series(training, read)
