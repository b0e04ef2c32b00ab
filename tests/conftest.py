"""Fixtures that the tests of several packages share."""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpcore
import psutil
import pytest
from hypothesis import settings

from lab.nvml import build
from tests.examples import examples, is_long

# Tests have no deadline, because a machine may be busy. The same code has the same result on every machine;
# `make fuzz` uses other examples.
settings.register_profile("any machine", deadline=None, max_examples=examples(), derandomize=not is_long())
settings.load_profile("any machine")

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 << 30

# With several workers, these files run first: a long file at the end would leave the other workers idle.
_LONG = (
    "tests/node/test_mixed_load.py",
    "tests/node/test_outages_of_days.py",
    "tests/database/test_daemon.py",
    "tests/upgrade/test_database.py",
    "tests/database/test_import_killed.py",
    "tests/policy/test_agreement.py",
    "tests/node/test_hung_gpu.py",
    "tests/node/test_any_story.py",
    "tests/reports/test_gpu_hours.py",
)


def pytest_configure() -> None:
    """Write temporary files to memory if it has space and TMPDIR is unset: daemons flush their files often.

    No test queries a Slurm that happens to be on this machine; the lab passes its slurm.conf to each command.
    """
    os.environ["SLURM_CONF"] = "/nowhere/slurm.conf"
    for library in ("OMP", "OPENBLAS"):  # workers share the cores, so more threads would only wait
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    if "TMPDIR" not in os.environ and _has_space(_MEMORY):
        tempfile.tempdir = str(_MEMORY)


def _has_space(directory: Path) -> bool:
    """Return whether a directory has space for the files of all tests and may contain executable programs."""
    if not os.access(directory, os.W_OK):
        return False
    disk = os.statvfs(directory)
    free_bytes = min(disk.f_bavail * disk.f_frsize, psutil.virtual_memory().available)
    return free_bytes >= _ROOM_BYTES and not disk.f_flag & os.ST_NOEXEC


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable garbage collection, which took a third of the time, while pytest collects tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        rank = {config.rootpath / name: number for number, name in enumerate(_LONG)}
        items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="module", autouse=True)
def _umask() -> Iterator[None]:
    """Restore the umask: commands set it for their process, and here all tests share one process."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session", autouse=True)
def _closed_sockets() -> Iterator[None]:
    """Close the Unix socket of each failed connection: httpcore leaves it open, which fails a later test."""
    connect = httpcore.SyncBackend.connect_unix_socket

    def connect_or_close(*given: Any, **named: Any) -> httpcore.NetworkStream:
        try:
            return connect(*given, **named)
        except httpcore.ConnectError as error:
            error.__traceback__.tb_next.tb_frame.f_locals["sock"].close()
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore.SyncBackend, "connect_unix_socket", connect_or_close)
        yield


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the simulated libnvidia-ml.so.1 once, because compiling it takes longer than most tests."""
    return build(tmp_path_factory.mktemp("nvml"))
