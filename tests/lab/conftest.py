"""The lab as a fixture. One lab runs at a time; it is kept between tests that want the same options."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from lab.cluster import Lab
from lab.options import Options

LabWith = Callable[..., Lab]
_NEEDED = ("munged", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "cc")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)  # noqa: PTH120
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.lab)


@pytest.fixture(scope="session")
def _host() -> None:
    if os.geteuid() != 0:
        pytest.skip("the lab needs root: it makes users, devices and cgroups")
    path = "/usr/sbin:/sbin:" + os.environ["PATH"]
    if missing := [name for name in _NEEDED if shutil.which(name, path=path) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}; `make setup` installs them")


@pytest.fixture(scope="session")
def lab_with(_host: None) -> Iterator[LabWith]:
    """Return a function: options of the lab → the lab, up with exactly these."""
    last: list[Lab] = []

    def bring_up(**chosen: object) -> Lab:
        wanted = Lab(options=Options(**chosen))  # type: ignore[arg-type]
        if not last or last[0].options != wanted.options:
            wanted.down()
        if not all(wanted.status().values()):
            wanted.up()
        wanted.cancel_all_jobs()  # of a test that failed, and would fail others
        last[:] = [wanted]
        return wanted

    yield bring_up
    Lab().down()


@pytest.fixture
def lab(lab_with: LabWith) -> Iterator[Lab]:
    """Return the lab with its default options; jobs that a test leaves are cancelled."""
    cluster = lab_with()
    yield cluster
    cluster.cancel_all_jobs()


@pytest.fixture
def no_lab(lab_with: LabWith) -> Iterator[Lab]:
    """Return the lab that is down, as is all else of it; it is down again afterwards."""
    cluster = Lab(options=Options())
    cluster.down()
    yield cluster
    cluster.down()
