"""A program without one of its libraries reports the package to install."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpu.programs import PROGRAMS

ROOT = Path(__file__).resolve().parents[1]
NOT_OURS = {
    "alembic",
    "click",
    "httptools",
    "httpx",
    "lupa",
    "matplotlib",
    "msgspec",
    "networkx",
    "numpy",
    "psutil",
    "pyarrow",
    "pymysql",
    "pynvml",
    "rich",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "starlette",
    "torch",
    "uvicorn",
}
_WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from slurm_gpu.programs import start
sys.argv[1:] = {argv}
sys.exit(start({part!r}))
"""


def run(part: str, names: set[str], *argv: str) -> subprocess.CompletedProcess[str]:
    script = _WITHOUT.format(names=names, argv=list(argv), part=part)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("part", "library"), [(part, name) for part, program in PROGRAMS.items() for name in program.needs]
)
def test_missing_module_is_reported_with_its_package(part: str, library: str) -> None:
    ended, program = run(part, {library}, "--version"), PROGRAMS[part]
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr == (
        f"{program.command}: the Python module {library} is not installed; install the package "
        f"{program.package} (or: pip install 'slurm-gpu[{program.extra}]')\n"
    )


@pytest.mark.parametrize("part", PROGRAMS)
def test_programs_without_extras_print_no_traceback(part: str) -> None:
    ended = run(part, NOT_OURS, "--version")
    assert ended.returncode in (0, 3)
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == (1 if ended.returncode else 0)


@pytest.mark.parametrize(
    "argv",
    [
        ("report", "build", "--out", "/nowhere"),
        ("db", "upgrade"),
        ("db", "export", "--out", "/nowhere"),
        ("forecast", "train"),
        ("colocation", "train", "/dev/null"),
        ("policy", "check"),
        ("explain", "1"),
        ("jobs",),
        ("forecast", "1"),
        ("doctor",),
        ("top",),
    ],
    ids=" ".join,
)
def test_commands_without_their_libraries_print_no_traceback(argv: tuple[str, ...], tmp_path: Path) -> None:
    site = tmp_path / "slurm-gpu.yaml"
    site.write_text("cluster: c\n")
    ended = run("cli", NOT_OURS - {"click"}, "--config", str(site), *argv)
    assert "Traceback" not in ended.stderr
    assert "Error" not in ended.stderr, argv


def test_extra_has_all_required_modules() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    for program in PROGRAMS.values():
        brought = extras[program.extra].replace("slurm-gpu[client]", extras["client"])
        assert all(f"\n{library} " in brought for library in program.needs)
        assert (
            f"%package {program.package.removeprefix('slurm-gpu-')}"
            in (ROOT / "packaging/rpm/slurm-gpu.spec").read_text()
        )


def test_pip_entry_points_use_this_module() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    scripts = setup["options.entry_points"]["console_scripts"]
    for program in PROGRAMS.values():
        assert f"{program.command} = slurm_gpu.programs:{program.command.replace('-', '_')}" in scripts


def test_the_targets_of_the_makefile_name_existing_tests() -> None:
    command = ["make", "--dry-run", "--no-print-directory", "fuzz", "soak", "test-long"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"tests/[\w/]+\.py", printed))
    assert "tests/policy/test_agreement.py" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
