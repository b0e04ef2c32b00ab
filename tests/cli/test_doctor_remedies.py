"""Remedies of `slurm-gpu doctor` can be typed on the host where it runs."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.daemons import munged, node, services
from slurm_gpu.cli.doctor.checks.files import hooks
from slurm_gpu.cli.doctor.checks.finding import unit_is_here
from tests.cli.installation import ROOT, Installation, worst

_CHECKS = sorted((ROOT / "slurm_gpu" / "cli" / "doctor" / "checks").rglob("*.py"))
# Modules that check whether systemd has the unit, or that give commands for another host.
_MAY_NAME_SYSTEMD = {"services.py", "boot.py"}
_NEEDS_A_UNIT = re.compile(r"\b(?:systemctl|journalctl)\b")


@pytest.mark.parametrize("path", _CHECKS, ids=lambda path: path.stem)
def test_no_check_names_systemd_without_checking_for_it(path: Path):
    if path.name in _MAY_NAME_SYSTEMD:
        return
    text = path.read_text()
    asks = {"has_systemd(at)", "has_unit(_DAEMON)"}
    literals = [
        node_.value
        for node_ in ast.walk(ast.parse(text))
        if isinstance(node_, ast.Constant) and isinstance(node_.value, str)
    ]
    named = [literal for literal in literals if _NEEDS_A_UNIT.search(literal)]
    assert not named or any(ask in text for ask in asks), named


def test_without_a_unit_the_program_is_named(installed: Installation, monkeypatch: pytest.MonkeyPatch):
    at = installed.at()
    assert services.start(at, "slurm-gpud") == "run systemctl start slurm-gpud"
    installed.has_units = False
    program = installed.root / "bin" / "slurm-gpud"
    program.parent.mkdir()
    program.touch()
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    assert services.start(at, "slurm-gpud") == (
        f"start slurm-gpud (it has no systemd unit): {program} --config={installed.site_file}"
    )
    assert services.log(at, "slurm-gpud") == "the log of slurm-gpud"
    assert services.start(at, "munge") == "start munged (it has no systemd unit)"


def test_a_running_daemon_without_an_answer_is_restarted(installed: Installation):
    at = installed.at()
    assert services.revive(at, "munge") == "run systemctl start munge"
    installed.process(7, "munged", "--socket=/x y")
    assert services.revive(at, "munge") == "run systemctl restart munge"
    installed.process(7, "munged", "--socket=/x y", state="T")
    assert services.revive(at, "munge") == "run kill -CONT 7 (a signal stopped it)"
    installed.process(7, "munged", "--socket=/x y")
    installed.has_units = False
    assert services.revive(at, "munge") == "kill 7, then start it again: munged '--socket=/x y'"
    installed.process(8, "slurm-gpudbd", "--foreground")
    assert services.restart(at, "slurm-gpudbd") == (
        "kill 8, then start it again as SlurmUser: slurm-gpudbd --foreground"
    )


def test_a_unit_counts_only_if_systemd_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("slurm_gpu.cli.doctor.checks.finding._UNITS", (tmp_path,))
    monkeypatch.setattr("slurm_gpu.cli.doctor.checks.finding._SYSTEMD", tmp_path / "none")
    (tmp_path / "munge.service").touch()
    assert not unit_is_here("munge")
    monkeypatch.setattr("slurm_gpu.cli.doctor.checks.finding._SYSTEMD", tmp_path)
    assert unit_is_here("munge")
    assert not unit_is_here("slurm-gpud")


def test_without_a_package_hooks_come_from_the_checkout(installed: Installation):
    remedy = hooks.placing("Epilog", ["/etc/slurm/epilog.d/*"])
    assert remedy.startswith(
        f"run install -D -m 755 {ROOT}/epilog/10-slurm-gpu /etc/slurm/epilog.d/90-slurm-gpu"
    )
    assert Path(remedy.split()[5]).is_file()


# munged


def test_for_a_wrong_munge_socket_no_start_of_munged_is_advised(installed: Installation):
    at = installed.at()
    installed.site_file.write_text("cluster: neuron\nmunge_socket: /run/munge/nosuch\n")
    installed.process(7, "munged", "--socket", "/run/other")
    finding = worst(munged.round_trip(at))
    assert finding.message == (
        "munged on this host listens at /run/other, not at /run/munge/nosuch (munge_socket in "
        f"{installed.site_file})"
    )
    assert finding.remedy == f"set munge_socket: /run/other in {installed.site_file}"


def test_a_hanging_munged_is_restarted(installed: Installation):
    at = installed.at()
    installed.site_file.write_text("cluster: neuron\nmunge_socket: /run/munge/nosuch\n")
    installed.process(7, "munged", "--socket=/run/munge/nosuch")
    finding = worst(munged.round_trip(at))
    assert finding.message.startswith(
        "munged runs on this host (process 7), but does not answer at /run/munge/nosuch"
    )
    assert finding.remedy == "run systemctl restart munge"


# slurm-gpud


def test_a_stopped_slurm_gpud_is_continued(installed: Installation):
    at = installed.at("n1")
    at.nodes = [dataclasses.replace(one, host=one.name, address=one.name) for one in at.nodes]
    installed.process(7, "slurm-gpud", "--node=n1", state="T")
    assert worst(node.alive(at)).remedy == "run kill -CONT 7"


def test_hooks_that_write_to_another_directory_are_reported(installed: Installation):
    at = installed.at("n1")
    at.nodes = [dataclasses.replace(one, host=one.name, address=one.name) for one in at.nodes]
    elsewhere = installed.root / "elsewhere"
    (elsewhere / "jobs").mkdir(parents=True, mode=0o700)
    installed.process(7, "slurm-gpud", f"--run-dir={elsewhere}")
    assert [found.level.value for found in node.hook_directory(at)] == ["ok"]
    (at.run_dir / "jobs" / "1-2-prolog").touch()
    finding = worst(node.hook_directory(at))
    assert finding.message == f"hooks write to {at.run_dir}/jobs, but slurm-gpud reads {elsewhere}/jobs"
