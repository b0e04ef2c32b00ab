"""What the tests of several rooms stand on."""

import os
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from lab.nvml import build

# A busy machine is no fault of what is tested.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 << 30


def pytest_configure() -> None:
    """Let tests write to memory where it has room, unless TMPDIR says where: daemons flush all the time.

    None asks a Slurm that the machine happens to have: the lab's is named to each command by itself.
    """
    os.environ["SLURM_CONF"] = "/nowhere/slurm.conf"
    if "TMPDIR" not in os.environ and _has_room(_MEMORY):
        tempfile.tempdir = str(_MEMORY)


def _has_room(directory: Path) -> bool:
    """For what a run of all tests has at once, compiled programs included."""
    if not os.access(directory, os.W_OK):
        return False
    disk = os.statvfs(directory)
    free_bytes = min(disk.f_bavail * disk.f_frsize, psutil.virtual_memory().available)
    return free_bytes >= _ROOM_BYTES and not disk.f_flag & os.ST_NOEXEC


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated libnvidia-ml.so.1: compiling it takes longer than most tests, so it is done once."""
    return build(tmp_path_factory.mktemp("nvml"))
