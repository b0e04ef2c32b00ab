"""`slurm-gpu doctor` reports a daemon that does not find Slurm's commands, and names the remedy."""

from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.every import CHECKS, run_checks
from slurm_gpu.cli.doctor.checks.files import commands
from slurm_gpu.cli.doctor.checks.finding import DoctorContext, Level
from slurm_gpu.cli.doctor.checks.slurm import gres
from slurm_gpu.errors import SlurmError
from slurm_gpu.node.allocation import slurmd
from tests.cli.installation import Installation, levels, worst

FILE = "in /etc/sysconfig/slurm-gpu"


def daemon(installed: Installation, number: int, name: str, path: str | None, *options: str) -> None:
    process = installed.process(number, "/usr/bin/python3.11", f"/usr/sbin/{name}", *options)
    if path is not None:
        (process / "environ").write_bytes(f"HOME=/\0PATH={path}\0LANG=C\0".encode())


def make_commands(root: Path, *names: str) -> str:
    """Create a directory with these commands."""
    directory = root / "opt"
    directory.mkdir()
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return str(directory)


@pytest.fixture(autouse=True)
def no_sbin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tests independent of a Slurm on this machine."""
    monkeypatch.setattr(commands, "SBIN", "/none")


def test_daemons_that_find_the_commands_are_ok(installed: Installation):
    path = make_commands(installed.root, "slurmd", "scontrol", "squeue", "sacct")
    for number, name in enumerate(("slurm-gpud", "slurm-gpudbd", "slurm-gpuctld"), 1):
        daemon(installed, number, name, f"/none:{path}")
    (finding,) = commands.found(installed.at())
    assert (finding.level, finding.message) == (
        Level.OK,
        "slurm-gpud and slurm-gpudbd and slurm-gpuctld: Slurm's commands are on the PATH",
    )


def test_a_daemon_that_does_not_find_a_command_is_reported(installed: Installation):
    make_commands(installed.root, "slurmd", "scontrol", "squeue", "sacct")
    daemon(installed, 1, "slurm-gpud", "/none/bin")
    finding = worst(commands.found(installed.at()))
    assert finding.message == "slurm-gpud does not find slurmd on its PATH: /none/bin"
    assert FILE in str(finding.remedy)
    assert str(finding.remedy).endswith("systemctl restart slurm-gpud")
    daemon(installed, 2, "slurm-gpudbd", "/none/bin")
    messages = [one.message for one in commands.found(installed.at())]
    assert messages[1].startswith("slurm-gpudbd does not find scontrol and squeue and sacct on its PATH")


def test_without_a_daemon_that_needs_commands_nothing_is_reported(installed: Installation):
    assert levels(commands.found(installed.at())) == ["skipped"]
    daemon(installed, 1, "slurm-gpud", "/none", "--no-slurm")
    assert levels(commands.found(installed.at())) == ["ok"]


def test_a_command_missing_in_the_shell_of_doctor_is_reported(installed: Installation):
    def fail(at: DoctorContext) -> None:
        raise SlurmError("scontrol is not on the PATH; install Slurm's client commands")

    (check,) = (check for check in CHECKS if check.name == "Slurm")
    at = installed.at()
    at.site.connect_slurm = lambda: fail(at)
    (result,) = run_checks(at, [check])
    assert result.finding.level is Level.FAIL
    assert "PATH=/opt/slurm/bin:/opt/slurm/sbin:$PATH slurm-gpu doctor" in str(result.finding.remedy)
    assert "/etc/sysconfig/slurm-gpu" in str(result.finding.remedy)


def test_a_slurmd_missing_in_the_shell_of_doctor_is_reported(
    installed: Installation, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setattr(slurmd, "SBIN", "/none/sbin")
    with pytest.raises(SlurmError) as raised:
        slurmd.run_slurmd(("slurmd", "-G"))
    assert gres.finding_slurm(str(raised.value)) is not None
