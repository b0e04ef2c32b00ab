"""What the tests of slurm-gpuweb stand on."""

import pytest

from tests.monitor.here import Here


@pytest.fixture
def here() -> Here:
    """A cluster that was looked at once."""
    here = Here()
    here.look()
    return here
