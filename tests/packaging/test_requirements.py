"""Packages contain the dependencies of setup.cfg, each in one version and one place, with its hashes."""

import configparser
import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import slurm_gpu
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
ASKED = {
    "common": ("options", "install_requires"),
    "node": ("options.extras_require", "node"),
    "client": ("options.extras_require", "client"),
    "db": ("options.extras_require", "db"),
    "web": ("options.extras_require", "web"),
    "report": ("options.extras_require", "report"),
    "learn": ("options.extras_require", "learn"),
    "build": ("options.extras_require", "build"),
}
BELOW = {
    "common": (),
    "node": ("common",),
    "client": ("common",),
    "db": ("common", "client"),
    "web": ("common", "client"),
    "report": ("common", "client", "db"),
    "learn": ("common", "client", "db", "report"),
    "build": ("common", "node", "client", "db", "web", "report", "learn"),
}
AGAIN = "packaging/requirements/lock rewrites the file"


def _pinned(part: str) -> dict[str, str]:
    text = (ROOT / f"packaging/requirements/{part}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("part", ASKED)
def test_a_part_or_its_requirements_contain_the_dependencies_of_setup_cfg(part: str) -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    section, key = ASKED[part]
    has = {name: version for each in (part, *BELOW[part]) for name, version in _pinned(each).items()}
    for line in setup[section][key].split("\n"):
        if line:
            asked = Requirement(line)
            version = has.get(canonicalize_name(asked.name))
            assert version is not None, f"{part}.txt lacks {asked.name}: {AGAIN}"
            assert asked.specifier.contains(version), f"{part}.txt has {asked.name} {version}: {AGAIN}"


@pytest.mark.parametrize("part", ASKED)
def test_no_part_carries_what_it_finds_below(part: str) -> None:
    for below in BELOW[part]:
        assert not _pinned(part).keys() & _pinned(below).keys()


@pytest.mark.parametrize("part", ASKED)
def test_every_version_is_pinned_with_hashes(part: str) -> None:
    lines = (ROOT / f"packaging/requirements/{part}.txt").read_text().splitlines()
    entries = [line for line in lines if not line.startswith((" ", "#"))]
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9-]+==\S+ \\", entry)
        assert lines[lines.index(entry) + 1].startswith("    --hash=sha256:")


def test_a_node_carries_pynvml_and_pyyaml_alone() -> None:
    assert _pinned("common").keys() | _pinned("node").keys() == {"nvidia-ml-py", "pyyaml"}


def test_packages_have_the_version_of_the_program() -> None:
    spec = (ROOT / "packaging/rpm/slurm-gpu.spec").read_text()
    assert re.search(r"^Version: +(\S+)$", spec, re.MULTILINE)[1] == slurm_gpu.__version__
    assert f" - {slurm_gpu.__version__}-1\n" in spec.partition("%changelog\n")[2].partition("\n")[0] + "\n"
