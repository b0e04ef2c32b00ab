from pathlib import Path

import pytest

from tests.node.fakes import FakeClock, FakeGpu, Machine


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
