"""Screening finds GPUs that deviate from their peers in live values, and ignores the beginning of a job."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_gpu.diagnose.live import METRICS, WIDTH_S, LiveTable, UnsharedWorker, screen
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.series import JobWorker

START_S = 1_790_000_000.0
WORKERS = [JobWorker(node=f"n{number // 4 + 1}", device=f"GPU-{number}") for number in range(8)]
LOADS = {
    Metric.UTIL: 0.0,
    Metric.POWER: 0.1,
    Metric.SM_CLOCK: 0.17,
    Metric.SM_ACTIVE: 0.0,
    Metric.TENSOR: 0.0,
}
TRAINS = {
    Metric.UTIL: 1.0,
    Metric.POWER: 0.8,
    Metric.SM_CLOCK: 0.9,
    Metric.SM_ACTIVE: 0.7,
    Metric.TENSOR: 0.4,
}


def strays(bins: int, *, begins: int, busier: float) -> float:
    """Return the deviation of GPU 5, which is `busier` in the last minute; n2 starts `begins` bins late."""
    table, noise = LiveTable(), np.random.default_rng(1)
    for number in range(bins):
        data = []
        for row, worker in enumerate(WORKERS):
            is_training = number >= 1 + begins * (worker.node == "n2")
            values = {m: v * noise.normal(1, 0.005) for m, v in (TRAINS if is_training else LOADS).items()}
            if row == 5 and number >= bins - 6:
                values[Metric.SM_ACTIVE] *= 1 + busier
            item = tuple(values.get(metric, np.nan) for metric in METRICS)
            data.append((UnsharedWorker(7, worker), START_S + number * WIDTH_S, item))
        table.update(START_S + number * WIDTH_S, {7: START_S}, data)
    (found,) = screen(table).deviations
    return float(found)


@pytest.mark.parametrize("begins", [0, 1, 3])
@pytest.mark.parametrize("bins", [18, 30, 58])
def test_a_gpu_that_becomes_busier_strays_however_the_job_began(bins: int, begins: int) -> None:
    assert strays(bins, begins=begins, busier=0.2) >= 1
    assert strays(bins, begins=begins, busier=0.0) < 1
