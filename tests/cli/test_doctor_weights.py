"""`slurm-gpu doctor` on a slurm-gpuctld that goes by another mode of placement than the site file says."""

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
    """A slurm-gpuctld runs, and the site file had this mode when it was started."""
    table = PlacementTable(int(NOW_S) - age_s, "head", mode, in_charge=True, cycle_s=10)
    placementtable.write(installed.root / "run" / placementtable.FILE_NAME, table)
    installed.process(815, "python3", "/usr/sbin/slurm-gpuctld")


def look(installed: Installation) -> Iterator[CheckResult]:
    return weights(replace(installed.at(), controller_run=installed.root / "run"))


def says(installed: Installation, mode: str) -> None:
    (installed.root / "slurm" / "slurm.conf").write_text("NodeName=n[1-9] Weight=1\n")
    installed.conf["StateSaveLocation"] = str(installed.root / "state")
    installed.site_file.write_text(f"cluster: neuron\nplacement: {{mode: {mode}}}\n")


@pytest.mark.parametrize(("was", "says_now"), [("enforce", "advise"), ("observe", "enforce")])
def test_a_mode_that_was_changed_counts_after_a_restart_and_doctor_says_so(
    installed: Installation, was: str, says_now: str
) -> None:
    started_with(installed, was)
    says(installed, says_now)
    finding = worst(look(installed))
    assert finding.level is Level.FAIL
    assert finding.message == (
        f"placement's mode is {says_now}, but slurm-gpuctld goes by {was}, as when it was started"
    )
    assert finding.remedy == "systemctl restart slurm-gpuctld"
    started_with(installed, says_now)
    assert levels(look(installed)) == ["ok"]


def test_a_table_of_one_that_is_gone_says_nothing_of_the_mode(installed: Installation) -> None:
    started_with(installed, "enforce", age_s=3600)
    says(installed, "observe")
    assert levels(look(installed)) == ["ok"]
