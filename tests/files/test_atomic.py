"""A file is complete or absent, and no other files are left next to it."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from slurm_gpu.files.atomic import whole_file


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_an_existing_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")
    with whole_file(path) as fresh:
        fresh.write_text("new")
        assert path.read_text() == "old"
        assert fresh.parent == tmp_path
    assert (path.read_text(), names(tmp_path)) == ("new", ["file.json"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")

    def write() -> None:
        with whole_file(path) as fresh:
            fresh.write_text("half of")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert (path.read_text(), names(tmp_path)) == ("old", ["file.json"])


def test_it_takes_the_place_only_once_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "file.json", os.fsync
    synced: list[tuple[bool, bool]] = []

    def fsync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with whole_file(path) as fresh:
        fresh.write_text("all")
    assert synced == [(False, False), (True, True)]


def test_files_of_killed_processes_are_removed_and_those_of_running_ones_kept(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    left, others = f".file.json.{ended.pid}.unfinished", f".other.json.{ended.pid}.unfinished"
    at_work = ".file.json.1.unfinished"
    for name in (left, others, at_work):
        (tmp_path / name).write_text("half of")
    with whole_file(tmp_path / "file.json") as fresh:
        fresh.write_text("all")
    assert names(tmp_path) == sorted([at_work, others, "file.json"])
    with whole_file(tmp_path / "file.json", "oth*") as fresh:
        fresh.write_text("all")
    assert names(tmp_path) == sorted([at_work, "file.json"])


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file.json"
    victim.write_text("precious")
    (tmp_path / f".file.json.{os.getpid()}.unfinished").symlink_to(victim)
    with whole_file(path) as fresh:
        fresh.write_text("all")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("precious", "all", False)


@pytest.mark.parametrize("target", ["/dev/null", "/proc/self/fd/1"])
def test_a_device_is_not_replaced(tmp_path: Path, target: str) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(target)
    for path in (pipe, link):
        with pytest.raises(OSError, match="not a file"), whole_file(path) as fresh:
            fresh.write_text("all")
    assert (pipe.is_fifo(), link.is_symlink(), names(tmp_path)) == (True, True, ["link", "pipe"])
