"""`slurm-gpu doctor` reports what prevents urgent jobs from starting first and being counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.finding import CheckResult, Level
from slurm_gpu.cli.doctor.checks.slurm import job_submit
from tests.cli.installation import Installation, worst

POLICY = """\
version: 1
manages: {qos: [urgent]}
groups: {leads: {users: [alice]}}
urgent: {for: [leads], jobs_running: 2, preempts: [normal], why: "Deadlines."}
"""
RIGHT = {
    "PreemptType": "preempt/qos",
    "PreemptMode": "REQUEUE",
    "PriorityType": "priority/multifactor",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageEnforce": "associations,limits,qos",
}


def found(installed: Installation, tmp_path: Path, text: str = POLICY) -> CheckResult:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return worst(job_submit.urgent(dataclasses.replace(installed.at(), policy_file=path)))


def test_a_complete_setup_is_ok(installed: Installation, tmp_path: Path) -> None:
    installed.conf.update(RIGHT)
    finding = found(installed, tmp_path)
    assert (finding.level, finding.message) == (Level.OK, "urgent jobs start first, at most 2 at once")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("PreemptType", "preempt/none", "urgent jobs cannot preempt others"),
        ("PreemptMode", "OFF", "preempted jobs are not requeued"),
        ("PriorityType", "priority/basic", "urgent jobs do not start before others"),
        ("AccountingStorageEnforce", "associations,limits", "any number of urgent jobs can run"),
        ("AccountingStorageType", "accounting_storage/none", "urgent jobs require slurmdbd"),
    ],
)
def test_missing_settings_are_reported(
    installed: Installation, tmp_path: Path, key: str, value: str, message: str
) -> None:
    installed.conf.update(RIGHT | {key: value})
    finding = found(installed, tmp_path)
    assert finding.level is Level.FAIL
    assert message in finding.message
    assert finding.remedy


def test_without_preempts_no_preemption_is_needed(installed: Installation, tmp_path: Path) -> None:
    installed.conf.update(RIGHT | {"PreemptType": "preempt/none"})
    assert found(installed, tmp_path, POLICY.replace(" preempts: [normal],", "")).level is Level.OK


@pytest.mark.parametrize("text", ["version: 1\n", "version: 2\n"])
def test_a_policy_without_urgent_jobs_is_skipped(installed: Installation, tmp_path: Path, text: str) -> None:
    assert found(installed, tmp_path, text).level is Level.SKIPPED
