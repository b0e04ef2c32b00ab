"""Amounts are read as admins write them, and an ambiguous number without a unit is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.text.units import (
    few,
    format_duration,
    format_memory_mib,
    format_mgpu,
    format_slurm_time,
    parse_duration,
    parse_memory_mib,
    parse_slurm_time,
)
from tests.docs.pages import ROOT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("4h", 14400),
        ("7d", 604800),
        ("2w", 1209600),
        ("1.5h", 5400),
        ("1-0", 86400),
    ],
)
def test_durations(text: str, seconds: float):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["60", "", "7 days", "-1h", "h", "1h30m"])
def test_an_invalid_duration_is_quoted(text: str):
    with pytest.raises(ValueError, match=f"{text!r} is not a"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:15", 1815),
        ("1:30:15", 5415),
        ("2-0", 172800),
        ("2-3:30", 185400),
        ("7-00:00:00", 604800),
    ],
)
def test_slurm_times(text: str, seconds: float):
    assert parse_slurm_time(text) == seconds


@given(st.integers(0, 10**8))
def test_slurm_time_with_days_or_without(seconds: int):
    hours, rest = divmod(seconds, 3600)
    assert parse_slurm_time(f"{hours // 24}-{hours % 24:02}:{rest // 60:02}:{rest % 60:02}") == seconds
    assert parse_slurm_time(f"{hours}:{rest // 60:02}:{rest % 60:02}") == seconds


@given(st.integers(0, 10**8))
def test_duration_round_trip(seconds: int):
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "mib"),
    [("64G", 65536), ("512M", 512), ("1.5T", 1572864), ("2048K", 2), ("64GiB", 65536), ("1g", 1024)],
)
def test_memory(text: str, mib: float):
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize("text", ["64", "G", "64 potatoes", "-1G"])
def test_an_invalid_amount_of_memory_is_quoted(text: str):
    with pytest.raises(ValueError, match=f"{text!r} is not an amount of memory"):
        parse_memory_mib(text)


def test_memory_for_people():
    assert [format_memory_mib(mib) for mib in (512, 1024, 65536, 1572864, 0)] == [
        "512M",
        "1G",
        "64G",
        "1.5T",
        "0M",
    ]


def test_gpus_in_thousandths():
    assert [format_mgpu(mgpu) for mgpu in (2000, 250, 0, 1500)] == ["2", "0.25", "0", "1.5"]


@given(seconds=st.integers(0, 10**9))
def test_a_time_limit_is_printed_so_that_slurm_reads_the_same(seconds: int) -> None:
    assert parse_slurm_time(format_slurm_time(seconds)) == seconds


def test_time_limits_are_formatted_as_in_squeue_and_sacctmgr() -> None:
    assert [format_slurm_time(s) for s in (0, 90, 5400, 172800)] == [
        "00:00:00",
        "00:01:30",
        "01:30:00",
        "2-00:00:00",
    ]


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=30), st.integers(1, 12))
def test_each_name_is_shown_or_counted(names: list[str], most: int) -> None:
    shown, _, more = few(names, most).partition(" and ")
    n_shown = len(shown.split(", ")) if shown else 0
    assert n_shown == min(len(names), most)
    assert int(more.partition(" ")[0] or 0) == len(names) - n_shown


_CUT = re.compile(r"join\((?:[^()]|\([^()]*\))*\[:\s*[_A-Z0-9]+\]|islice\([^()\n]*(?:NAMED|SHOWN)")
_WHOLE = {"cli/colocation/plan.py": "_FIELDS[:2]", "database/accounting/run_row.py": "NAME_LENGTH"}
"""Slices that omit no name: two required columns of a file, and the content of a database column."""


def test_every_shortened_list_of_names_counts_the_rest() -> None:
    """`few` adds the number of omitted names."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sorted((ROOT / "slurm_gpu").rglob("*.py"))
        for match in _CUT.finditer(path.read_text(encoding="utf-8"))
        if path.name != "units.py"
        and _WHOLE.get(str(path.relative_to(ROOT / "slurm_gpu")), "\0") not in match[0]
    ]
    assert found == []
