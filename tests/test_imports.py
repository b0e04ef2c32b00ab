"""Packages import only lower packages, and each host needs only its own dependencies."""

import configparser
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest

from packaging.requirements import Requirement
from slurm_gpu.cli.main import COMMANDS
from slurm_gpu.programs import PROGRAMS

ROOT = Path(__file__).resolve().parent.parent

# Prints each imported package outside the standard library, with the first module that imports it.
_PULLED_IN = """
import importlib, sys
first = {}
for module in sys.argv[1:]:
    importlib.import_module(module)
    for name in [*sys.modules]:
        first.setdefault(name.partition(".")[0], module)
for name in first.keys() - set(sys.stdlib_module_names) - {"__main__", "slurm_gpu"}:
    print(name, first[name])
"""


# Packages of slurm_gpu by the extra that they need for their direct and indirect imports.
_PARTS = {
    "node": ["node"],
    "client": ["cli"],
    "db": ["database"],
    "controller": ["controller", "cli"],
    "web": ["monitor", "reports.diagnosed"],
    "learn": ["forecast"],
    "colocation": ["colocation"],
    "train": ["colocation"],
    "report": ["reports"],
}
# lupa is imported under a name with the version of Lua; slurm_gpu.http uses httptools through uvicorn.
_UNSEEN = {"lupa", "httptools"}
# Tools that are run, not imported, and the text in Makefile, pyproject.toml or tests that runs them.
_RUN = {
    "import-linter": "[tool.importlinter]",
    "mypy": "$(BIN)/mypy",
    "pylint": '"symilar"',
    "pytest-xdist": "--dist loadfile",
    "ruff": "$(BIN)/ruff",
    "vulture": "$(BIN)/vulture",
}


def test_imports_point_one_way():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_is_reached_from_a_program():
    """Modules that only benchmarks or tests use belong to them, so benchmarks and tests do not count."""
    graph = grimp.build_graph("slurm_gpu", cache_dir=None)
    sources = "".join(path.read_text() for path in (ROOT / "slurm_gpu").rglob("*.py"))
    started = set(re.findall(r'"-m", "(slurm_gpu[\w.]+)"', sources))
    started |= {"slurm_gpu.programs", *(f"slurm_gpu.{part}.main" for part in PROGRAMS)}
    started |= {module for module, _ in COMMANDS.values()}
    started |= {module for module in graph.modules if ".storage.migrations" in module}
    reached = started.union(*(graph.find_upstream_modules(module) for module in started))
    packages = {module for module in graph.modules if graph.find_children(module)}
    assert graph.modules - packages - reached == set()


def _pulled_in(*modules: str) -> dict[str, str]:
    """Return, by imported package, the first of the modules that imports it."""
    done = subprocess.run(
        [sys.executable, "-c", _PULLED_IN, *modules], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = (line.split() for line in done.stdout.splitlines())
    return {name: module for name, module in found if not name.startswith(("_", "cython_runtime"))}


def test_a_compute_node_needs_only_pynvml_and_pyyaml():
    assert _pulled_in("slurm_gpu.node.main").keys() <= {"pynvml", "yaml"}


def _extras() -> dict[str, list[str]]:
    """Return the distributions that setup.cfg names for each extra."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return {
        extra: [Requirement(line).name for line in lines.split("\n") if line and "slurm-gpu[" not in line]
        for extra, lines in setup["options.extras_require"].items()
    }


def _modules_of(distribution: str) -> set[str]:
    """Return the names under which a distribution is imported, or its own name if it is not installed."""
    name = distribution.lower()
    found = {module for module, its in packages_distributions().items() if name in map(str.lower, its)}
    return found or {name.replace("-", "_")}


def test_each_library_of_an_extra_is_imported_by_its_part():
    graph = grimp.build_graph("slurm_gpu", cache_dir=None, include_external_packages=True)
    for extra, parts in _PARTS.items():
        imported = set[str]().union(
            *(graph.find_upstream_modules(f"slurm_gpu.{part}", as_package=True) for part in parts)
        )
        unused = {one for one in _extras()[extra] if not _modules_of(one) & imported}
        assert unused <= _UNSEEN, f"setup.cfg: {extra} names {unused}, which no module of it imports"


def test_each_tool_of_the_extras_for_developers_is_used():
    """`docs` and `audit` are installed by the targets of the Makefile that run them."""
    files = [path for part in ("tests", "bench", "lab", "packaging") for path in (ROOT / part).rglob("*.py")]
    files += [ROOT / "Makefile", ROOT / "pyproject.toml"]
    used = [path.read_text() for path in files if path != Path(__file__).resolve()]
    whole = "\n".join(used)
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", whole, re.MULTILINE))
    imported |= set(re.findall(r'importorskip\(\s*"(\w+)', whole))
    extras = _extras()
    others = {name.lower() for extra in _PARTS for name in extras[extra]} | {"pyyaml"}
    for name in {*extras["build"], *extras["dev"]} - _RUN.keys():
        typed = name.removeprefix("types-").lower()
        assert _modules_of(name) & imported or (typed != name and typed in {*others, *imported}), name
    for name, command in _RUN.items():
        assert any(command in text for text in used), name


def test_the_daemon_that_places_jobs_needs_no_numpy():
    assert "numpy" not in _pulled_in("slurm_gpu.controller.main")


def test_learned_properties_of_shared_jobs_are_written_without_numpy():
    assert "numpy" not in _pulled_in("slurm_gpu.cli.colocation.learned")


@pytest.mark.parametrize("module", ["dqngpu", "deeprm", "model_file"])
def test_learned_planners_need_only_numpy(module: str):
    assert _pulled_in(f"slurm_gpu.colocation.learned.{module}").keys() <= {"numpy"}


def test_a_login_node_needs_no_database_libraries():
    """Import all commands in one process; together they import no library of the daemons."""
    foreign = _pulled_in("slurm_gpu.cli.main", *(module for module, _ in COMMANDS.values()))
    of_daemons = {"sqlalchemy", "alembic", "pymysql", "starlette", "uvicorn", "pynvml"}
    assert foreign.keys() & of_daemons == set(), {name: foreign[name] for name in foreign.keys() & of_daemons}


def test_help_is_there_at_once_without_the_heavy_libraries():
    assert not _pulled_in("slurm_gpu.cli.main").keys() & {"httpx", "lupa", "rich", "numpy"}
