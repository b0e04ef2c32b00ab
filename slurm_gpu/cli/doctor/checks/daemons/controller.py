"""Check that slurm-gpuctld publishes the snapshot for job_submit.lua."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.daemons.services import log, revive, start_and_log
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, warn
from slurm_gpu.controller.snapshot.snapshot_file import FILE_NAME, FRESH_S, Snapshot, read_fresh
from slurm_gpu.policy.language.hour_sums import named
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import read_policy_in_force
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY

_DAEMON = "slurm-gpuctld"


def snapshot(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that the snapshot is fresh and was made for the groups of the active policy."""
    if not at.is_controller:
        yield skipped("slurm-gpuctld runs on hosts of slurmctld, and this host is not one")
        return
    policy = read_policy_in_force(Path(at.settings.conf_path).parent / SCRIPT_NAME)
    if policy is None:
        yield skipped("no policy of slurm-gpu is active")
        return
    if stopped := [str(one.pid) for one in running(_DAEMON) if one.is_stopped]:
        yield fail(
            f"{_DAEMON} (process {', '.join(stopped)}) is stopped and does not update the snapshot",
            revive(at, _DAEMON),
        )
        return
    path = RUN_DIRECTORY / FILE_NAME if policy.snapshot is None else policy.snapshot
    found = read_fresh(path, at.site.wall())
    if found is None:
        message = f"{path} is missing, incomplete, or older than {FRESH_S} s"
        if policy.hour_sums:
            what = named(policy.hour_sums)
            yield fail(f"{message}, so limits on {what} cannot be checked", start_and_log(at, _DAEMON))
        else:
            yield warn(
                f"{message}, so slurmctld has to read the whole queue for the policy",
                start_and_log(at, _DAEMON),
            )
    elif found.groups_id != policy.groups_id:
        yield warn(f"{path} has the groups of another policy, so it is not used", f"see {log(at, _DAEMON)}")
    elif policy.hour_sums and found.hours is None:
        yield fail(
            f"{path} has no {named(policy.hour_sums)}: slurmdbd has not reported earlier jobs",
            f"see {log(at, _DAEMON)}",
        )
    elif not running(_DAEMON):
        # The daemon may run on another host that shares the directory, or be invisible to this user.
        message = (
            f"{_DAEMON} is not running on this host, and {path} is {_age(at, found)} s old: it becomes "
            "invalid "
            f"after {FRESH_S} s"
        )
        yield warn(message, start_and_log(at, _DAEMON))
    else:
        yield ok(f"{path} is {_age(at, found)} s old")


def _age(at: DoctorContext, found: Snapshot) -> str:
    return f"{max(0, at.site.wall() - found.as_of_s):.0f}"
