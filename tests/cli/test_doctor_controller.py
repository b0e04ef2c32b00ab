"""`slurm-gpu doctor` checks slurm-gpuctld and its snapshot."""

from __future__ import annotations

import shutil

import pytest

from slurm_gpu.cli.doctor.checks.daemons import controller
from slurm_gpu.cli.doctor.checks.finding import Level
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.controller.queue.usage import Usage
from slurm_gpu.controller.snapshot.snapshot_file import FRESH_S, Snapshot, render
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import SystemDirectory, resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.installed import read_policy_in_force
from tests.cli.installation import Installation, levels, worst
from tests.slurm.recorded import NOW_S


def install(installed: Installation, limits: str) -> str:
    """Install a policy and return the id of its groups."""
    text = (
        "version: 1\nmode: enforce\ngroups: {g: {}}\n"
        f"rules: [{{id: r, for: g, per: user, why: W., limits: {limits}}}]\n"
    )
    source = parse_yaml(text, "policy.yaml")
    policy = check_policy(source)
    facts = SiteFacts(run_directory=installed.root / "run")
    table = compile_policy(policy, resolve_names(policy, source, SystemDirectory()), facts)
    script = installed.root / "slurm" / "job_submit.lua"
    script.write_text(build_bundle(table))
    found = read_policy_in_force(script)
    assert found is not None
    assert found.groups_id is not None
    return found.groups_id


def write(installed: Installation, groups_id: str, age_s: int = 1, *, hours: bool = False) -> None:
    snapshot = Snapshot(
        1,
        int(NOW_S) - age_s,
        groups_id,
        Usage({}, {}),
        {} if hours else None,
        dict.fromkeys(("day", "week", "month"), 1) if hours else {},
    )
    (installed.root / "run" / "snapshot.txt").write_text(render(snapshot))
    installed.process(815, "python3", "/usr/sbin/slurm-gpuctld")


def test_other_hosts_and_a_missing_policy_are_skipped(installed: Installation) -> None:
    assert levels(controller.snapshot(installed.at())) == ["skipped"]
    assert levels(controller.snapshot(installed.at(host="login"))) == ["skipped"]


def test_a_fresh_snapshot_is_ok(installed: Installation) -> None:
    write(installed, install(installed, "{gpus_total: 4}"))
    assert levels(controller.snapshot(installed.at())) == ["ok"]


def test_a_missing_slurm_gpuctld_is_reported_while_its_snapshot_is_fresh(
    installed: Installation,
) -> None:
    write(installed, install(installed, "{gpus_total: 4}"))
    shutil.rmtree(installed.root / "proc" / "815")
    finding = worst(controller.snapshot(installed.at()))
    assert finding.level is Level.WARN
    assert finding.message.startswith("slurm-gpuctld is not running on this host, and ")


@pytest.mark.parametrize(
    ("limits", "level"), [("{gpus_total: 4}", Level.WARN), ("{gpu_hours: {week: 1}}", Level.FAIL)]
)
def test_a_stale_or_missing_snapshot_is_a_failure_with_limits_on_gpu_hours(
    installed: Installation, limits: str, level: Level
) -> None:
    groups_id = install(installed, limits)
    assert worst(controller.snapshot(installed.at())).level is level
    write(installed, groups_id, FRESH_S + 1)
    assert worst(controller.snapshot(installed.at())).level is level


def test_a_snapshot_with_other_groups_or_without_gpu_hours_is_reported(installed: Installation) -> None:
    groups_id = install(installed, "{gpu_hours: {week: 1}}")
    write(installed, "f" * 16)
    assert "another policy" in worst(controller.snapshot(installed.at())).message
    write(installed, groups_id)
    assert "has no GPU-hours" in worst(controller.snapshot(installed.at())).message
    write(installed, groups_id, hours=True)
    assert levels(controller.snapshot(installed.at())) == ["ok"]


def test_a_stopped_slurm_gpuctld_is_reported_while_its_snapshot_is_fresh(
    installed: Installation,
) -> None:
    write(installed, install(installed, "{gpus_running: 4}"))
    installed.process(7, "slurm-gpuctld")
    assert levels(controller.snapshot(installed.at())) == ["ok"]
    installed.process(7, "slurm-gpuctld", state="T")
    finding = worst(controller.snapshot(installed.at()))
    assert (finding.level.value, finding.remedy) == ("fail", "run kill -CONT 7 (a signal stopped it)")
