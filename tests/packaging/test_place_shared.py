"""Removing the package from one of several hosts with a shared file system changes nothing for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from .placing import KINDS, PLACE, PLACE_LUA, Tree, is_hook, is_stub
from .scripts import apply, keep, own_script, submitted

SHARED = ("nfs", "lustre", "gpfs", "ceph", "fuseblk")
OWN = ("ext2/ext3", "xfs", "btrfs", "zfs", "tmpfs", "overlayfs")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


@pytest.fixture
def lua(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "root", PLACE_LUA)
    tree.slurm.mkdir(parents=True)
    return tree


@pytest.mark.parametrize("filesystem", SHARED)
def test_hooks_that_others_may_run_stay(tree: Tree, filesystem: str):
    tree.done("install")
    tree.set_filesystem(filesystem)
    said = tree.done("remove")
    assert all(is_hook(tree, kind) for kind in KINDS)
    for hook in tree.hook.values():
        assert f"{hook} is on {filesystem}, which other hosts may share: it stays" in said
    assert f"run: {PLACE} remove --shared" in said


@pytest.mark.parametrize("filesystem", OWN)
def test_hooks_of_this_host_alone_become_stubs(tree: Tree, filesystem: str):
    tree.done("install")
    tree.set_filesystem(filesystem)
    tree.done("remove")
    assert all(is_stub(tree, kind) for kind in KINDS)


def test_an_unknown_directory_counts_as_shared(tree: Tree):
    tree.done("install")
    tree.set_filesystem("UNKNOWN (0x19800202)")
    assert "is on a file system of unknown type, which other hosts may share" in tree.done("remove")
    assert all(is_hook(tree, kind) for kind in KINDS)


def test_removal_from_the_last_host_makes_hooks_stubs_for_all(tree: Tree):
    tree.done("install")
    tree.set_filesystem("nfs")
    tree.done("remove", "--shared")
    assert all(is_stub(tree, kind) for kind in KINDS)
    assert "is a stub" in tree.done("remove")
    tree.done("install")
    assert all(is_hook(tree, kind) for kind in KINDS)


def test_advised_commands_name_the_directory(tree: Tree):
    (tree.root / "opt/slurm").mkdir(parents=True)
    tree.done("install", "--conf=/opt/slurm")
    tree.set_filesystem("nfs")
    assert f"run: {PLACE} remove --conf /opt/slurm --shared" in tree.done("remove", "--conf=/opt/slurm")
    hook = tree.root / "opt/slurm/prolog.d/10-slurm-gpu"
    hook.unlink()
    assert f"is missing; run: {PLACE} install --conf /opt/slurm" in tree.refused(
        "status", "--conf=/opt/slurm"
    )


@pytest.mark.parametrize("filesystem", SHARED)
def test_a_script_that_another_slurmctld_may_use_remains_in_force(lua: Tree, filesystem: str):
    script = apply(lua)
    before = script.read_bytes()
    lua.set_filesystem(filesystem)
    said = lua.done("remove")
    assert script.read_bytes() == before
    assert f"{script} is on {filesystem}, which other hosts of slurmctld may share: it stays" in said
    assert f"{PLACE_LUA} remove --shared" in said


def test_removal_from_the_last_slurmctld_restores_the_site_s_script(lua: Tree):
    own = own_script(lua, "site.lua")
    keep(lua, "20261121T183000Z", own.read_text())
    script = apply(lua)
    lua.set_filesystem("nfs")
    lua.done("remove", "--shared")
    assert submitted(script.read_text()) == {(0, ("asked site",))}


def test_both_scripts_recognise_the_same_file_systems():
    texts = [script.read_text().partition("\nmay_be_shared() {\n")[2] for script in (PLACE, PLACE_LUA)]
    bodies = {text.partition("\n}\n")[0] for text in texts}
    assert len(bodies) == 1
    assert "xfs" in bodies.pop()
