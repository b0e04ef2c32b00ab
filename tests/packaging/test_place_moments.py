"""Hooks are installed and removed without a moment in which Slurm would drain a node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from .placing import PLACE, Tree, is_hook, mode

# The numbers of changes while another process reads the directory.
A_FEW, MANY = 8, 1000

needs_unshare = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


def test_a_failed_install_keeps_the_old_hook(tree: Tree):
    tree.done("install")
    before = tree.hook["prolog"].read_text()
    (tree.texts / "prolog").write_text("")  # an incomplete package
    done = tree("install")
    assert (done.returncode, tree.hook["prolog"].read_text()) == (3, before)
    (tree.texts / "prolog").unlink()
    done = tree("install")
    assert (done.returncode, tree.hook["prolog"].read_text()) == (3, before)
    assert "reinstall the package" in done.stderr
    assert [path.name for path in tree.hook["prolog"].parent.iterdir()] == ["10-slurm-gpu"]


@needs_unshare
def test_a_full_disk_leaves_the_hook_whole(tree: Tree):
    tree.done("install")
    script = f"""
        mkdir {tree.root}/disk && mount -t tmpfs -o size=16k none {tree.root}/disk || exit 77
        mkdir {tree.root}/disk/etc && cp -r {tree.slurm} {tree.root}/disk/etc
        cat /dev/zero >{tree.root}/disk/filler 2>/dev/null
        sh {PLACE} remove --root={tree.root}/disk --texts={tree.texts} 2>&1
        echo "status $?"
        cd {tree.root}/disk/etc/slurm/prolog.d && cmp {tree.hook["prolog"]} 10-slurm-gpu && ls -A
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=20
    )
    if done.returncode == 77:
        pytest.skip("cannot mount a tmpfs here")
    assert "prolog.d/10-slurm-gpu could not be written and is unchanged" in done.stdout
    assert done.stdout.endswith("status 3\n10-slurm-gpu\n"), done.stdout


class Watch:
    """Read a directory continuously, as slurmd would."""

    def __init__(self, directory: Path, allowed: set[bytes]) -> None:
        self.directory, self.allowed = directory, allowed
        self.scans, self.wrong = 0, set[str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch_directory)

    def _watch_directory(self) -> None:
        while not self._over.is_set():
            found = [path for path in os.scandir(self.directory) if not path.name.startswith(".")]
            if [path.name for path in found] != ["10-slurm-gpu"]:
                self.wrong.add(f"found {[path.name for path in found]}")
            with (self.directory / "10-slurm-gpu").open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o777 != 0o755:
                    self.wrong.add("mode")
                if file.read() not in self.allowed:
                    self.wrong.add("text")
            self.scans += 1

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def both_texts(tree: Tree) -> set[bytes]:
    """Return the allowed texts of the prolog."""
    texts = set()
    for command in ("remove", "install"):
        tree.done("install")
        tree.done(command)
        texts.add(tree.hook["prolog"].read_bytes())
    return texts


@pytest.mark.parametrize("changes", [A_FEW, pytest.param(MANY, marks=[pytest.mark.lab, pytest.mark.long])])
def test_at_no_moment_is_the_hook_missing_or_half_written(tree: Tree, changes: int):
    allowed = both_texts(tree)
    with Watch(tree.hook["prolog"].parent, allowed) as watch:
        for _ in range(changes // 2):
            tree.done("remove")
            tree.done("install")
    assert watch.wrong == set()
    assert watch.scans > changes


def test_killed_at_any_moment_it_leaves_a_whole_hook(tree: Tree):
    allowed = both_texts(tree)
    for delay_ms in range(0, 24, 2):
        command = "remove" if delay_ms % 4 else "install"
        process = subprocess.Popen(
            ["/bin/sh", PLACE, command, f"--root={tree.root}", f"--texts={tree.texts}"],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(delay_ms / 1000)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert tree.hook["prolog"].read_bytes() in allowed
        assert mode(tree.hook["prolog"]) == 0o755
    tree.done("install")
    assert is_hook(tree, "prolog")


@needs_unshare
def test_another_host_that_does_the_same_in_the_same_directory_is_not_disturbed(tree: Tree):
    """Hosts that were just started may have processes with the same IDs."""
    tree.done("install")
    other = tree.hook["prolog"].with_name(".10-slurm-gpu.1")
    other.write_text("half of what another host writes")
    argv = ["unshare", "--pid", "--fork", "sh", PLACE, "remove"]
    done = subprocess.run(
        [*argv, f"--root={tree.root}", f"--texts={tree.texts}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert other.read_text() == "half of what another host writes"
