from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.fakes import FakeClock, FakeGpu
from tests.node.machine import Machine
from tests.node.posting import Post
from tests.node.wired import Wired


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def gpu(clock: FakeClock) -> FakeGpu:
    return FakeGpu(clock)


@pytest.fixture
def machine(tmp_path: Path, gpu: FakeGpu) -> Machine:
    """A node with one GPU and a running slurm-gpud."""
    machine = Machine(tmp_path, gpu)
    machine.start()
    return machine


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


@pytest.fixture
def wired(tmp_path: Path, gpu: FakeGpu) -> Iterator[Wired]:
    machine = Wired(tmp_path, gpu)
    machine.start()
    yield machine
    if machine.spool is not None:
        machine.kill()
