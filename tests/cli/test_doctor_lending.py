"""`slurm-gpu doctor` reports what prevents lent GPUs from returning."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.finding import Level
from slurm_gpu.cli.doctor.checks.slurm import job_submit
from tests.cli.installation import Installation, levels, worst

POLICY = """\
version: 1
manages: {qos: [sg-*]}
groups: {vision: {accounts: [vision]}}
owners: {vision: {gpus: 4, lend_in: sg-loans, return_within: 10m}}
"""
PREEMPTION = {
    "PreemptType": "preempt/qos",
    "PreemptMode": "REQUEUE",
    "AccountingStorageEnforce": "associations,limits,qos",
}


@pytest.fixture
def policy_file(installed: Installation, tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    installed.conf.update(PREEMPTION)
    return path


def test_a_complete_setup_is_ok(installed: Installation, policy_file: Path) -> None:
    finding = worst(job_submit.lending(dataclasses.replace(installed.at(), policy_file=policy_file)))
    assert finding.level is Level.OK
    assert finding.message.startswith("lent GPUs return within ")


def test_missing_preemption_is_reported(installed: Installation, policy_file: Path) -> None:
    installed.conf["PreemptType"] = "(null)"
    finding = worst(job_submit.lending(dataclasses.replace(installed.at(), policy_file=policy_file)))
    assert finding.level is Level.FAIL
    assert finding.message == "slurm.conf lacks PreemptType=preempt/qos: lent GPUs are not returned"
    assert "PreemptMode=REQUEUE in slurm.conf; restart slurmctld" in finding.remedy


@pytest.mark.parametrize("text", [None, "version: 1\n", "version: 2\n"])
def test_a_policy_without_owners_is_skipped(
    installed: Installation, policy_file: Path, text: str | None
) -> None:
    installed.conf["PreemptType"] = "(null)"
    if text is None:
        policy_file.unlink()
    else:
        policy_file.write_text(text)
    assert levels(job_submit.lending(dataclasses.replace(installed.at(), policy_file=policy_file))) == [
        "skipped"
    ]


def test_an_unreadable_policy_is_skipped(
    installed: Installation, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.conf["JobSubmitPlugins"] = "lua"
    at = dataclasses.replace(installed.at(), policy_file=policy_file)
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK)
    for check in (job_submit.lending, job_submit.script):
        (finding,) = check(at)
        assert finding.level is Level.SKIPPED
        assert finding.message.endswith("; run doctor as root")


def test_an_invalid_or_unreadable_policy_leaves_owners_unknown(
    installed: Installation, policy_file: Path
) -> None:
    at = dataclasses.replace(installed.at(), policy_file=policy_file)
    policy_file.write_text("version: 1\nowners: 3\n")
    (finding,) = job_submit.lending(at)
    assert finding.message.startswith(f"lending cannot be checked until this is fixed: {policy_file}:2:")
    policy_file.unlink()
    policy_file.mkdir()
    (finding,) = job_submit.lending(at)
    assert finding.message.endswith(f"is fixed: {policy_file}: cannot be read: Is a directory")
