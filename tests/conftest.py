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

# A busy machine is no error of the code. The same code has the same result on every machine; `make fuzz` uses
# other examples.
settings.register_profile("any machine", deadline=None, max_examples=examples(), derandomize=not is_long())
settings.load_profile("any machine")

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 << 30

# Where two workers share the files, these begin first: one of them at the end would leave the other idle.
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
    """Let tests write to memory where it has room, unless TMPDIR says where: daemons flush all the time.

    None asks a Slurm that the machine happens to have: the lab's is named to each command by itself.
    """
    os.environ["SLURM_CONF"] = "/nowhere/slurm.conf"
    for library in ("OMP", "OPENBLAS"):  # workers share the cores: threads of each would wait for one another
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    if "TMPDIR" not in os.environ and _has_space(_MEMORY):
        tempfile.tempdir = str(_MEMORY)


def _has_space(directory: Path) -> bool:
    """For what a run of all tests has at once, compiled programs included."""
    if not os.access(directory, os.W_OK):
        return False
    disk = os.statvfs(directory)
    free_bytes = min(disk.f_bavail * disk.f_frsize, psutil.virtual_memory().available)
    return free_bytes >= _ROOM_BYTES and not disk.f_flag & os.ST_NOEXEC


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable garbage collection during the collection of tests, which took a third of its time."""
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
    """Restore the umask, which commands set for their process, here that of all tests."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session", autouse=True)
def _closed_sockets() -> Iterator[None]:
    """Close the Unix socket of a failed connection, which httpcore leaves open: a later test would fail."""
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
    """The simulated libnvidia-ml.so.1: compiling it takes longer than most tests, so it is done once."""
    return build(tmp_path_factory.mktemp("nvml"))
