"""Check that files with passwords can be read by their daemon, and by no other user."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.daemons.services import restart
from slurm_gpu.cli.doctor.checks.files.access import denies
from slurm_gpu.cli.doctor.checks.finding import DATABASE_FILE, CheckResult, DoctorContext, fail, ok, skipped
from slurm_gpu.database.settings import OpenToOthersError, load_settings
from slurm_gpu.errors import InputError
from slurm_gpu.files.owner import user_name
from slurm_gpu.http.web_reader import unknown_user


def database_file(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurm-gpudbd.yaml is valid, and that only SlurmUser can read it."""
    path = at.site.config_path.absolute().parent / DATABASE_FILE
    given = [process.option("--database-config") for process in running("slurm-gpudbd")]
    path = next((Path(one) for one in given if one is not None), path)
    if not path.exists():
        yield skipped(f"{path} does not exist: slurm-gpudbd is on another host, or uses its defaults")
        return
    if not os.access(path, os.R_OK):
        yield skipped(f"only SlurmUser may read {path}; run doctor as root")
        return
    found = list(_database_file(at, path))
    yield from found or [ok(f"{path}: SlurmUser may read it, and other users may not read its password")]


def _database_file(at: DoctorContext, path: Path) -> Iterator[CheckResult]:
    typed, user = shlex.quote(str(path)), at.settings.slurm_user
    try:
        settings = load_settings(path)
    except OpenToOthersError as error:
        yield fail(
            error.fault,
            f"run chmod 0600 {typed} and chown {user} {typed}; change the password, as other users may have "
            "read it",
        )
        return
    except InputError as error:
        yield fail(str(error), f"fix {path}")
        return
    if (web_user := unknown_user(settings.web)) is not None:
        yield fail(
            f"web_user: {web_user} in {path} is not a user of this host, so slurm-gpudbd refuses "
            "slurm-gpuweb",
            f"set web_user: to the user or uid of slurm-gpuweb; then {restart(at, 'slurm-gpudbd')}",
        )
    yield from kept_out(path, at.settings.slurm_user_uid, f"SlurmUser {user}", "slurm-gpudbd")


def kept_out(path: Path, uid: int, user: str, daemon: str) -> Iterator[CheckResult]:
    """Yield a finding if the user that a daemon runs as may not read the daemon's file."""
    denied = denies(path, uid)
    if denied is None:
        return
    yield fail(
        f"{user}, the user of {daemon}, may not read {path}: {denied.part} denies access",
        f"run chown {user_name(uid)} {shlex.quote(str(path))}" if denied.part == path else denied.remedy,
    )
