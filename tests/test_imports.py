"""The rooms hold: who may import whom, and what a host of each kind needs to have installed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Prints the distributions outside the standard library that importing a module pulled in.
_PULLED_IN = """
import importlib, sys
importlib.import_module(sys.argv[1])
names = {name.partition(".")[0] for name in sys.modules}
print(*sorted(names - set(sys.stdlib_module_names) - {"__main__", "slurm_gpu"}))
"""


def test_imports_point_one_way():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _pulled_in(module: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PULLED_IN, module], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in done.stdout.split() if not name.startswith(("_", "cython_runtime"))}


def test_a_compute_node_needs_only_pynvml_psutil_and_pyyaml():
    assert _pulled_in("slurm_gpu.node.main") <= {"pynvml", "psutil", "yaml"}


def test_the_daemon_that_places_jobs_needs_no_numpy():
    assert "numpy" not in _pulled_in("slurm_gpu.controller.main")


def test_what_was_learned_of_jobs_that_share_is_written_without_numpy():
    assert "numpy" not in _pulled_in("slurm_gpu.cli.colocationlearned")


@pytest.mark.parametrize("module", ["dqngpu", "deeprm", "modelfile"])
def test_what_was_learned_is_used_with_numpy_alone(module: str):
    assert _pulled_in(f"slurm_gpu.colocation.learned.{module}") <= {"numpy"}


@pytest.mark.parametrize(
    "command",
    [
        "main",
        "job",
        "jobs",
        "nodes",
        "top",
        "open",
        "doctor",
        "explain",
        "forecast",
        "diagnose",
        "quota",
        "policy",
        "placement",
        "colocation",
        "audit",
        "notices",
        "report",
        "db",
    ],
)
def test_a_login_node_needs_no_database_libraries(command: str):
    foreign = _pulled_in(f"slurm_gpu.cli.{command}")
    of_daemons = {"sqlalchemy", "alembic", "msgspec", "pymysql", "starlette", "uvicorn", "psutil", "pynvml"}
    assert not foreign & of_daemons


def test_help_is_there_at_once_without_the_heavy_libraries():
    assert not _pulled_in("slurm_gpu.cli.main") & {"httpx", "lupa", "rich", "numpy"}
