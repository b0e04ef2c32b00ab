"""systemd creates the links of enabled units in a tree; `systemctl --root` starts nothing."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.files.boot import AT_BOOT
from tests.packaging.conftest import ROOT, Built
from tests.packaging.trees import Tree

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("systemctl") is None, reason="systemctl is not installed here"),
]

ENABLES = re.compile(r"systemctl enable --now ((?:slurm-gpu\S*? ?)+)(?=[\s`#]|$)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTED = sorted(
    {
        unit if "." in unit else f"{unit}.service"
        for page in PAGES
        for units in ENABLES.findall(page.read_text())
        for unit in units.split()
    }
)


def systemctl(root: Path, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", f"--root={root}", verb, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def state(root: Path, unit: str) -> str:
    return systemctl(root, "is-enabled", unit).stdout.strip()


def test_documented_units_exist_and_are_disabled_at_first(tree: Tree, built: Built) -> None:
    assert {"slurm-gpud.service", "slurm-gpudbd.service", "slurm-gpuctld.service"} < set(DOCUMENTED)
    tree.rpm("-U", *built.packages)
    assert {unit: state(tree.root, unit) for unit in DOCUMENTED} == dict.fromkeys(DOCUMENTED, "disabled")
    done = systemctl(tree.root, "enable", *DOCUMENTED)
    assert done.returncode == 0, done.stderr
    assert {unit: state(tree.root, unit) for unit in DOCUMENTED} == dict.fromkeys(DOCUMENTED, "enabled")


@pytest.mark.parametrize(
    ("verbs", "at_boot"),
    [
        ((), False),
        (("enable",), True),
        (("enable", "--runtime"), False),
        (("mask",), False),
    ],
)
def test_doctor_recognises_states_of_units_started_at_boot(
    tree: Tree, built: Built, verbs: tuple[str, ...], at_boot: bool
) -> None:
    tree.rpm("-U", built.package(""), built.package("-node"))
    if verbs:
        done = systemctl(tree.root, *verbs, "slurm-gpud.service")
        assert done.returncode == 0, done.stderr
    assert (state(tree.root, "slurm-gpud.service") in AT_BOOT) is at_boot
