"""Provide the lab as a fixture, kept between tests with equal options.

One lab runs at a time; tests/lab/side-by-side runs each of several pytest workers in its own namespaces.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.options import Options

LabWith = Callable[..., Lab]
_NEEDED = ("munged", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "cc")

# The order of files for parallel labs: options change rarely, and no long file comes last.
_ORDER = (
    "test_down.py",  # a lab for each test
    *("test_attribution.py", "test_node.py", "test_outages.py", "test_applications.py"),  # without our policy
    *("test_limits.py", "test_overshoot.py", "test_beyond_native.py", "test_advice.py"),  # without services
    *("test_identity.py", "test_mig.py", "test_fencing.py", "test_host_mode.py", "test_empty_cluster.py"),
    *("test_lending.py", "test_database.py", "test_demo.py", "test_live.py"),  # default, as all others
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.lab)
    if hasattr(config, "workerinput"):
        rank = {here / name: number for number, name in enumerate(_ORDER)}
        items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="session")
def _host() -> None:
    if os.geteuid() != 0:
        pytest.skip("the lab needs root: it creates users, devices and cgroups")
    path = "/usr/sbin:/sbin:" + os.environ["PATH"]
    if missing := [name for name in _NEEDED if shutil.which(name, path=path) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}; `make setup` installs them")


@pytest.fixture(scope="session")
def lab_with(_host: None) -> Iterator[LabWith]:
    """Return a function that starts and returns a lab with exactly the given options."""
    last: list[Lab] = []

    def bring_up(**chosen: object) -> Lab:
        wanted = Lab(options=Options(**chosen))  # type: ignore[arg-type]
        if not last or last[0].options != wanted.options:
            wanted.down()
        if not all(wanted.status().values()):
            wanted.up()
        wanted.cancel_all_jobs()  # jobs left by a failed test would fail others
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
    """Return the lab, completely down; take it down again afterwards."""
    cluster = Lab(options=Options())
    cluster.down()
    yield cluster
    cluster.down()
