"""The daemon wakes when a hook file is complete, but not while the file is being written."""

import threading
import time
from pathlib import Path

from slurm_gpu.node.inotify import DirectoryWaiter

LONG_S = 20.0


def waited(waiter: DirectoryWaiter, timeout_s: float) -> float:
    begin = time.monotonic()
    waiter.wait(timeout_s)
    return time.monotonic() - begin


def test_a_file_renamed_into_the_directory_ends_the_wait(tmp_path: Path) -> None:
    waiter = DirectoryWaiter(tmp_path)
    assert waited(waiter, 0.01) >= 0.01
    (tmp_path / ".new").write_text("x")
    assert waited(waiter, 0.01) >= 0.01
    (tmp_path / ".new").rename(tmp_path / "new")
    assert waited(waiter, LONG_S) < LONG_S
    assert waited(waiter, 0.01) >= 0.01


def test_a_recreated_directory_is_watched_again(tmp_path: Path) -> None:
    directory = tmp_path / "jobs"
    waiter = DirectoryWaiter(directory)
    assert waited(waiter, 0.01) >= 0.01
    for _ in range(2):
        directory.mkdir()
        while waited(waiter, 0.01) < 0.01:
            pass  # discard remaining events
        (directory / ".new").write_text("x")
        (directory / ".new").rename(directory / "new")
        assert waited(waiter, LONG_S) < LONG_S
        (directory / "new").unlink()
        directory.rmdir()


def test_a_thread_can_end_the_wait_even_before_it_begins(tmp_path: Path) -> None:
    waiter = DirectoryWaiter(tmp_path)
    thread = threading.Thread(target=lambda: [waiter.wake() for _ in range(100_000)])
    thread.start()
    thread.join()
    assert waited(waiter, LONG_S) < LONG_S
