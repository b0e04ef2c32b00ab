"""Installed packages run with this machine's Python 3.11, and without any file of the checkout."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_gpu
from tests.packaging.conftest import Built
from tests.packaging.trees import Tree

pytestmark = [pytest.mark.lab, pytest.mark.long]
WITHIN_S = 30.0


def name_cluster(tree: Tree) -> None:
    """Replace the placeholder in the site file, as an admin does: without this, nothing starts."""
    path = tree.root / "etc/slurm-gpu/slurm-gpu.yaml"
    path.write_text(path.read_text().replace("CHANGE-ME", "lab"))


@pytest.fixture(scope="module")
def installed(built: Built, system: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    tree = Tree(tmp_path_factory.mktemp("installed") / "root", system)
    tree.rpm("-U", *built.packages)
    name_cluster(tree)
    return tree


@pytest.mark.parametrize(
    "command",
    ["sbin/slurm-gpud", "sbin/slurm-gpudbd", "sbin/slurm-gpuctld", "sbin/slurm-gpuweb", "bin/slurm-gpu"],
)
def test_every_command_starts(installed: Tree, command: str) -> None:
    name = command.rpartition("/")[2]
    version = installed.run(f"/usr/{command}", "--version")
    assert version.stdout == f"{name} {slurm_gpu.__version__}\n", version.stderr
    shown = installed.run(f"/usr/{command}", "--help")
    assert shown.returncode == 0
    assert name in shown.stdout


@pytest.mark.parametrize(
    "command", ["job", "jobs", "nodes", "explain", "forecast", "quota", "policy", "report", "db", "doctor"]
)
def test_every_subcommand_finds_its_libraries(installed: Tree, command: str) -> None:
    shown = installed.run("/usr/bin/slurm-gpu", command, "--help")
    assert shown.returncode == 0, shown.stderr


# The functions of scikit-learn that slurm_gpu.forecast.learn uses, fitted to a straight line.
LEARN = """
import sys
sys.path += [f"/usr/lib64/slurm-gpu/{part}" for part in ("common", "client", "db", "report", "learn")]
import numpy as np
from slurm_gpu.forecast import learn
seen = np.arange(40.0).reshape(20, 2)
line = learn.make_pipeline(learn.StandardScaler(), learn.RidgeCV([1e-6]))
for model in (learn.DecisionTreeRegressor(), learn.ExtraTreeRegressor(), line):
    print(np.abs(model.fit(seen, seen[:, 0]).predict(seen) - seen[:, 0]).max() < 0.1)
"""


def test_packages_for_learning_forecasts_are_complete(installed: Tree) -> None:
    learned = installed.run("/usr/bin/python3.11", "-IS", "-c", LEARN)
    assert learned.stdout == "True\nTrue\nTrue\n", learned.stderr


def test_the_rules_for_applications_are_found(installed: Tree) -> None:
    checked = installed.run("/usr/sbin/slurm-gpud", "applications", "--check")
    assert checked.returncode == 0, checked.stderr


def test_the_example_policy_and_the_lua_modules_are_found(installed: Tree) -> None:
    checked = installed.run("/usr/bin/slurm-gpu", "policy", "check")
    assert checked.returncode == 0, checked.stderr
    assert "/etc/slurm-gpu/policy.yaml: no errors" in checked.stdout


def test_a_node_alone_has_what_slurm_gpud_needs(tree: Tree, built: Built) -> None:
    tree.rpm("-U", built.package(""), built.package("-node"))
    name_cluster(tree)
    shown = tree.run("/usr/sbin/slurm-gpud", "--version")
    assert shown.returncode == 0, shown.stderr
    once = tree.run("/usr/sbin/slurm-gpud", "--no-slurm", "--once", "--print", "--node=n1")
    assert "NVML" in once.stdout + once.stderr  # there is no driver here, but the binding was found


def test_a_controller_works_without_numpy_and_names_the_package_with_it(tree: Tree, built: Built) -> None:
    tree.rpm("-U", *(built.package(part) for part in ("", "-client", "-controller")))
    name_cluster(tree)
    once = tree.run("/usr/sbin/slurm-gpuctld", "--once")
    assert once.stderr == "slurm-gpuctld: scontrol is not on the PATH; install Slurm's client commands\n"
    assert tree.run("/usr/bin/slurm-gpu", "policy", "check").returncode == 0
    lacking = tree.run("/usr/bin/slurm-gpu", "report", "recommend")  # policy adjust calls the same code
    assert lacking.returncode == 3
    assert "the Python module numpy is not installed" in lacking.stderr
    assert "install slurm-gpu-db" in lacking.stderr


def test_the_site_s_python_packages_are_not_used(tree: Tree, built: Built) -> None:
    tree.rpm("-U", *built.packages)
    for place in ("usr/lib/python3/dist-packages", "usr/local/lib/python3.11/dist-packages", "tmp"):
        (tree.root / place).mkdir(parents=True, exist_ok=True)
        (tree.root / place / "yaml.py").write_text("raise SystemExit('a foreign yaml')\n")
    shown = tree.run("/bin/sh", "-c", "cd /tmp && PYTHONPATH=/tmp /usr/bin/slurm-gpu --version")
    assert shown.stdout == f"slurm-gpu {slurm_gpu.__version__}\n", shown.stderr


@pytest.fixture
def answering(installed: Tree) -> Iterator[Path]:
    """Start the installed slurm-gpudbd on SQLite, and return its socket."""
    for directory in ("run/slurm-gpu", "var/lib/slurm-gpu"):
        (installed.root / directory).mkdir(exist_ok=True)
    (installed.root / "etc/slurm-gpu/slurm-gpudbd.yaml").chmod(0o600)
    path = installed.root / "run/slurm-gpu/slurm-gpudbd.sock"
    daemon = installed.start("/usr/sbin/slurm-gpudbd", "--listen=127.0.0.1:0")
    try:
        end_s = time.monotonic() + WITHIN_S
        while not path.exists() and daemon.poll() is None and time.monotonic() < end_s:
            time.sleep(0.05)
        yield path
    finally:
        daemon.kill()
        _, said = daemon.communicate()
    assert "Traceback" not in said, said


def test_slurm_gpudbd_answers_from_sqlite(installed: Tree, answering: Path) -> None:
    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(WITHIN_S)
            self.sock.connect(str(answering))

    with contextlib.closing(Connection("localhost")) as connection:
        connection.request("GET", "/v1/health")
        health = json.loads(connection.getresponse().read())
    assert health["version"] == slurm_gpu.__version__
    assert health["database"].startswith("SQLite")
    shown = installed.run("/usr/bin/slurm-gpu", "jobs", "--json")
    assert json.loads(shown.stdout)["runs"] == [], shown.stderr
