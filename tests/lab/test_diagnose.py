"""Diagnose a training run with each kind of fault, from the driver to `slurm-gpu diagnose`."""

from __future__ import annotations

import pytest

from bench.diagnose_lab import OPTIONS, TrainingResult, run
from slurm_gpu.diagnose.verdict import Cause
from tests.lab.conftest import LabWith

WELL_S, ILL_S = 120, 240
"""If links are slow for all workers, the watch takes at least 168 s to report this."""
SEED, SIZE = 1, 0.3


@pytest.mark.long
@pytest.mark.parametrize(
    "faults",
    [("heat", "stuck worker"), ("congestion", "healthy"), ("shard", "starved node")],
    ids=", ".join,
)
def test_cause_and_culprit_are_reported_during_and_after_the_job(
    lab_with: LabWith, faults: tuple[str, str]
) -> None:
    lab = lab_with(native_limits=False, job_submit=OPTIONS.job_submit, gpus=OPTIONS.gpus)
    for found in run(lab, faults, SEED, SIZE, WELL_S, ILL_S):
        assert found.live is not None, found
        assert (found.live.cause, found.live.named) == (found.cause, True), found
        assert reported_after_the_job(found), found
        assert found.alarms == [], found
        if found.cause != Cause.HEALTHY:
            assert found.watch is not None, found  # without a request


def reported_after_the_job(found: TrainingResult) -> bool:
    """Return whether the timeline names the fault; hangs of a finished job need ten minutes."""
    assert found.over is not None
    return found.over.named or (found.cause == Cause.HANG and found.over.cause == Cause.HEALTHY)
