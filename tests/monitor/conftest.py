"""Fixtures for the tests of slurm-gpuweb."""

import pytest

from tests.database.conftest import munge_socket, server, short_path
from tests.monitor.small_cluster import Here

__all__ = ["here", "munge_socket", "server", "short_path"]


@pytest.fixture
def here() -> Here:
    """Return a cluster that was polled once."""
    here = Here()
    here.poll()
    return here
