"""Trainings with a fault of each kind, on the whole way from the driver to `slurm-gpu diagnose`."""

from __future__ import annotations

import pytest

from bench.diagnose_lab import OPTIONS, Found, run
from slurm_gpu.diagnose.verdict import Cause
from tests.lab.conftest import LabWith

WELL_S, ILL_S = 120, 240
"""The watch tells links that are slow for all after 168 s and more."""
SEED, SIZE = 1, 0.3


@pytest.mark.long
@pytest.mark.parametrize(
    "faults",
    [("heat", "stuck worker"), ("congestion", "healthy"), ("shard", "starved node")],
    ids=", ".join,
)
def test_the_cause_and_the_culprit_are_told_while_it_runs_and_when_it_is_over(
    lab_with: LabWith, faults: tuple[str, str]
) -> None:
    lab = lab_with(native_limits=False, job_submit=OPTIONS.job_submit, gpus=OPTIONS.gpus)
    for found in run(lab, faults, SEED, SIZE, WELL_S, ILL_S):
        assert found.live is not None, found
        assert (found.live.cause, found.live.named) == (found.cause, True), found
        assert told_when_over(found), found
        assert found.alarms == [], found
        if found.cause != Cause.HEALTHY:
            assert found.watch is not None, found  # nobody had to ask


def told_when_over(found: Found) -> bool:
    """By the timeline; a hang of less than ten minutes nobody tells of a job that is over."""
    assert found.over is not None
    return found.over.named or (found.cause == Cause.HANG and found.over.cause == Cause.HEALTHY)
