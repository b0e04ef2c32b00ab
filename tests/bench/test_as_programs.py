"""Each benchmark can be run by its path from any directory, like the commands in bench/results."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
PROGRAMS = sorted(path for path in BENCH.glob("*.py") if "ArgumentParser(" in path.read_text())
NEEDS = {"gpu_load": "torch"}

# Runs each program like `python PATH --help`, in a forked process that has already imported slow third-party
# libraries. Each program must find the project's modules by itself.
_RUN_EACH = """
import contextlib, gc, importlib, json, os, runpy, sys, tempfile, traceback
for library in ("alembic.command", "sklearn.ensemble", "scipy.optimize", "starlette.applications"):
    with contextlib.suppress(ImportError):
        importlib.import_module(library)
gc.freeze()
sys.path.remove("")  # a script has no import path to the current directory
results = {}
for path in sys.argv[1:]:
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            sys.argv, sys.path = [path, "--help"], [os.path.dirname(path), *sys.path]
            status = 1
            try:
                runpy.run_path(path, run_name="__main__")
                status = 0
            except SystemExit as end:
                status = end.code or 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status if isinstance(status, int) else 1)  # without tearing down imported modules
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        results[path] = status, said.read()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Return exit status and output by path."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN_EACH, *map(str, PROGRAMS)],
        cwd=tmp_path_factory.mktemp("anywhere"),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_help_shows_the_usage(path: Path, helps: dict[str, tuple[int, str]]) -> None:
    if (needed := NEEDS.get(path.stem)) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    status, said = helps[str(path)]
    assert status == 0, said
    assert said.startswith(f"usage: {path.name}")
