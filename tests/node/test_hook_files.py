"""Files of hooks are read, all other files are set aside, and none crashes the reader."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.node.allocation.hooks import (
    HookDirectory,
    HookFileError,
    HookKind,
    parse_positions,
    read_event,
)
from tests.node.fakes import BOOT, FakeClock
from tests.node.machine import Machine

GOOD = {
    "EVENT": "prolog",
    "AT_NS": "1795000000123456789",
    "UPTIME_S": "1000.50",
    "BOOT_ID": BOOT,
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "1001",
    "SLURM_JOB_GPUS": "0,2-3",
    "SLURMD_NODENAME": "n1",
    "SLURM_CLUSTER_NAME": "neuron",
    "SLURM_JOB_WORK_DIR": "/home/álice/a = b",
}
NAME = "1795000000123456789-7-prolog"


def write(directory: Path, values: dict[str, str], name: str = NAME) -> Path:
    path = directory / name
    path.write_bytes(
        "".join(f"{key}={value}\n" for key, value in values.items()).encode("utf-8", "surrogateescape")
    )
    return path


def test_a_hook_file_is_read(tmp_path: Path) -> None:
    event = read_event(write(tmp_path, GOOD))
    assert (event.kind, event.job_id, event.restart, event.uid) == (HookKind.PROLOG, 7, 0, 1001)
    assert (event.positions, event.node, event.cluster) == ((0, 2, 3), "n1", "neuron")
    assert event.at_s == pytest.approx(1795000000.123, abs=0.001)
    assert event.uptime_s == 1000.5


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"SLURM_JOB_ID": "8"}, "content"),
        ({"EVENT": "epilog"}, "content"),
        ({"UPTIME_S": ""}, "UPTIME_S"),
        ({"UPTIME_S": "nan"}, "UPTIME_S"),
        ({"BOOT_ID": "a b"}, "BOOT_ID"),
        ({"SLURM_JOB_GPUS": "0;1"}, "SLURM_JOB_GPUS"),
        ({"SLURM_JOB_GPUS": "0,0"}, "twice"),
        ({"SLURM_JOB_RESTART_COUNT": "-1"}, "RESTART"),
        ({"SLURMD_NODENAME": "n 1"}, "SLURMD_NODENAME"),
        ({"SLURM_CLUSTER_NAME": "<script>"}, "SLURM_CLUSTER_NAME"),
        ({"SLURM_JOB_WORK_DIR": "x" * 70_000}, "longer"),
        ({"SLURM_JOB_WORK_DIR": "a\nUPTIME_S=1"}, "repeats a key"),
    ],
)
def test_an_invalid_hook_file_is_refused_with_the_reason(
    tmp_path: Path, change: dict[str, str], word: str
) -> None:
    with pytest.raises(HookFileError, match=word):
        read_event(write(tmp_path, GOOD | change))


@given(st.binary(max_size=2000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_an_event_or_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(data)
    with pytest.raises(HookFileError):
        read_event(path)


@given(st.text(max_size=40))
def test_any_text_is_a_list_of_positions_or_an_error(text: str) -> None:
    try:
        positions = parse_positions(text)
    except HookFileError:
        return
    assert len(set(positions)) == len(positions)


def test_foreign_files_are_set_aside_and_the_rest_is_processed(tmp_path: Path) -> None:
    directory = HookDirectory(tmp_path, "n1", FakeClock())
    directory.create()
    write(directory.jobs, GOOD)
    write(directory.jobs, GOOD | {"SLURMD_NODENAME": "n2"}, "1795000000123456790-7-prolog")
    write(directory.jobs, {}, "README")
    (directory.jobs / "1-8-prolog").symlink_to("/etc/passwd")
    os.mkfifo(directory.jobs / "1-9-prolog")
    (directory.jobs / "1-10-prolog").mkdir()
    (directory.jobs / ".1-11-prolog").touch()
    assert [event.job_id for event in directory.take()] == [7]
    assert directory.take() == []
    names = sorted(path.name for path in directory.jobs.iterdir())
    assert names == [".1-11-prolog", NAME]
    assert len(list((tmp_path / "rejected").iterdir())) == 5


def test_events_are_in_order_even_if_the_wall_clock_was_set_back(machine: Machine) -> None:
    clock = machine.clock
    machine.kill()
    machine.write_hook("prolog", 7, "0")
    clock.advance(5)
    clock.offset_s -= 100
    machine.write_hook("epilog", 7, "0")
    clock.advance(1)
    machine.start()
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(5, abs=0.02)


def test_the_number_of_rejected_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_gpu.node.allocation.hooks.MAX_REJECTED", 5)
    directory = HookDirectory(tmp_path, "n1", FakeClock())
    directory.create()
    for number in range(20):
        (directory.jobs / f"{number}").touch()
    assert directory.take() == []
    assert list(directory.jobs.iterdir()) == []
    assert len(list((tmp_path / "rejected").iterdir())) == 5


def test_a_hook_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "jobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError, match="is a link"):
        HookDirectory(tmp_path, "n1", FakeClock()).create()
