"""`slurm-gpu doctor` reports a slurm-gpuctld whose placement mode differs from the site file's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from slurm_gpu.cli.doctor.checks.finding import CheckResult, Level
from slurm_gpu.cli.doctor.checks.slurm.weights import weights
from slurm_gpu.controller.placement import table as placementtable
from slurm_gpu.controller.placement.table import PlacementTable
from tests.cli.installation import Installation, levels, worst
from tests.slurm.recorded import NOW_S


def started_with(installed: Installation, mode: str, age_s: int = 1) -> None:
    """Simulate a slurm-gpuctld that was started with this mode."""
    table = PlacementTable(int(NOW_S) - age_s, "head", mode, in_charge=True, cycle_s=10)
    placementtable.write(installed.root / "run" / placementtable.FILE_NAME, table)
    installed.process(815, "python3", "/usr/sbin/slurm-gpuctld")


def check(installed: Installation) -> Iterator[CheckResult]:
    return weights(replace(installed.at(), controller_run=installed.root / "run"))


def write_mode(installed: Installation, mode: str) -> None:
    (installed.root / "slurm" / "slurm.conf").write_text("NodeName=n[1-9] Weight=1\n")
    installed.conf["StateSaveLocation"] = str(installed.root / "state")
    installed.site_file.write_text(f"cluster: neuron\nplacement: {{mode: {mode}}}\n")


@pytest.mark.parametrize(("was", "new_mode"), [("enforce", "advise"), ("observe", "enforce")])
def test_a_changed_mode_requires_a_restart_of_slurm_gpuctld(
    installed: Installation, was: str, new_mode: str
) -> None:
    started_with(installed, was)
    write_mode(installed, new_mode)
    finding = worst(check(installed))
    assert finding.level is Level.FAIL
    assert finding.message == (f"placement's mode is {new_mode}, but slurm-gpuctld was started with {was}")
    assert finding.remedy == "run systemctl restart slurm-gpuctld"
    started_with(installed, new_mode)
    assert levels(check(installed)) == ["ok"]


def test_an_old_table_of_a_stopped_slurm_gpuctld_is_ignored(installed: Installation) -> None:
    started_with(installed, "enforce", age_s=3600)
    write_mode(installed, "observe")
    assert levels(check(installed)) == ["ok"]
