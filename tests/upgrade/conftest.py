from pathlib import Path

import pytest

from tests.database.conftest import mariadb, short_path, url
from tests.upgrade.releases import BEFORE, unpacked

__all__ = ["mariadb", "short_path", "url"]


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the code of the previous release."""
    return unpacked(BEFORE, tmp_path_factory.mktemp("releases"))
