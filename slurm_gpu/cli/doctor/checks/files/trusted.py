"""Check who may change code that Slurm runs for every job: hooks as root, job_submit.lua in slurmctld."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail

_ROOT = 0


def others_may_write(at: DoctorContext, path: Path, what: str) -> Iterator[CheckResult]:
    """Yield a failure if users other than root and SlurmUser may write `path`; `what` is the consequence."""
    try:
        status = path.stat()
    except OSError:
        return  # missing or unreadable: other checks report it
    typed = shlex.quote(str(path))
    trusted = {_ROOT, at.settings.slurm_user_uid, os.geteuid()}
    if status.st_uid not in trusted:
        yield fail(
            f"{path} belongs to uid {status.st_uid}: {what}",
            f"review its content, then run chown root {typed}",
        )
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield fail(
            f"users other than its owner may write {path}: {what}",
            f"review its content, then run chmod go-w {typed}",
        )
