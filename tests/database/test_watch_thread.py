"""The thread of the watch starts even if its imports fail at first."""

from __future__ import annotations

import errno
import importlib.abc
import sys
from types import SimpleNamespace

import pytest

from slurm_gpu.clock import SystemClock
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.live.verdict_board import VerdictBoard
from slurm_gpu.database.verdicts import thread
from tests.database.test_daemon import wait_for

MODULE = "slurm_gpu.database.verdicts.watch"


class NoDescriptor(importlib.abc.MetaPathFinder):
    """An importer that fails like the import system without free file descriptors."""

    def __init__(self, n_failures: int) -> None:
        self.n_failures = n_failures

    def find_spec(self, fullname, path, target=None):
        if fullname == MODULE and self.n_failures:
            self.n_failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")


def test_the_watch_starts_again_after_its_import_found_no_file_descriptor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(thread, "RETRY_S", 0.01)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    finder = NoDescriptor(n_failures=2)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    clock = SystemClock()
    services = SimpleNamespace(
        cluster="c",
        database=None,
        view=None,
        memory=LiveState.fresh(clock),
        clock=clock,
        min_coverage=0.5,
        verdicts=VerdictBoard(),
    )
    caplog.set_level("INFO")
    with thread.watching(services):
        wait_for(lambda: "the watch over running jobs has started" in caplog.text, lambda: caplog.text)
    assert not finder.n_failures
    assert "the watch over running jobs cannot start: OSError: [Errno 24] Too many open files" in caplog.text
