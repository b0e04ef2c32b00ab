"""A training run with one slow GPU, and slurm-gpudbd's answers for its diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.errors import NotFoundError
from slurm_gpu.wire import Timeline
from slurm_gpu.wire.answers.runs import DeviceTimeline, NodeWindow, Run, RunTimeline
from tests.diagnose.training import Training
from tests.monitor.small_cluster import Here

_WIDTH_S = 16


class Drawn(Here):
    """A job whose last GPU is slow in the second half, and whose previous run was not measured."""

    def __init__(self, name: str = "train") -> None:
        super().__init__(churn=0.0)
        source = self.source
        found = next(job for job in source.cluster().jobs if job.state == "RUNNING" and job.n_gpus >= 8)
        self.job, self.user = found.id, found.user
        (stored,) = source.run(found.id)
        self.run = structs.replace(stored, name=name)
        assert stored.submit_s is not None
        self.older = structs.replace(self.run, submit_s=stored.submit_s - 90_000, devices=None)
        self.courses = self._courses()
        source.run = self._run  # type: ignore[method-assign]
        source.timelines = lambda job: self.courses  # type: ignore[method-assign]
        source.windows = self._windows  # type: ignore[method-assign]

    def _run(self, job: str) -> Sequence[Run]:
        return (self.run, self.older) if job == self.job else ()

    def _windows(self, job: str) -> Sequence[NodeWindow]:
        raise NotFoundError("none was kept")

    def _courses(self) -> Sequence[RunTimeline]:
        devices = self.run.devices or ()
        training = Training(n=len(devices), n_bins=200, width_s=float(_WIDTH_S))
        training.clock[-1, 100:] *= 0.8
        values = training.values()
        start_s = (self.run.start_s or 0) // _WIDTH_S * _WIDTH_S
        stored = tuple(
            DeviceTimeline(
                node=record.node,
                device=record.device,
                timeline=Timeline(
                    width_s=_WIDTH_S,
                    start_s=start_s,
                    series={
                        metric.value: bytes(np.round(matrix[row] * 250).astype(np.uint8))
                        for metric, matrix in values.items()
                        if metric is not Metric.THROTTLE
                    },
                ),
            )
            for row, record in enumerate(devices)
        )
        return (
            RunTimeline(id=self.run.id, job_id=self.run.job_id, submit_s=self.run.submit_s, devices=stored),
        )
