"""Effects of installing, upgrading and removing packages on a host, mostly without systemd."""

import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_gpu.policy.lua.bundle import MARK
from tests.packaging.conftest import Built
from tests.packaging.trees import Tree

pytestmark = [pytest.mark.lab, pytest.mark.long]

PLACE = "/usr/libexec/slurm-gpu/hooks/place"
HOOKS = ("etc/slurm/prolog.d/10-slurm-gpu", "etc/slurm/epilog.d/90-slurm-gpu")


def _hooks(tree: Tree) -> list[str]:
    return [(tree.root / hook).read_text() for hook in HOOKS]


def _are_real(tree: Tree) -> bool:
    return tree.run(PLACE, "status").returncode == 0


def _are_stubs(tree: Tree) -> bool:
    return all(
        "slurm-gpu was removed" in text and tree.run(f"/{hook}").returncode == 0
        for hook, text in zip(HOOKS, _hooks(tree), strict=True)
    )


def test_hooks_are_installed_next_to_those_of_the_site(tree: Tree, built: Built) -> None:
    site = tree.root / "etc/slurm/prolog.d/50-site"
    site.parent.mkdir(parents=True)
    site.write_text("#!/bin/sh\nexit 0\n")
    site.chmod(0o755)
    tree.rpm("-U", built.package(""), built.package("-node"))
    assert _are_real(tree)
    assert site.read_text() == "#!/bin/sh\nexit 0\n"
    assert {path.name for path in site.parent.iterdir()} == {"10-slurm-gpu", "50-site"}


def test_a_file_of_the_site_with_that_name_stays_and_is_reported(tree: Tree, built: Built) -> None:
    site = tree.root / HOOKS[0]
    site.parent.mkdir(parents=True)
    site.write_text("#!/bin/sh\n# the site's own\n")
    site.chmod(0o755)
    said = tree.rpm("-U", built.package(""), built.package("-node"))
    assert f"/{HOOKS[0]} is not slurm-gpu's" in said
    tree.rpm("-e", "slurm-gpu-node")
    assert site.read_text() == "#!/bin/sh\n# the site's own\n"


def test_an_upgrade_keeps_hooks_and_what_the_admin_wrote(tree: Tree, built: Built, next_built: Built) -> None:
    tree.rpm("-U", *built.packages)
    site_file = tree.root / "etc/slurm-gpu/slurm-gpu.yaml"
    site_file.write_text("cluster: ours\n")
    hooks = _hooks(tree)
    tree.rpm("-U", *next_built.packages)
    assert tree.rpm("-q", "slurm-gpu-node").strip().endswith("-2.el9.x86_64")
    assert _are_real(tree)
    assert _hooks(tree) == hooks
    assert site_file.read_text() == "cluster: ours\n"


@pytest.mark.parametrize("edited", [False, True])
def test_an_upgrade_leaves_the_password_to_the_slurm_user_of_the_site(
    tree: Tree, built: Built, next_built: Built, edited: bool
) -> None:
    """rpm replaces an unedited file with the version in the package, whose owner is slurm."""
    tmpfiles = shutil.which("systemd-tmpfiles")
    if tmpfiles is None:
        pytest.skip("needs systemd-tmpfiles")
    tree.rpm("-U", *built.packages)
    shutil.copy(tmpfiles, tree.root / "usr/bin")
    for file, line in (("passwd", "hpc:x:64031:64031::/:/bin/sh\n"), ("group", "hpc:x:64031:\n")):
        with (tree.root / "etc" / file).open("a") as out:
            out.write(line)
    own = tree.root / "etc/tmpfiles.d/slurm-gpu.conf"
    own.parent.mkdir()
    packaged = (tree.root / "usr/lib/tmpfiles.d/slurm-gpu.conf").read_text()
    own.write_text(packaged.replace(" slurm slurm ", " hpc hpc "))
    assert tree.run("systemd-tmpfiles", "--create", "slurm-gpu.conf").returncode == 0
    secret = tree.root / "etc/slurm-gpu/slurm-gpudbd.yaml"
    if edited:
        secret.write_text("database: ours\n")
    before = secret.read_text()
    tree.rpm("-U", *next_built.packages)
    status = secret.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (64031, 64031, 0o600)
    assert secret.read_text() == before


def test_going_back_works_as_an_upgrade_does(tree: Tree, built: Built, next_built: Built) -> None:
    tree.rpm("-U", *next_built.packages)
    tree.rpm("-U", "--oldpackage", *built.packages)
    assert _are_real(tree)


def test_removing_leaves_stubs_that_let_every_job_run(tree: Tree, built: Built) -> None:
    tree.rpm("-U", *built.packages)
    (tree.root / "etc/slurm-gpu/slurm-gpu.yaml").write_text("cluster: ours\n")
    tree.rpm(
        "-e",
        *(
            f"slurm-gpu{part}"
            for part in ("", "-node", "-client", "-db", "-web", "-report", "-learn", "-controller")
        ),
    )
    assert _are_stubs(tree)
    left = {str(path.relative_to(tree.root)) for path in tree.root.rglob("*") if "slurm-gpu" in path.name}
    assert left == {*HOOKS, "etc/slurm-gpu", "etc/slurm-gpu/slurm-gpu.yaml.rpmsave"}


def test_installing_again_makes_the_stubs_hooks_again(tree: Tree, built: Built) -> None:
    node = [built.package(""), built.package("-node")]
    tree.rpm("-U", *node)
    hooks = _hooks(tree)
    tree.rpm("-e", "slurm-gpu-node")
    assert _are_stubs(tree)
    tree.rpm("-U", built.package("-node"))
    assert _are_real(tree)
    assert _hooks(tree) == hooks


def test_removing_the_controller_leaves_a_script_for_slurmctld(tree: Tree, built: Built) -> None:
    tree.rpm("-U", *built.packages)
    script = tree.root / "etc/slurm/job_submit.lua"
    script.write_text(f"{MARK}0.2.0\nlocal lib = {{}}\n")
    tree.rpm("-U", "--replacepkgs", *built.packages)
    assert script.read_text().startswith(MARK)
    tree.rpm("-e", "slurm-gpu-controller")
    assert "accepts every job" in script.read_text()


def test_removing_the_controller_gives_the_site_back_the_script_that_it_had(tree: Tree, built: Built) -> None:
    tree.rpm("-U", *built.packages)
    site = "function slurm_job_submit() return 0 end\nfunction slurm_job_modify() return 0 end\nreturn 0\n"
    kept = tree.root / "var/lib/slurm-gpu/policy/job_submit-20261121T183000Z.lua"
    kept.parent.mkdir(parents=True)
    kept.write_text(site)
    script = tree.root / "etc/slurm/job_submit.lua"
    script.write_text(f"{MARK}0.2.0\nlocal lib = {{}}\n")
    assert "is the site's script again" in tree.rpm("-e", "slurm-gpu-controller")
    assert script.read_text() == kept.read_text() == site


def test_a_script_of_the_site_stays(tree: Tree, built: Built) -> None:
    tree.rpm("-U", *built.packages)
    script = tree.root / "etc/slurm/job_submit.lua"
    script.write_text("-- the site's own\n")
    tree.rpm("-e", "slurm-gpu-controller")
    assert script.read_text() == "-- the site's own\n"


@pytest.fixture
def asked_of_systemd(tree: Tree) -> Path:
    """Return the log of calls to a fake systemctl in the tree."""
    (tree.root / "run/systemd/system").mkdir(parents=True)
    systemctl = tree.root / "usr/bin/systemctl"
    systemctl.write_text('#!/bin/sh\necho "$*" >>/asked\n')
    systemctl.chmod(0o755)
    return tree.root / "asked"


def _asked(path: Path) -> list[str]:
    lines = [line for line in path.read_text().splitlines() if line != "daemon-reload"]
    path.unlink()
    return lines


def test_scriptlets_call_systemd_for_the_units(
    tree: Tree, built: Built, next_built: Built, asked_of_systemd: Path
) -> None:
    def node(of: Built) -> list[Path]:
        return [of.package(""), of.package("-node")]

    tree.rpm("-U", *node(built))
    assert _asked(asked_of_systemd) == ["--no-reload preset slurm-gpud.service"]
    tree.rpm("-U", *node(next_built))
    assert _asked(asked_of_systemd) == ["try-restart slurm-gpud.service"]
    tree.rpm("-e", "slurm-gpu-node")
    assert _asked(asked_of_systemd) == ["--no-reload disable slurm-gpud.service", "stop slurm-gpud.service"]


def test_a_systemd_that_fails_fails_no_package(tree: Tree, built: Built, asked_of_systemd: Path) -> None:
    (tree.root / "usr/bin/systemctl").write_text("#!/bin/sh\nexit 1\n")
    tree.rpm("-U", *built.packages)
    tree.rpm("-e", "slurm-gpu-node")


def test_the_scriptlets_are_sh_that_runs_everywhere(built: Built) -> None:
    for package in built.packages:
        for kind in ("prein", "postin", "preun", "postun", "posttrans"):
            query = ["rpm", "-qp", "--nosignature", "--queryformat", f"%{{{kind.upper()}}}", package]
            script = subprocess.run(query, capture_output=True, text=True, check=True).stdout
            if script != "(none)":
                subprocess.run(["sh", "-n"], input=script, text=True, check=True)
