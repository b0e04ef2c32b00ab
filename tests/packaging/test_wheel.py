"""`pip install CHECKOUT` installs only modules of the checkout, and leaves no files there."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# `setup.py build` collects the modules of a wheel. Building the wheel itself requires the network.
_BUILD = """
import importlib, pathlib, setuptools, sys
sys.path.insert(0, sys.argv[1])
backend = importlib.import_module(sys.argv[2])
sys.argv[:] = ["setup.py", "--quiet", "build", "egg_info"]
with backend.outside_the_checkout():
    directory = pathlib.Path(setuptools.setup().get_command_obj("build").build_lib)
    print(*(path.relative_to(directory) for path in directory.rglob("*.py")))
"""


def _tree(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*")}


def test_deleted_modules_are_not_installed_and_the_checkout_stays_clean(tmp_path: Path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "slurm_gpu" / "text", checkout / "slurm_gpu" / "text")
    for name in ("etc", "plugins", "packaging/backend"):
        shutil.copytree(ROOT / name, checkout / name)
    for name in ("slurm_gpu/__init__.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    stale = checkout / "build" / "lib" / "slurm_gpu" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    system = tomllib.loads((checkout / "pyproject.toml").read_text())["build-system"]
    before = _tree(checkout)
    built = subprocess.run(
        [sys.executable, "-B", "-c", _BUILD, *system["backend-path"], system["build-backend"]],
        cwd=checkout,
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "slurm_gpu/text/units.py" in built
    assert "slurm_gpu/stale.py" not in built
    assert _tree(checkout) == before
