"""The README's demo runs with installed packages, and no part of slurm-gpu comes from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.layout import INSTALLED_VARIABLE
from tests.packaging.conftest import ROOT, Built
from tests.packaging.trees import Tree

pytestmark = [pytest.mark.lab, pytest.mark.long]


def test_the_demo_passes_with_the_installed_packages(tree: Tree, built: Built) -> None:
    tree.rpm("-U", *built.packages)
    tree.forget_system()
    over_system = [Path(__file__).with_name("over-system"), tree.root]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", *over_system, sys.executable, "-m", "lab", "demo"],
        cwd=ROOT,
        env=os.environ | {INSTALLED_VARIABLE: "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Right: in " in done.stdout
