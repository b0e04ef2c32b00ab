"""The spool's log survives being killed at any byte, a full disk, and damage."""

import json
import os
import resource
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.node.shipping import journal as journal_module
from slurm_gpu.node.shipping.journal import DurableMap

keys = st.sampled_from("abcde")
changes = st.lists(st.tuples(keys, st.none() | st.integers() | st.text(max_size=20)), max_size=12)


def content(journal: DurableMap) -> dict[str, object]:
    return {key: journal.get(key) for key in journal.keys("")}


def apply(journal: DurableMap, key: str, value: object) -> None:
    if value is None:
        journal.remove(key)
    else:
        journal.put(key, value)


@given(changes, st.data())
def test_a_log_cut_at_any_byte_contains_all_earlier_commits(
    made: list[tuple[str, object]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        journal = DurableMap(directory)
        states = [(0, content(journal))]
        for key, value in made:
            apply(journal, key, value)
            assert journal.commit()
            states.append(((directory / "log").stat().st_size, content(journal)))
        journal.close()
        whole = (directory / "log").read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        (directory / "log").write_bytes(whole[:cut])
        again = DurableMap(directory)
        assert content(again) == [state for size, state in states if size <= cut][-1]
        # New lines can be appended to the log.
        again.put("new", 1)
        assert again.commit()
        again.close()
        third = DurableMap(directory)
        assert third.get("new") == 1
        third.close()


def test_a_damaged_line_is_dropped_and_the_damaged_log_is_kept(tmp_path: Path) -> None:
    journal = DurableMap(tmp_path)
    for key in "abc":
        journal.put(key, key * 3)
        journal.commit()
    journal.close()
    log = tmp_path / "log"
    damaged = log.read_bytes().replace(b"bbb", b"bxb")
    log.write_bytes(damaged)
    again = DurableMap(tmp_path)
    assert content(again) == {"a": "aaa", "c": "ccc"}
    (kept,) = tmp_path.glob("log.damaged-*")
    assert kept.read_bytes() == damaged
    again.close()


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Simulate a full disk by a file size limit: Python ignores SIGXFSZ, so write(2) fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    journal = DurableMap(tmp_path)
    journal.put("a", "before")
    assert journal.commit()
    with no_file_longer_than((tmp_path / "log").stat().st_size + 10):
        journal.put("b", "x" * 100)
        assert not journal.commit()
        journal.remove("a")
        assert not journal.commit()
    assert content(journal) == {"b": "x" * 100}
    assert journal.commit()
    journal.close()
    again = DurableMap(tmp_path)
    assert content(again) == {"b": "x" * 100}
    again.close()


def test_the_log_remains_small_if_values_change_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 10_000)
    journal = DurableMap(tmp_path)
    for number in range(2000):
        journal.put(f"k{number % 3}", {"number": number})
        assert journal.commit()
    assert (tmp_path / "log").stat().st_size < 11_000
    journal.close()
    again = DurableMap(tmp_path)
    assert content(again) == {"k0": {"number": 1998}, "k1": {"number": 1999}, "k2": {"number": 1997}}
    assert all(json.loads(line[9:]) for line in (tmp_path / "log").read_bytes().splitlines())
    again.close()


@pytest.mark.parametrize("n_lines", [0, 1])
def test_nul_bytes_of_a_power_cut_are_cut_off_without_reading_them_into_memory(
    tmp_path: Path, n_lines: int
) -> None:
    journal = DurableMap(tmp_path)
    journal.put("a", 1)
    journal.commit()
    journal.close()
    log = tmp_path / "log"
    whole = log.stat().st_size
    os.truncate(log, 200 << 20)  # with NUL bytes, which take no space on disk
    with log.open("ab") as file:
        file.write(b"\n" * n_lines)
    tracemalloc.start()
    journal = DurableMap(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 << 20
    assert journal.get("a") == 1
    assert log.stat().st_size == whole
    assert journal.is_whole is (n_lines == 0)
    journal.close()


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/nowhere")])
def test_a_log_that_is_not_a_file_is_an_error_and_does_not_block(
    tmp_path: Path, made: Callable[[Path], None]
) -> None:
    tmp_path.chmod(0o700)
    made(tmp_path / "log")
    with pytest.raises(OSError, match=f"{tmp_path}/log"):
        DurableMap(tmp_path)


def test_only_the_owner_can_read_the_spool(tmp_path: Path) -> None:
    journal = DurableMap(tmp_path / "spool")
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "spool" / "log").stat().st_mode & 0o777 == 0o600
    journal.close()


def test_a_second_process_cannot_open_the_log(tmp_path: Path) -> None:
    journal = DurableMap(tmp_path)
    with pytest.raises(BlockingIOError, match=f"another slurm-gpud, process {os.getpid()}"):
        DurableMap(tmp_path)
    journal.close()
    DurableMap(tmp_path).close()


@pytest.mark.parametrize("removed", ["directory", "log", "lock"])
def test_a_removed_log_is_written_again(tmp_path: Path, removed: str) -> None:
    directory = tmp_path / "spool"
    journal = DurableMap(directory)
    journal.put("a", 1)
    journal.put("b", 2)
    assert journal.commit()
    if removed == "directory":
        shutil.rmtree(directory)
    else:
        (directory / removed).unlink()
    journal.remove("b")
    journal.put("c", 3)
    assert journal.commit()
    with pytest.raises(BlockingIOError):
        DurableMap(directory)
    journal.close()
    again = DurableMap(directory)
    assert content(again) == {"a": 1, "c": 3}
    again.close()


def test_a_spool_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(NotADirectoryError, match="is a link"):
        DurableMap(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(tmp_path / "there", 1001, 1001)
        with pytest.raises(PermissionError, match="belongs to uid 1001"):
            DurableMap(tmp_path / "there")


@given(st.lists(st.tuples(keys, st.none() | st.text(max_size=40), st.integers(0, 120)), max_size=15))
def test_on_a_sometimes_full_disk_memory_is_right_and_the_log_catches_up(
    made: list[tuple[str, str | None, int]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        journal = DurableMap(Path(name))
        model: dict[str, object] = {}
        for key, value, free in made:
            apply(journal, key, value)
            model.pop(key, None)
            if value is not None:
                model[key] = value
            with no_file_longer_than((Path(name) / "log").stat().st_size + free):
                done = journal.commit(lambda key: key in "ab")
            assert content(journal) == model
            assert not done or journal.bytes_in_memory == 0
        assert journal.commit()
        journal.close()
        again = DurableMap(Path(name))
        assert content(again) == model
        assert again.size_bytes == journal.size_bytes
        again.close()
