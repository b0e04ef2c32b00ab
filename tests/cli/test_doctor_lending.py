"""Whether `slurm-gpu doctor` sees what keeps lent GPUs from coming back."""

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


def test_what_is_lent_comes_back(installed: Installation, policy_file: Path) -> None:
    finding = worst(job_submit.lending(dataclasses.replace(installed.at(), policy_file=policy_file)))
    assert finding.level is Level.OK
    assert finding.message.startswith("lent GPUs return within ")


def test_without_preemption_it_never_does(installed: Installation, policy_file: Path) -> None:
    installed.conf["PreemptType"] = "(null)"
    finding = worst(job_submit.lending(dataclasses.replace(installed.at(), policy_file=policy_file)))
    assert finding.level is Level.FAIL
    assert finding.message == "slurm.conf lacks PreemptType=preempt/qos: lent GPUs are not returned"
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


def test_what_is_not_for_everybody_to_read_is_no_mistake(
    installed: Installation, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.conf["JobSubmitPlugins"] = "lua"
    at = dataclasses.replace(installed.at(), policy_file=policy_file)
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK)
    for check in (job_submit.lending, job_submit.script):
        (finding,) = check(at)
        assert finding.level is Level.SKIPPED
        assert finding.message.endswith(" is not for everybody to read; run doctor as root")


def test_a_policy_with_mistakes_or_none_at_all_tells_of_no_owners(
    installed: Installation, policy_file: Path
) -> None:
    at = dataclasses.replace(installed.at(), policy_file=policy_file)
    policy_file.write_text("version: 1\nowners: 3\n")
    (finding,) = job_submit.lending(at)
    assert finding.message.startswith(f"who lends is unknown until this is fixed: {policy_file}:2:")
    policy_file.unlink()
    policy_file.mkdir()
    (finding,) = job_submit.lending(at)
    assert finding.message.endswith(f"is fixed: {policy_file}: cannot be read: Is a directory")
