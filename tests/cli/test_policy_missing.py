"""Without policy.yaml, commands report how to create one."""

from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine


def test_a_missing_policy_is_reported_with_advice(slurm_gpu: CommandLine, tmp_path: Path):
    path = tmp_path / "policy.yaml"
    advice = f"{path}: does not exist: write a policy (examples: docs/cookbook.md), or pass FILE\n"
    assert slurm_gpu("policy", "check") == 1
    assert slurm_gpu.err == advice
    for command in ("show", "replay", "adjust", "status", "plan"):
        assert slurm_gpu("policy", command) == 2
        assert slurm_gpu.err == f"slurm-gpu: {advice}"


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_missing_file_that_was_named_gets_no_advice(slurm_gpu: CommandLine, tmp_path: Path, command: str):
    path = tmp_path / "other.yaml"
    assert slurm_gpu("policy", command, str(path)) == (1 if command == "check" else 2)
    assert f"{path}: " in slurm_gpu.err
    assert "cookbook" not in slurm_gpu.err
