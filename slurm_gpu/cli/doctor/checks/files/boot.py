"""Check that the units that this host requires start at its next boot."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.database_address import database_host
from slurm_gpu.cli.doctor.checks.finding import (
    DATABASE_FILE,
    WEB_FILE,
    CheckResult,
    DoctorContext,
    fail,
    ok,
    skipped,
    warn,
)
from slurm_gpu.errors import InputError, SlurmError
from slurm_gpu.policy.language.check import FILE_NAME, load_policy
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import read_policy_in_force
from slurm_gpu.policy.lua.peers import is_backup

# Directories of unit files: the site's, and those of packages.
UNITS = (Path("/etc/systemd/system"), Path("/usr/lib/systemd/system"))
_DAEMONS = ("slurm-gpud.service", "slurm-gpudbd.service", "slurm-gpuctld.service", "slurm-gpuweb.service")
_ADJUST = "slurm-gpu-adjust.timer"
# The services that run as SlurmUser, by the unit that starts them.
_OF_SLURM_USER = {
    "slurm-gpudbd.service": "slurm-gpudbd.service",
    "slurm-gpuctld.service": "slurm-gpuctld.service",
    "slurm-gpu-forecast.timer": "slurm-gpu-forecast.service",
    "slurm-gpu-report-daily.timer": "slurm-gpu-report@day.service",
    "slurm-gpu-report-weekly.timer": "slurm-gpu-report@week.service",
    "slurm-gpu-report-monthly.timer": "slurm-gpu-report@month.service",
}
_TIMEOUT_S = 10.0
# States of units that start at boot or through other units.
AT_BOOT = frozenset({"enabled", "alias", "generated", "indirect", "static"})

Unit = Mapping[str, str]


def timers() -> list[str]:
    """Return the installed timers of slurm-gpu."""
    return sorted({path.name for directory in UNITS for path in directory.glob("slurm-gpu-*.timer")})


def enabled(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that required units and running units are enabled."""
    if not at.systemd.is_dir():
        yield skipped("systemd is not running on this host")
        return
    try:
        names = [*_DAEMONS, *timers()]
        units = _shown(
            at, [*names, *(own for name in names if (own := _OF_SLURM_USER.get(name)) and own != name)]
        )
    except SlurmError as error:
        yield skipped(f"systemctl failed: {error}")
        return
    needed, fine, has_findings = _needed(at), [], False
    for name in names:
        unit = units.get(name)
        if unit is None or unit["LoadState"] == "not-found":
            continue  # the daemon does not run, or was started without systemd
        runs = unit["ActiveState"] in ("active", "activating", "reloading")
        at_boot = unit["UnitFileState"] in AT_BOOT
        user = units.get(_OF_SLURM_USER.get(name, ""), {}).get("User", "")
        if (at_boot or runs) and user not in ("", at.settings.slurm_user):
            has_findings = True
            yield _of_another(_OF_SLURM_USER[name], user, at.settings.slurm_user)
        masked = f"systemctl unmask {name}; " if unit["LoadState"] == "masked" else ""
        if not at_boot and (runs or name in needed):
            so_far, state = "is running" if runs else "is not running", unit["UnitFileState"] or "not enabled"
            has_findings = True
            yield warn(
                f"{name} {so_far}, and will not start at the next boot, because it is {state}",
                f"run {masked}systemctl enable --now {name}",
            )
        elif at_boot and not runs and name.endswith(".timer"):
            has_findings = True
            yield warn(
                f"{name} is enabled, but is not active before the next boot", f"run systemctl start {name}"
            )
        elif at_boot:
            fine.append(name)
    if fine:
        yield ok(f"enabled at boot: {', '.join(fine)}")
    elif not has_findings:
        yield skipped("this host needs no unit of slurm-gpu, or its daemons are started without systemd")


def _of_another(service: str, user: str, slurm_user: str) -> CheckResult:
    """Return a failure about a service that takes over SlurmUser's directories when it starts."""
    unit = re.sub("@.*", "@", service.removesuffix(".service"))
    return fail(
        f"{service} runs as {user}, but SlurmUser is {slurm_user}: the service may not see all jobs or "
        "share files",
        f"run systemctl edit {unit} and set User={slurm_user} and Group= in [Service], then restart the "
        "service if it is running; see `If SlurmUser is not slurm` in install.md",
    )


def _needed(at: DoctorContext) -> set[str]:
    """Return the units that this host requires according to Slurm, site files and policy."""
    found = set()
    if at.is_gpu_node:
        found.add("slurm-gpud.service")
    directory = at.site.config_path.parent
    if (directory / DATABASE_FILE).exists() and at.is_this_host(database_host(at)):
        found.add("slurm-gpudbd.service")
    if (directory / WEB_FILE).exists():
        found.add("slurm-gpuweb.service")
    if (
        at.is_controller
        and read_policy_in_force(Path(at.settings.conf_path).parent / SCRIPT_NAME) is not None
    ):
        found.add("slurm-gpuctld.service")
        if not is_backup(at.settings, at.host) and _moves_limits(at):
            found.add(_ADJUST)
    return found


def _moves_limits(at: DoctorContext) -> bool:
    """Return whether a rule of the policy has `adjust:`; another check reports an invalid policy."""
    path = at.policy_file if at.policy_file is not None else at.site.config_path.parent / FILE_NAME
    try:
        policy, _ = load_policy(path)
    except (InputError, OSError):
        return False
    return any(rule.adjust for rule in policy.rules)


def _shown(at: DoctorContext, names: list[str]) -> dict[str, Unit]:
    """Return the properties of each unit; raise SlurmError if systemctl fails."""
    keys = ("Id", "LoadState", "ActiveState", "UnitFileState", "User")
    argv = ["systemctl", "show", *(f"--property={key}" for key in keys), "--", *names]
    text = at.site.run(argv, {**os.environ, "LC_ALL": "C.UTF-8"}, _TIMEOUT_S)
    blocks = (dict(line.partition("=")[::2] for line in block.splitlines()) for block in text.split("\n\n"))
    units = ({key: block.get(key, "") for key in keys} for block in blocks)
    return {unit["Id"]: unit for unit in units if unit["Id"]}
