"""`slurm-gpu doctor` skips checks of files that this user may not read, and reports no fault in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.daemons import web
from slurm_gpu.cli.doctor.checks.every import CHECKS, run_checks
from slurm_gpu.cli.doctor.checks.finding import Level, unreadable
from slurm_gpu.errors import InputError, InvalidFileError
from slurm_gpu.files.bounded_read import read_bytes
from tests.cli.conftest import PrivateFile
from tests.cli.installation import Installation


@pytest.mark.parametrize(
    ("name", "text", "checks"),
    [
        ("slurm-gpuweb.yaml", "{}\n", {"slurm-gpuweb"}),
        ("slurm-gpudbd.yaml", "{}\n", {"database file"}),
        ("notices.yaml", "mode: observe\n", {"notices"}),
        ("applications.yaml", "{}\n", {"applications"}),
        ("policy.yaml", "version: 1\n", {"policy", "lending", "urgent"}),
        ("slurm/job_submit.lua", "", {"policy", "snapshot"}),
    ],
)
def test_checks_of_files_that_this_user_may_not_read_are_skipped(
    installed: Installation, private: PrivateFile, name: str, text: str, checks: set[str]
):
    installed.conf["JobSubmitPlugins"] = "lua"
    process = installed.process(7, "/usr/bin/python3", "/usr/bin/slurm-gpuweb")
    (process / "status").write_text("Uid:\t4711\t4711\t4711\t4711\n")
    (installed.root / "slurm" / "job_submit.lua").write_text("")
    path = private(installed.root / name, text)
    chosen = [check for check in CHECKS if check.name in {"site file", "Slurm", *checks}]
    found = [one for one in run_checks(installed.at(), chosen) if one.check in checks]
    assert {one.check for one in found} == checks
    for result in found:
        assert (result.finding.level, result.finding.remedy) == (Level.SKIPPED, None), result
        assert result.finding.message.endswith(f" read {path}; run doctor as root"), result


def test_a_page_that_is_down_is_reported_although_its_settings_are_unreadable(
    installed: Installation, private: PrivateFile
):
    path = private(installed.root / "slurm-gpuweb.yaml", "{}\n")
    installed.site_file.write_text("cluster: neuron\nweb: http://127.0.0.1:1\n")
    first, second = web.answers(installed.at())
    assert (first.level, str(path) in first.message) == (Level.SKIPPED, True)
    assert (second.level, second.message.split(",")[0]) == (
        Level.FAIL,
        "slurm-gpuweb does not answer at http://127.0.0.1:1",
    )


def test_errors_in_files_remain_failures_next_to_unreadable_files(
    private: PrivateFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InputError) as raised:
        read_bytes(private(tmp_path / "file", "x"), 100)
    denied, wrong = raised.value, InputError("file", 1, 1, "no such key")
    assert unreadable(denied) is not None
    assert unreadable(InvalidFileError([denied])) is not None
    assert unreadable(InvalidFileError([denied, wrong])) is None
    assert unreadable(wrong) is None
    # The network denies a connection without naming a file.
    assert unreadable(PermissionError(13, "Permission denied")) is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert unreadable(denied) is None  # SELinux or a network file system denies root access
