"""Whether `slurm-gpu doctor` sees what keeps lent GPUs from coming back."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from slurm_gpu.cli.checks import job_submit
from slurm_gpu.cli.checks.finding import Level
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


def test_what_is_lent_comes_back(installed: Installation, policy_file: Path) -> None:
    finding = worst(job_submit.lending(dataclasses.replace(installed.at(), policy_file=policy_file)))
    assert finding.level is Level.OK
    assert finding.message.startswith("what is lent comes back within ")


def test_without_preemption_it_never_does(installed: Installation, policy_file: Path) -> None:
    installed.conf["PreemptType"] = "(null)"
    finding = worst(job_submit.lending(dataclasses.replace(installed.at(), policy_file=policy_file)))
    assert finding.level is Level.FAIL
    assert finding.message == "slurm.conf lacks PreemptType=preempt/qos: what is lent does not come back"
    assert "PreemptMode=REQUEUE in slurm.conf; restart slurmctld" in finding.remedy


@pytest.mark.parametrize("text", [None, "version: 1\n", "version: 2\n"])
def test_where_nothing_is_lent_nothing_is_missing(
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
