"""Slurm's hooks are installed and removed next to those of the site."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .placing import KINDS, PLACE, PLACE_LUA, SHELLS, Tree, changed, is_hook, is_stub, mode, runs


@pytest.fixture(params=SHELLS)
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    return Tree(tmp_path / "root", shell=request.param)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


def test_hooks_are_placed_and_work(place: Tree, tmp_path: Path):
    place.done("install")
    for kind in KINDS:
        assert is_hook(place, kind)
        assert mode(place.hook[kind]) == mode(place.hook[kind].parent) == 0o755
        done = runs(place.hook[kind], SLURM_JOB_ID="7", SLURM_GPU_RUN_DIR=str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
    names = [path.name.rpartition("-")[2] for path in (tmp_path / "jobs").iterdir()]
    assert sorted(names) == ["epilog", "prolog"]
    assert place("status").returncode == 0


def test_a_removal_leaves_stubs_and_an_install_replaces_them(place: Tree):
    assert place.done("remove") == ""  # on a host without hooks of slurm-gpu
    assert not place.slurm.exists()
    place.done("install")
    place.done("remove")
    assert all(is_stub(place, kind) and mode(place.hook[kind]) == 0o755 for kind in KINDS)
    assert "is the stub of a removal" in place.refused("status")
    place.done("install")
    assert all(is_hook(place, kind) for kind in KINDS)
    assert sorted(place.slurm.rglob("*")) == sorted(
        [*place.hook.values(), *(hook.parent for hook in place.hook.values())]
    )


@pytest.mark.parametrize("command", ["install", "remove"])
def test_a_second_time_changes_nothing(tree: Tree, command: str):
    tree.done("install")
    tree.done(command)
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in tree.hook.values()]
    tree.done(command)
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in tree.hook.values()] == before


def test_a_new_version_replaces_the_old_one(tree: Tree):
    tree.done("install")
    (tree.texts / "prolog").write_text((tree.texts / "prolog").read_text() + "# new\n")
    assert "10-slurm-gpu is of another version" in tree.refused("status")
    tree.done("install")
    assert is_hook(tree, "prolog")
    assert not list(tree.slurm.glob("*.kept"))


def test_a_hook_of_an_earlier_release_is_replaced(tree: Tree):
    text = (tree.texts / "prolog").read_text()
    (tree.texts / "prolog").write_text(text.replace(": notify slurm-gpud ", ": tell slurm-gpud ", 1))
    tree.done("install")
    (tree.texts / "prolog").write_text(text)
    assert ": tell slurm-gpud " in tree.hook["prolog"].read_text()
    assert "10-slurm-gpu is of another version" in tree.refused("status")
    tree.done("install")
    assert is_hook(tree, "prolog")
    assert not list(tree.slurm.glob("*.kept"))


def test_one_that_was_put_there_by_hand_is_taken_over(tree: Tree):
    for kind in KINDS:
        tree.hook[kind].parent.mkdir(parents=True)
        shutil.copy(tree.texts / kind, tree.hook[kind])
    tree.hook["prolog"].chmod(0o644)  # a careless installation by hand
    tree.done("install")
    assert all(mode(hook) == 0o755 for hook in tree.hook.values())
    tree.done("remove")
    assert all(is_stub(tree, kind) for kind in KINDS)


@pytest.mark.parametrize("command", ["install", "remove"])
def test_a_file_of_the_sites_own_is_never_touched(place: Tree, command: str):
    own = place.hook["prolog"]
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\n# Slurm prolog: ours, which calls slurm-gpu's\nexit 0\n")
    own.chmod(0o700)
    neighbour = own.with_name("50-site")
    shutil.copy2(own, neighbour)
    before = changed(own)
    done = place(command)
    assert done.returncode == (1 if command == "install" else 0)
    assert "10-slurm-gpu is not slurm-gpu's" in done.stdout + done.stderr
    assert (changed(own), neighbour.read_text()) == (before, own.read_text())
    if command == "install":
        assert "Move it, then run: " in done.stderr
        assert is_hook(place, "epilog")


def test_an_edited_hook_is_kept(tree: Tree):
    tree.done("install")
    hook = tree.hook["epilog"]
    edited = hook.read_text().replace("umask 077", "umask 077; logger bye")
    hook.write_text(edited)
    assert "90-slurm-gpu was edited here" in tree.refused("status")
    assert "a copy is kept as" in tree.done("remove")
    assert is_stub(tree, "epilog")
    kept = tree.slurm / "90-slurm-gpu.epilog.kept"
    assert kept.read_text() == edited
    hook.write_text(hook.read_text() + "# mine\n")
    tree.done("install")
    assert is_hook(tree, "epilog")
    assert kept.with_name(f"{kept.name}.1").read_text().endswith("# mine\n")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.mkdir, "is a directory, which drains nodes"),
        (os.mkfifo, "is not a regular file, which drains nodes"),
        (lambda path: path.symlink_to("/nowhere"), "is a symbolic link"),
    ],
)
def test_an_invalid_hook_path_is_refused(tree: Tree, make: Callable[[Path], None], said: str):
    hook = tree.hook["prolog"]
    hook.parent.mkdir(parents=True)
    make(hook)
    assert said in tree.refused("install")
    assert not hook.is_file()
    assert is_hook(tree, "epilog")
    assert said in tree.done("remove")


def test_other_hooks_that_would_drain_nodes_are_named(tree: Tree):
    directory = tree.hook["prolog"].parent
    (directory / "old").mkdir(parents=True)
    (directory / "README").write_text("Hooks.\n")
    (directory / "10-slurm-gpu.rpmsave").write_text("#!/bin/sh\n")
    (directory / ".hidden").write_text("no glob finds it")
    said = tree.refused("install")
    assert [line.split()[1].rpartition("/")[2] for line in said.splitlines()] == [
        "10-slurm-gpu.rpmsave",
        "README",
        "old",
    ]
    # A text file would drain nodes even if it were executable.
    assert ["Run chmod +x" in line for line in said.splitlines()] == [True, False, False]
    assert is_hook(tree, "prolog")


@pytest.mark.parametrize("shell", SHELLS)
def test_files_that_the_kernel_cannot_start_are_named(tmp_path: Path, shell: str):
    tree = Tree(tmp_path / "root", shell=shell)
    directory = tree.hook["prolog"].parent
    directory.mkdir(parents=True)
    for name, content in {
        "20-bare": b"exit 0\n",
        "30-empty": b"",
        "40-windows": b"#!/bin/sh\r\nexit 0\r\n",
        "50-no-name": b"#! \n",
        "60-script": b"#! /usr/bin/perl -w\n",
        "70-program": Path("/bin/true").read_bytes(),
    }.items():
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o755)
    said = tree.refused("install").splitlines()
    assert [line.split()[1].rpartition("/")[2] for line in said] == [
        "20-bare",
        "30-empty",
        "40-windows",
        "50-no-name",
    ]
    assert all("Slurm drains nodes for it. Fix or move it" in line for line in said)


def test_a_second_hook_of_ours_is_named(tree: Tree):
    tree.done("install")
    shutil.copy(tree.hook["epilog"], tree.hook["epilog"].with_name("10-slurm-gpu"))
    assert "10-slurm-gpu is also slurm-gpu's, and reports everything twice" in tree.refused("install")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["place"],
        ["install", "remove"],
        ["install", "--conf"],
        ["install", "--conf=etc"],
        ["status", "-x"],
    ],
)
def test_wrong_usage_changes_nothing(tree: Tree, words: list[str]):
    for script in (PLACE, PLACE_LUA):
        done = subprocess.run(["/bin/sh", script, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith(f"usage: {script.name} ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the owner of files")
def test_a_file_that_another_user_could_change_is_recreated(tree: Tree):
    tree.done("install")
    os.chown(tree.hook["epilog"], 1001, 1001)
    assert "does not have mode 755 or owner root" in tree.refused("status")
    tree.done("install")
    assert tree.hook["epilog"].stat().st_uid == 0
    tree.done("remove")
    os.chown(tree.hook["prolog"], 1001, 1001)
    tree.done("remove")
    assert tree.hook["prolog"].stat().st_uid == 0
