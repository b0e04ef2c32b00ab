"""`slurm-gpu doctor` reports unresponsive slurmds, except on nodes that are intentionally out of service."""

import dataclasses
from collections.abc import Sequence

import pytest

from slurm_gpu import __version__
from slurm_gpu.cli.doctor.checks.daemons import slurmd
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, Level
from slurm_gpu.client.database_client import NodeReport
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S
from tests.cli.installation import Installation, levels
from tests.slurm.recorded import NOW_S


def _with_n2(installed: Installation, state: str, reason: str | None = None) -> DoctorContext:
    at = installed.at()
    others = [
        dataclasses.replace(one, state="idle", reason=None, address=one.name) for one in at.site.slurm.nodes()
    ]
    at.nodes = [
        dataclasses.replace(one, state=state, reason=reason) if one.name == "n2" else one for one in others
    ]
    return at


# An idle node posts every minute, ±10%.
OLDEST_S = round(1.1 * IDLE_LIVE_INTERVAL_S) + 5


def _report(installed: Installation, names: Sequence[str]) -> None:
    installed.database.reports = [
        NodeReport(node=name, last_seen_s=NOW_S - OLDEST_S, version=__version__, devices=()) for name in names
    ]


def _only(at: DoctorContext) -> CheckResult:
    (found,) = slurmd.reached(at)
    return found


def test_a_missing_slurmd_on_a_running_host_is_reported(installed: Installation):
    _report(installed, ["n1", "n2", "n3"])
    found = _only(_with_n2(installed, "down+not_responding", "Not responding"))
    assert (found.level, found.message) == (
        Level.FAIL,
        "slurmd on n2 does not answer slurmctld, so no job starts there (state DOWN); slurm-gpud there still "
        "reports, so the host and its network are up",
    )
    assert found.remedy == "on n2, run systemctl restart slurmd; see journalctl -u slurmd for the cause"


def test_a_host_that_is_down_is_reported(installed: Installation):
    _report(installed, ["n1", "n3"])
    found = _only(_with_n2(installed, "down+not_responding", "Not responding"))
    assert "slurm-gpud on n2 has not reported for two minutes either" in found.message
    assert str(found.remedy).startswith("run ping n2; if it answers: on n2, run systemctl restart slurmd")


def test_before_slurmd_timeout_a_silent_slurmd_is_a_warning(installed: Installation):
    _report(installed, ["n1", "n2", "n3"])
    found = _only(_with_n2(installed, "mixed+not_responding"))
    assert (found.level, found.message.partition(";")[0]) == (
        Level.WARN,
        "slurmd on n2 does not answer slurmctld, so no job starts there (state DOWN after SlurmdTimeout)",
    )


def test_the_finding_needs_no_slurm_gpudbd(installed: Installation):
    installed.database.state = None
    found = _only(_with_n2(installed, "down+not_responding", "Not responding"))
    assert found.message.endswith("(state DOWN)")


@pytest.mark.parametrize("reason", ["Not responding", "Node unexpectedly rebooted"])
def test_a_node_that_slurm_keeps_down_is_reported(installed: Installation, reason: str):
    found = _only(_with_n2(installed, "down", reason))
    assert found.message == "slurmd on n2 answers again, but no job starts there (state DOWN)"
    assert found.remedy == "run scontrol update nodename=n2 state=resume"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("idle", None),
        ("idle+drain", "new disk"),
        ("down+drain+not_responding", "new disk"),
        ("down+not_responding", "new disk"),
        ("down", "new disk"),
        ("idle+cloud+powered_down", None),
        ("idle+cloud+powering_down+not_responding", None),
        ("mixed+cloud+powering_up+not_responding", None),
        ("down+maintenance+not_responding", "Not responding"),
        ("down+reboot_issued+not_responding", "reboot ASAP"),
        ("future", None),
        ("unknown+not_responding", None),
    ],
)
def test_a_node_out_of_service_on_purpose_is_ok(installed: Installation, state: str, reason: str | None):
    assert levels(slurmd.reached(_with_n2(installed, state, reason))) == ["ok"]


def test_a_node_without_gpus_is_not_checked(installed: Installation):
    at = _with_n2(installed, "down+not_responding", "Not responding")
    at.nodes = [dataclasses.replace(one, gpus={}) if one.name == "n2" else one for one in at.nodes]
    assert levels(slurmd.reached(at)) == ["ok"]


def test_one_of_several_nodes_on_this_host_is_reported(installed: Installation):
    _report(installed, ["n1", "n2", "n3"])
    at = _with_n2(installed, "down+not_responding", "Not responding")
    at.nodes = [dataclasses.replace(one, address="127.0.0.1") for one in at.nodes]
    for pid, node, state in ((7, "n1", "S"), (8, "n2", "T")):
        process = installed.process(pid, "slurmd", "-D", "-N", node, state=state)
    assert _only(at).remedy == "run kill -CONT 8 (a signal stopped it)"
    (process / "stat").unlink()
    (process / "cmdline").unlink()
    assert _only(at).remedy == "run slurmd -N n2 again; see its log for the cause"
