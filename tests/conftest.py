"""What the tests of several rooms stand on."""

from pathlib import Path

import pytest
from hypothesis import settings

from lab.nvml import build

# A busy machine is no fault of what is tested.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated libnvidia-ml.so.1: compiling it takes longer than most tests, so it is done once."""
    return build(tmp_path_factory.mktemp("nvml"))
