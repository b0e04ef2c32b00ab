"""Packages use the configuration of the units if Slurm's configuration is not in /etc/slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from .placing import KINDS, PLACE_LUA, SHELLS, Tree, is_hook, is_stub

STUB = "-- slurm-gpu was removed: "
OURS = "-- slurm-gpu 0.2.0: made by `slurm-gpu policy apply`\nlocal lib = {}\n"


class Elsewhere(Tree):
    """A host whose units have another slurm.conf."""

    def set_default(self, line: str, file: str = "etc/sysconfig/slurm-gpu") -> None:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"PATH=/opt/slurm/bin:/usr/bin\n{line}\n")

    def in_opt(self) -> Tree:
        """Return the same host with hooks in /opt instead."""
        there = Tree.__new__(Tree)
        there.__dict__ |= self.__dict__
        there.hook = {
            kind: self.root / "opt/slurm/etc" / self.hook[kind].relative_to(self.slurm) for kind in KINDS
        }
        return there


@pytest.fixture
def host(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path / "root")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("etc/sysconfig/slurm-gpu", "SLURM_CONF=/opt/slurm/etc/slurm.conf"),
        (
            "etc/sysconfig/slurm-gpu",
            '#SLURM_CONF=/no\nSLURM_CONF=/old/x.conf\nSLURM_CONF="/opt/slurm/etc/a.conf" ',
        ),
        ("etc/default/slurm-gpu", "  SLURM_CONF='/opt/slurm/etc/slurm.conf'"),
    ],
)
@pytest.mark.parametrize("shell", SHELLS)
def test_hooks_are_installed_and_removed_next_to_another_slurm_conf(
    host: Elsewhere, file: str, line: str, shell: str
):
    host.shell = shell
    host.set_default(line, file)
    there = host.in_opt()
    host.done("install")
    assert all(is_hook(tree, kind) for tree in (there, host) for kind in KINDS)
    host.done("remove")
    assert all(is_stub(tree, kind) for tree in (there, host) for kind in KINDS)


@pytest.mark.parametrize(
    "line", ["SLURM_CONF=", "SLURM_CONF=slurm.conf", "SLURM_CONF=$HOME/slurm.conf", "X=/y/z"]
)
def test_settings_that_name_no_file_are_ignored(host: Elsewhere, line: str):
    host.set_default(line)
    host.done("install")
    assert all(is_hook(host, kind) for kind in KINDS)
    assert {path.name for path in host.root.iterdir()} == {"etc", "usr"}


def test_a_named_directory_is_the_only_one(host: Elsewhere):
    host.slurm.mkdir(parents=True)
    host.set_default("SLURM_CONF=/opt/slurm/etc/slurm.conf")
    host.done("install", "--conf=/etc/slurm")
    assert all(is_hook(host, kind) for kind in KINDS)
    assert not (host.root / "opt").exists()
    for nothing in ("--conf=", "--conf=etc"):
        assert host("install", nothing).returncode == 2


def test_a_named_directory_that_does_not_exist_is_not_created(host: Elsewhere):
    done = host("install", "--conf=/nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert "/nosuch is not a directory" in done.stderr
    assert not (host.root / "nosuch").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_next_to_another_slurm_conf_becomes_a_stub(tmp_path: Path, shell: str):
    host = Elsewhere(tmp_path / "root", PLACE_LUA, shell)
    host.set_default('SLURM_CONF="/opt/slurm/etc/slurm.conf"')
    scripts = [host.root / place / "job_submit.lua" for place in ("opt/slurm/etc", "etc/slurm")]
    for script in scripts:
        script.parent.mkdir(parents=True)
        script.write_text(OURS)
    assert host("status").returncode == 1
    host.done("remove")
    assert all(script.read_text().startswith(STUB) for script in scripts)
