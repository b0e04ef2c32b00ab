"""Build the packages once, and create trees for installing them."""

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
KEPT = ROOT / "build/rpm/tested"
PARTS = ("", "-node", "-client", "-db", "-web", "-report", "-learn", "-controller")


@dataclass(frozen=True)
class Built:
    """The result of one run of packaging/rpm/build, with its output."""

    directory: Path
    printed: str

    @property
    def source(self) -> Path:
        """Return the source RPM."""
        (path,) = self.directory.glob("*.src.rpm")
        return path

    def package(self, part: str, arch: str = "x86_64") -> Path:
        """Return the package slurm-gpu PART ("" or "-node", ...)."""
        paths = self.directory.glob(f"slurm-gpu{part}-[0-9]*.rpm")
        (path,) = [path for path in paths if path.name.endswith((f".{arch}.rpm", ".noarch.rpm"))]
        return path

    @property
    def packages(self) -> list[Path]:
        """Return all packages for this machine."""
        return [self.package(part) for part in PARTS]


@pytest.fixture(scope="session")
def build() -> Callable[..., Built]:
    """Build the last commit; keyword arguments become environment variables of packaging/rpm/build.

    A build takes a minute, so the packages of a commit are kept until there is another commit.
    """
    if os.geteuid() != 0 or shutil.which("rpmbuild") is None:
        pytest.skip("needs root and the tools that packaging/rpm/install-tools installs")
    commit = _run("git", "rev-parse", os.environ.get("COMMIT", "HEAD")).strip()

    def build(**variables: str) -> Built:
        directory = KEPT / commit / "-".join(("packages", *variables.values()))
        note = directory / "printed.txt"
        if not note.exists():
            for old in KEPT.glob("*"):
                if old.name != commit:
                    shutil.rmtree(old)
            note.write_text(_run("nice", ROOT / "packaging/rpm/build", directory, COMMIT=commit, **variables))
        return Built(directory, note.read_text())

    return build


def _run(*command: str | Path, **variables: str) -> str:
    environment = os.environ | variables
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def built(build: Callable[..., Built]) -> Built:
    return build()


@pytest.fixture(scope="session")
def next_built(build: Callable[..., Built]) -> Built:
    """Build the next release of the same packages, only for this machine."""
    return build(RELEASE="2", ARCHES="x86_64")


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a package that provides everything that our packages require of a system."""
    directory = tmp_path_factory.mktemp("system")
    define = [f"--define=_topdir {directory}", f"--define=_dbpath {directory}/db"]
    _run("rpmbuild", "--quiet", "-bb", *define, Path(__file__).with_name("system.spec"))
    return directory / "RPMS/noarch/system-9-1.noarch.rpm"


@pytest.fixture
def tree(tmp_path: Path, system: Path) -> Tree:
    return Tree(tmp_path / "root", system)
