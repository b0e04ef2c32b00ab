"""The packages, built once a session, and trees that they are installed into."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.trees import Tree

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("", "-node", "-client", "-db", "-controller")


@dataclass(frozen=True)
class Built:
    """What one run of packaging/rpm/build made, and what it printed."""

    directory: Path
    printed: str

    @property
    def source(self) -> Path:
        """The source RPM."""
        (path,) = self.directory.glob("*.src.rpm")
        return path

    def package(self, part: str, arch: str = "x86_64") -> Path:
        """The package slurm-gpu PART ("" or "-node", ...)."""
        paths = self.directory.glob(f"slurm-gpu{part}-[0-9]*.rpm")
        (path,) = [path for path in paths if path.name.endswith((f".{arch}.rpm", ".noarch.rpm"))]
        return path

    @property
    def packages(self) -> list[Path]:
        """All of them for this machine."""
        return [self.package(part) for part in PARTS]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Built]:
    """Build the last commit; keyword arguments are variables that packaging/rpm/build heeds."""
    if os.geteuid() != 0 or shutil.which("rpmbuild") is None:
        pytest.skip("needs root, and what packaging/rpm/install-tools installs")

    def build(**variables: str) -> Built:
        directory = tmp_path_factory.mktemp("dist")
        command = ["nice", ROOT / "packaging/rpm/build", directory]
        done = subprocess.run(
            command, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == 0, done.stderr
        return Built(directory, done.stdout)

    return build


@pytest.fixture(scope="session")
def built(build: Callable[..., Built]) -> Built:
    return build()


@pytest.fixture(scope="session")
def next_built(build: Callable[..., Built]) -> Built:
    """The next release of the same, for this machine alone."""
    return build(RELEASE="2", ARCHES="x86_64")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")
