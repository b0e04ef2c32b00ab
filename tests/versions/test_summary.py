"""One line per version shows the tests run and their failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.versions import summary

REPORT = """\
<testsuites><testsuite name="pytest" time="12.5">
<testcase classname="tests.lab.test_up" name="test_it_comes_up"/>
<testcase classname="tests.lab.test_up" name="test_other"><skipped message="not here"/></testcase>
{more}</testsuite></testsuites>
"""
FAILED = '<testcase classname="tests.lab.test_down" name="test_it_goes"><failure message="no"/></testcase>'


def _results(directory: Path, *, most: int, more: str = "") -> Path:
    directory.mkdir()
    (directory / "version").write_text("slurm-wlm 24.11.5\n")
    (directory / "tests.xml").write_text(REPORT.format(more=more))
    row = {
        "kind": "gpus",
        "counted_by": "table",
        "number": 0,
        "overshoot": most - 7,
        "judged": 90,
        "refused_with_room": 12,
        "room_unused_s": 1.25,
    }
    (directory / "rounds.jsonl").write_text(f"{json.dumps(row)}\n")
    return directory


def test_all_went_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summary.main([str(_results(tmp_path / "24.11", most=7))]) == 0
    assert capsys.readouterr().out == (
        "Slurm 24.11.5: 1 tests passed, 0 failed, 1 skipped; 1 rounds (1 gpus by table), 0 overshoots, "
        "12 of 90 submissions refused with room that was up to 1.2 s old; 12 s\n"
    )


def test_a_failed_test_and_an_exceeded_limit_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = _results(tmp_path / "a", most=7)
    failed = _results(tmp_path / "b", most=7, more=FAILED)
    exceeded = _results(tmp_path / "c", most=8)
    assert summary.main([str(good), str(failed)]) == 1
    assert "  failed: tests/lab/test_down::test_it_goes" in capsys.readouterr().out.splitlines()
    assert summary.main([str(good), str(exceeded)]) == 1
    assert "1 overshoots" in capsys.readouterr().out


def test_a_version_without_results_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "26.05").mkdir()
    assert summary.main([str(tmp_path / "26.05")]) == 1
