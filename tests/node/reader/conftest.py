from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.simgpu.creation import create
from lab.simgpu.specs import GpuSpec
from lab.simgpu.world import World
from slurm_gpu.node.gpu.reader_process import ReaderProcess
from tests.node.fakes import FakeClock
from tests.node.reader.asking import DEADLINE_S, GPUS


@pytest.fixture
def world(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    path = tmp_path / "gpus.world"
    create(path, [GpuSpec(uuid, minor=n) for n, uuid in enumerate(GPUS)])
    monkeypatch.setenv("SIMGPU_WORLD", str(path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    return World(path)


@pytest.fixture
def start(clock: FakeClock) -> Iterator[Callable[..., ReaderProcess]]:
    readers = []

    def start(**options: float) -> ReaderProcess:
        readers.append(ReaderProcess(clock, **{"deadline_s": DEADLINE_S, "start_wait_s": 10, **options}))
        return readers[-1]

    yield start
    for reader in readers:
        reader.close()
        # On a busy machine a killed process needs time to exit, but close() waits only for a short timeout.
        assert all(child.is_gone(10) for child in reader._ending)


@pytest.fixture
def reader(world: World, start: Callable[..., ReaderProcess]) -> ReaderProcess:
    """Return a reader that has found its devices."""
    reader = start()
    reader.devices()
    return reader
