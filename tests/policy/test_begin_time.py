"""--begin is read as Slurm's parse_time() reads it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from slurm_gpu.errors import UsageError
from slurm_gpu.policy.explain.begin_time import begin_time
from slurm_gpu.policy.explain.sbatch import parse_command

# 2026-11-30 10:30:05 in Seoul.
NOW_S = 1_796_002_205


@pytest.fixture(autouse=True)
def _seoul(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Seoul")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def local(value: str) -> str:
    begin_s = begin_time(value, NOW_S)
    assert begin_s is not None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin_s))


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("now", "2026-11-30 10:30:05"),
        ("now+90", "2026-11-30 10:31:35"),
        ("now + 2 hours", "2026-11-30 12:30:05"),
        ("NOW+1week", "2026-12-07 10:30:05"),
        ("now-1day", "2026-11-29 10:30:05"),
        ("uts1796002205", "2026-11-30 10:30:05"),
        ("16:00", "2026-11-30 16:00:00"),
        ("10:30", "2026-12-01 10:30:00"),
        ("4:00pm", "2026-11-30 16:00:00"),
        ("12:05 AM", "2026-12-01 00:05:00"),
        ("teatime", "2026-11-30 16:00:00"),
        ("midnight", "2026-12-01 00:00:00"),
        ("today", "2026-11-30 00:00:00"),
        ("tomorrow", "2026-12-01 00:00:00"),
        ("noon tomorrow", "2026-12-01 12:00:00"),
        ("2027-01-20T12:34:56", "2027-01-20 12:34:56"),
        ("2027-1-2", "2027-01-02 00:00:00"),
        ("0120", "2027-01-20 00:00:00"),
        ("12/01", "2026-12-01 00:00:00"),
        ("12.24.27", "2027-12-24 00:00:00"),
        ("12/01-08:15", "2026-12-01 08:15:00"),
    ],
)
def test_each_format_of_slurm_is_read(value: str, moment: str) -> None:
    assert local(value) == moment


@pytest.mark.parametrize("value", ["", "soon", "25:00", "13/01", "2026-11-30T10:61", "now+1year", "T"])
def test_other_values_are_refused_as_sbatch_does(value: str) -> None:
    with pytest.raises(UsageError, match=r"^--begin: .* must be a time, such as "):
        begin_time(value, NOW_S)


def test_the_script_receives_the_time() -> None:
    words = ["sbatch", "-b", "uts1796002205", "--wrap=true"]
    assert parse_command(words, {}).description(1001, "alice")["begin_time"] == NOW_S
    assert "begin_time" not in parse_command(["sbatch", "--wrap=true"], {}).description(1001, "alice")
