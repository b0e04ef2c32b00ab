"""`slurm-gpu doctor` reports everything that would drain a node, with or without GPUs."""

import dataclasses
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.files import hooks
from slurm_gpu.cli.doctor.checks.finding import DoctorContext, Level
from slurm_gpu.cli.doctor.checks.slurm import drains
from tests.cli.installation import Installation, levels, worst


def without_gpus(installed: Installation) -> DoctorContext:
    """Return the context of a node without GPUs."""
    at = installed.at("c1")
    at.nodes = [dataclasses.replace(at.site.slurm.nodes()[0], name="c1", address="10.0.0.9", gpus={})]
    return at


@pytest.fixture
def bare(installed: Installation) -> Installation:
    """Remove the hooks."""
    for kind in ("prolog", "epilog"):
        (installed.root / f"{kind}.d" / "10-slurm-gpu").unlink()
    return installed


def test_an_empty_glob_is_reported_on_a_node_without_gpus_too(bare: Installation):
    found = list(hooks.configured(without_gpus(bare)))
    assert [one.level for one in found] == [Level.FAIL, Level.FAIL]
    assert found[0].message == (
        f"Prolog={bare.root}/prolog.d/* matches no file: Slurm drains the node of the next job"
    )
    stub = f"{bare.root}/prolog.d/00-nothing"
    assert str(found[0].remedy).startswith(
        f"run install -D -m 755 /usr/bin/true {stub} (or remove Prolog from"
    )


def test_the_remedy_for_an_empty_glob_works(bare: Installation):
    for pattern in (f"{bare.root}/prolog.d/*", f"{bare.root}/new/epilog.d/*.sh"):
        directory = Path(pattern).parent
        command = drains.nothing(pattern).split()
        assert command[:5] == ["run", "install", "-D", "-m", "755"]
        directory.mkdir(exist_ok=True, parents=True)
        stub = Path(command[-1])
        stub.write_text("#!/bin/sh\n")
        stub.chmod(0o755)
        assert hooks.matched(pattern) == [stub]
    assert drains.nothing("/etc/slurm/prolog.sh").endswith(" /etc/slurm/prolog.sh")
    assert "to a path that /hooks/[a-c]* matches" in drains.nothing("/hooks/[a-c]*")


def test_a_node_without_gpus_needs_no_slurm_gpu_hook(bare: Installation):
    for kind in ("prolog", "epilog"):
        hook = bare.root / f"{kind}.d" / "00-nothing"
        hook.write_text("#!/bin/sh\n")
        hook.chmod(0o755)
    found = list(hooks.configured(without_gpus(bare)))
    assert [one.level for one in found] == [Level.OK, Level.OK]
    assert found[0].message.endswith("matches only executable files; this node has no GPUs")
    hook.chmod(0o644)
    assert "is not executable: Slurm drains" in worst(hooks.configured(without_gpus(bare))).message


@pytest.mark.parametrize(
    ("content", "problem", "remedy"),
    [
        (b"exit 0\n", "does not begin with #! and an interpreter", "write #!/bin/sh"),
        (b"\xef\xbb\xbf#!/bin/sh\nexit 0\n", "does not begin with #! and an interpreter", "write #!/bin/sh"),
        (b"", "is empty", "write #!/bin/sh"),
        (b"#!/bin/sh\r\nexit 0\r\n", "its lines have Windows line endings", "run sed -i 's/\\r$//' "),
        (b"#! \nexit 0\n", "its #! names no interpreter", "write #!/bin/sh"),
        (
            b"#!/usr/bin/env no-such-python\n",
            "its interpreter, no-such-python, does not exist on this host",
            "install it",
        ),
        (
            b"#!/opt/none/bash -e\n",
            "its interpreter, /opt/none/bash, does not exist on this host",
            "install it, or fix",
        ),
    ],
)
def test_hooks_that_slurmd_cannot_start_are_named(
    installed: Installation, content: bytes, problem: str, remedy: str
):
    """Each of these hooks drained a node of Slurm 22.05, although a shell would run the first."""
    hook = installed.root / "epilog.d" / "50-site"
    hook.write_bytes(content)
    hook.chmod(0o755)
    finding = worst(hooks.configured(installed.at()))
    assert finding.message == f"{hook} is matched by Epilog, but {problem}: Slurm drains nodes"
    assert str(finding.remedy).startswith(remedy)
    assert str(hook) in str(finding.remedy)


def test_file_names_with_spaces_are_quoted_in_remedies(installed: Installation):
    hook = installed.root / "prolog.d" / "70-a hook; reboot"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o644)
    assert (
        worst(hooks.configured(installed.at())).remedy
        == f"run chmod +x '{hook}', or move it to another directory"
    )
    hook.chmod(0o777)
    found = [str(finding.remedy) for finding in hooks.configured(installed.at()) if finding.remedy]
    assert found == [f"review its content, then run chmod go-w '{hook}'"]


def test_programs_and_scripts_of_any_language_are_ok(installed: Installation):
    for name, content in (("05-elf", Path("/bin/true").read_bytes()), ("06-sh", b"#! /usr/bin/env sh")):
        hook = installed.root / "epilog.d" / name
        hook.write_bytes(content)
        hook.chmod(0o755)
    assert levels(hooks.configured(installed.at())) == ["ok", "ok"]


def test_the_slurm_gpu_hook_on_a_node_without_slurm_gpud_is_reported(
    installed: Installation, monkeypatch: pytest.MonkeyPatch
):
    at = without_gpus(installed)
    monkeypatch.setattr(hooks, "shared_file_system", lambda path: None)
    finding = worst(hooks.configured(at))
    hook = f"{installed.root}/prolog.d/10-slurm-gpu"
    assert (finding.level, finding.remedy) == (Level.WARN, f"run install -m 755 /usr/bin/true {hook}")
    monkeypatch.setattr(hooks, "has_package", lambda: True)
    assert str(worst(hooks.configured(at)).remedy).startswith("run dnf remove slurm-gpu-node")
    monkeypatch.setattr(
        hooks, "shared_file_system", lambda path: "nfs4"
    )  # nodes with GPUs share the directory
    assert levels(hooks.configured(at)) == ["ok", "ok"]


def test_a_hook_that_only_root_can_run_is_ok(installed: Installation):
    (installed.root / "prolog.d" / "50-site").write_text("#!/bin/sh\n")
    (installed.root / "prolog.d" / "50-site").chmod(0o700)
    assert levels(hooks.configured(installed.at())) == ["ok", "ok"]


def test_an_unreadable_directory_is_skipped(installed: Installation, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hooks, "may_read", lambda directory: directory.name != "prolog.d")
    found = list(hooks.configured(installed.at()))
    assert [one.level for one in found] == [Level.SKIPPED, Level.OK]
    assert found[0].message == f"only root may read {installed.root}/prolog.d; run doctor as root"


# Nodes that are drained already


def drained(installed: Installation, *states: tuple[str, str, str | None]) -> DoctorContext:
    at = installed.at()
    node = at.site.slurm.nodes()[0]
    at.nodes = [
        dataclasses.replace(node, name=name, state=state, reason=reason) for name, state, reason in states
    ]
    return at


def test_nodes_drained_by_a_hook_are_reported(installed: Installation):
    at = drained(
        installed,
        ("n1", "idle+drain", "Prolog error"),
        ("n2", "mixed", None),
        ("n3", "down+drain", "Prolog error"),
        ("n4", "idle+drain", "Epilog error"),
        ("n5", "idle+drain", "disk is full"),
    )
    found = list(drains.drained(at))
    assert [one.message for one in found] == ["drained: n[1,3] (Prolog error)", "drained: n4 (Epilog error)"]
    assert {one.level for one in found} == {Level.FAIL}
    assert "run slurm-gpu doctor on n1" in str(found[0].remedy)
    resume = "scontrol update nodename=n[1,3] state=resume"
    # Slurm requeues a job whose prolog failed, and holds it.
    assert str(found[0].remedy).endswith(f"{resume}, and scontrol release JOBID for the jobs held since")
    assert str(found[1].remedy).endswith("scontrol update nodename=n4 state=resume")


@pytest.mark.parametrize(
    "reason",
    ["gres/gpu count too low (3 < 4)", "gres/gpu count reported lower than configured (3 < 4)"],
)
def test_nodes_drained_for_missing_gpus_are_reported(installed: Installation, reason: str):
    (finding,) = drains.drained(drained(installed, ("n1", "inval", reason)))
    assert finding.message == f"drained: n1 ({reason})"
    assert "compare the output of nvidia-smi -L and slurmd -G" in str(finding.remedy)


def test_nodes_drained_by_operators_are_ok(installed: Installation):
    at = drained(installed, ("n1", "idle+drain", "new disks"), ("n2", "idle", "Prolog error, fixed"))
    assert levels(drains.drained(at)) == ["ok"]
