"""Test that four parallel submitters never exceed a limit, whatever happens meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab

from .overshoot import KINDS, Kind, Play
from .seconds import leave_no_job

ROUNDS = int(os.environ.get("SLURM_GPU_TEST_ROUNDS", "1"))


@pytest.fixture(scope="module", params=["table", pytest.param("snapshot", marks=pytest.mark.long)])
def bare(request: pytest.FixtureRequest, lab_with: Callable[..., Lab]) -> Iterator[tuple[Lab, str]]:
    """Start Slurm without native limits, our job_submit.lua, and slurm-gpuctld if its snapshot is used."""
    lab = lab_with(services=False, native_limits=False, controller=request.param == "snapshot")
    yield lab, request.param
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])


@pytest.fixture
def counted(bare: tuple[Lab, str]) -> Iterator[tuple[Lab, str]]:
    lab, counted_by = bare
    if counted_by == "snapshot":
        lab.daemons["slurm-gpuctld"].start()
    yield bare
    leave_no_job(lab)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_no_round_exceeds_the_limit(
    counted: tuple[Lab, str], tmp_path: Path, kind: Kind, number: int
) -> None:
    lab, counted_by = counted
    if kind.needs_snapshot and counted_by != "snapshot":
        pytest.skip("GPU-hours are unknown without a snapshot")
    outcome = Play(lab, kind, counted_by, number, tmp_path / "policy.yaml").run()
    outcome.log()
    print(outcome)
    assert outcome.overshoot == 0, outcome
